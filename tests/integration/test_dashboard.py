"""The dashboard in a real browser beside a real training run: it moves without a reload, acts only with the token."""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from training import DEADLINE_SECONDS, command, installed_command, write_recipe

pytest.importorskip("starlette", reason="the extra web is not installed")
CHROMIUM = shutil.which("chromium")
ATTACK = "<script>alert(1)</script>"


class Dashboard:
    """A real server over one folder of runs."""

    def __init__(self, folder: Path) -> None:
        arguments = [
            sys.executable,
            "-c",
            "from flatout.cli.main import run; run()",
            "dashboard",
            str(folder),
            "--port=0",
        ]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
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


@pytest.fixture(scope="module")
def folder(shapes: Path, uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six ended runs, one of them named to attack, one damaged."""
    runs = tmp_path_factory.mktemp("dashboard") / "runs"
    for number in range(5):
        shutil.copytree(uninterrupted, runs / f"copy-{number}", symlinks=True)
    summary = json.loads((runs / "copy-0" / "summary.json").read_text())
    (runs / "copy-0" / "summary.json").write_text(json.dumps({**summary, "run": ATTACK}))
    shutil.copytree(uninterrupted, runs / "damaged", symlinks=True)
    (runs / "damaged" / "summary.json").write_text("{")
    return runs


@pytest.fixture(scope="module")
def dashboard(folder: Path) -> Iterator[Dashboard]:
    found = Dashboard(folder)
    yield found
    found.process.terminate()
    found.process.wait(DEADLINE_SECONDS)


def test_rows_say_what_the_runs_are(dashboard: Dashboard) -> None:
    code, text = dashboard.ask("/api/runs?column=train.lr")
    rows = {row["key"]: row for row in json.loads(text)}
    assert code == 200
    assert rows["0/copy-0"]["name"] == ATTACK
    assert rows["0/copy-1"]["status"] == "completed"
    assert rows["0/copy-1"]["progress"] == 1.0
    assert rows["0/damaged"]["status"] == "failed"
    assert "summary.json" in rows["0/damaged"]["cause"]


def test_who_may_not(dashboard: Dashboard, folder: Path) -> None:
    assert dashboard.ask("/?token=wrong")[0] == 403
    assert dashboard.ask("/", Host="evil.example")[0] == 421
    assert dashboard.ask("/api/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")[0] == 403
    assert dashboard.ask("/api/stop/0/copy-1", "POST")[0] == 401
    bearer = f"Bearer {dashboard.token}"
    assert dashboard.ask("/api/stop/0/copy-1", "POST", Authorization=bearer)[0] == 404  # it has ended
    cookie = f"flatout_{dashboard.address.rpartition(':')[2]}={dashboard.token}"
    assert dashboard.ask("/api/stop/0/copy-1", "POST", Cookie=cookie, Origin="http://evil.example")[0] == 403
    for path in ("/run/0/../../etc", "/run/0/%2e%2e/%2e%2e/etc", "/static/../guard.py", "/static/html.py"):
        assert dashboard.ask(path)[0] == 404, path
    assert list(folder.rglob("predictions.jsonl")) == []


def test_looking_changes_nothing(dashboard: Dashboard, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    dashboard.ask("/run/0/copy-1")
    code, answer = dashboard.ask("/api/what-if/0/copy-1?data.workers=2")
    assert code == 200
    assert "data.workers=2" in answer
    assert "as it is" in answer
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_wrong_what_if_is_a_sentence(dashboard: Dashboard) -> None:
    code, answer = dashboard.ask("/api/what-if/0/copy-1?data.wrokers=2")
    assert code == 200
    assert "data.wrokers" in answer
    assert "Traceback" not in answer


# In the browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
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
        self.page.goto(f"{dashboard.address}{path}?token={dashboard.token}")

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


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (380, "dark")])
def test_the_list_searches_sorts_and_groups(browser: Any, dashboard: Dashboard, width: int, scheme: str) -> None:
    visitor = Visitor(browser, dashboard, "/", width, scheme)
    page = visitor.page
    page.wait_for_selector("#runs tbody tr")
    assert "token" not in page.url
    visitor.wait_until("document.querySelectorAll('#runs tbody tr').length == 6")
    assert page.get_by_text(ATTACK, exact=True).is_visible()
    page.fill("#search", "copy-3")
    assert page.locator("#runs tbody tr").count() == 1
    page.fill("#search", "")
    page.select_option("#status", "failed")
    assert page.locator("#runs tbody tr").count() == 1
    page.select_option("#status", "")
    page.get_by_role("button", name="run", exact=True).focus()
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort]").count() == 1
    visitor.close_quietly()


def test_five_runs_compared(browser: Any, dashboard: Dashboard) -> None:
    visitor = Visitor(browser, dashboard, "/")
    page = visitor.page
    page.wait_for_selector("#runs tbody tr")
    for number in range(1, 5):
        page.locator("tr", has_text="").locator(f"a[title$='copy-{number}']").locator("xpath=../input").check()
    page.locator("a[title$='copy-0']").locator("xpath=../input").check()
    page.click("#compare")
    page.wait_for_selector("#f-overlay figure")
    page.wait_for_selector("#f-body table")
    assert "5 runs compared" in page.locator("h1").inner_text()
    page.get_by_role("link", name="by minutes").click()
    page.wait_for_selector("#f-overlay figure")
    visitor.close_quietly()


def test_a_live_run_moves_without_a_reload_stops_and_resumes(
    browser: Any, dashboard: Dashboard, folder: Path, shapes: Path
) -> None:
    changes = {
        "device": "emulated",
        "emulated__base_seconds": 0.05,
        "train__epochs": 400,
        "cost__instance": "g5.xlarge",
    }
    config = write_recipe(folder.parent / "live.yaml", shapes, name="live", **changes)
    code = "from flatout.cli.main import run; run()"
    training = subprocess.Popen(
        [sys.executable, "-c", code, "train", str(config), "--run", str(folder / "live")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _watch_and_stop(browser, dashboard, training)
    finally:
        training.kill()
        training.wait()
    summary = json.loads((folder / "live" / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert summary["cause"].startswith("SIGTERM")
    again = command("train", config, "--run", folder / "live", "--set", "stop.max_seconds=1", cwd=folder.parent)
    assert "resum" in again.err + again.out
    shutil.rmtree(folder / "live")  # and the page of a run that is gone says so
    assert dashboard.ask("/run/0/live")[0] == 404


def _watch_and_stop(browser: Any, dashboard: Dashboard, training: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while "0/live" not in dashboard.ask("/api/runs")[1]:
        assert time.monotonic() < deadline
        assert training.poll() is None
    visitor = Visitor(browser, dashboard, "/run/0/live")
    page = visitor.page
    page.evaluate("window.untouched = true")
    page.wait_for_selector("#f-curves figure")
    curve = "document.querySelector('#f-curves figure .curve').getAttribute('d')"
    dollars = "[...document.querySelectorAll('#f-tiles div')].find(d => d.innerText.startsWith('cost'))?.innerText"
    page.evaluate(f"window.before = [{curve}, {dollars}]")
    page.locator("#f-curves figure .area").first.focus()
    visitor.wait_until(f"{curve} !== window.before[0] && {dollars} !== window.before[1]")
    assert page.evaluate("document.activeElement.classList.contains('area')")
    assert page.evaluate("window.untouched")
    page.wait_for_selector("#f-findings section")
    page.get_by_role("button", name="stop with a checkpoint").click()
    page.get_by_role("button", name="really stop").click()
    training.wait(DEADLINE_SECONDS)
    visitor.wait_until("document.querySelector('#f-head .pill').textContent === 'stopped'")
    visitor.close_quietly()


def test_a_page_survives_a_run_that_is_deleted_or_damaged(browser: Any, dashboard: Dashboard, folder: Path) -> None:
    shutil.copytree(folder / "copy-1", folder / "victim", symlinks=True)
    visitor = Visitor(browser, dashboard, "/run/0/victim")
    visitor.page.wait_for_selector("#f-curves figure")
    (folder / "victim" / "epochs.csv").write_text("what,is\r\nthis,1\r\n")
    visitor.page.wait_for_selector("#f-damage .note")
    shutil.rmtree(folder / "victim")
    visitor.page.get_by_text("no run '0/victim'").wait_for()
    visitor.close_quietly()
    assert dashboard.ask("/api/runs")[0] == 200


def test_train_with_a_dashboard_beside_it(shapes: Path, tmp_path: Path) -> None:
    config = write_recipe(tmp_path / "tiny.yaml", shapes)
    finished = installed_command("train", config, "--dashboard", "--json", cwd=tmp_path)
    assert finished.code == 0, finished.err
    assert json.loads(finished.out)["status"] == "completed"


def test_a_port_in_use_and_a_token_that_others_can_read_are_refused(dashboard: Dashboard, tmp_path: Path) -> None:
    port = dashboard.address.rpartition(":")[2]
    refused = command("dashboard", tmp_path, "--port", port, cwd=tmp_path)
    assert refused.code == 2
    assert "choose another --port" in refused.err
    (tmp_path / "token").write_text("x" * 30)
    (tmp_path / "token").chmod(0o644)
    refused = command("dashboard", tmp_path, "--token-file", tmp_path / "token", cwd=tmp_path)
    assert refused.code == 2
    assert "chmod 600" in refused.err
