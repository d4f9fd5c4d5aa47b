"""A real dashboard and a real browser, for tests of pages."""

import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from training import DEADLINE_SECONDS

CHROMIUM = shutil.which("chromium")
ATTACK = "<script>alert(1)</script>"


class Dashboard:
    """A real server over one folder of runs."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        arguments = [
            sys.executable,
            "-c",
            "from flatout.cli.main import run; run()",
            "dashboard",
            str(folder),
            "--port=0",
        ]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"(http://\S+)/\?token=(\S+)", line)
        assert found, line
        self.address, self.token = found.groups()

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.address + path, method=method, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def serving(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Dashboard]:
    found = Dashboard(folder, environment)
    try:
        yield found
    finally:
        found.process.terminate()
        found.process.wait(DEADLINE_SECONDS)
        assert found.process.stdout is not None
        found.process.stdout.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's, without a window; skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=120_000)
        yield opened
        opened.close()


class Visitor:
    """A page and all that it said and asked for."""

    def __init__(self, browser: Any, dashboard: Dashboard, path: str, width: int = 1200, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(120_000)
        self.troubles: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self._note(request.url, dashboard.address))
        sign = "&" if "?" in path else "?"
        self.page.goto(f"{dashboard.address}{path}{sign}token={dashboard.token}")

    def _note(self, url: str, own: str) -> None:
        if not url.startswith((own, "data:")):
            self.foreign.append(url)

    def wait_until(self, script: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.page.evaluate(script):  # the page's policy forbids the polling of wait_for_function
            assert time.monotonic() < deadline, script

    def close_quietly(self) -> None:
        assert self.troubles == []
        assert self.foreign == []
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        self.page.close()
