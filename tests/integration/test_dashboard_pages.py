"""Every page of the dashboard as a reader meets it: without a mouse, with a screen reader, in a frame, at a thousand runs."""

import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from browsing import Dashboard, Visitor, chromium, serving
from flatout.analysis.mean_epoch import MeanEpoch
from flatout.analysis.suite import SuiteRow
from flatout.reports.suite_table import as_json
from flatout.runs.directory import RunDirectory
from training import DEADLINE_SECONDS

pytest.importorskip("starlette", reason="the extra web is not installed")
STEPS = "attempt,step,epoch,batch_index,samples,loss,learning_rate,step_seconds,data_wait_seconds,time_unix\r\n"


def write_table(suite: Path, names: list[str]) -> None:
    epoch = MeanEpoch(10, 0.1, 1.0, 1.5, {"data_wait": 0.5}, {"forward": 1.5})
    rows = [SuiteRow(name, {"batch": [32], "actual epoch": [1.5]}, [epoch], [], "as planned") for name in names]
    (suite / "table.json").write_text(json.dumps(as_json(suite.name, rows)))


@pytest.fixture(scope="module")
def folder(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs that differ in a key, a suite with a table, and a run that goes on and waits for data nearly all the time."""
    runs = tmp_path_factory.mktemp("pages") / "runs"
    for number in range(3):
        shutil.copytree(uninterrupted, runs / f"copy-{number}", symlinks=True)
        config = runs / f"copy-{number}" / "config.yaml"
        config.write_text(re.sub(r"(?m)^  lr: .*$", f"  lr: 0.{number + 1}", config.read_text()))
    shutil.copytree(uninterrupted, runs / "suite" / "small", symlinks=True)
    write_table(runs / "suite", ["small"])
    shutil.copytree(uninterrupted, runs / "starved", symlinks=True)
    summary = json.loads((runs / "starved" / "summary.json").read_text())
    (runs / "starved" / "summary.json").write_text(json.dumps({**summary, "status": "running", "cause": None}))
    spends = yaml.safe_load((runs / "starved" / "config.yaml").read_text())
    spends["cost"]["usd_per_hour"], spends["stop"]["max_usd"] = 3600.0, 0.01
    (runs / "starved" / "config.yaml").write_text(yaml.safe_dump(spends))
    rows = [f"1,{n},0,{n},8,1.0,0.1,0.5,0.45,{time.time() - 10 + n / 2}\r\n" for n in range(1, 20)]
    (runs / "starved" / "steps.csv").write_text(STEPS + "".join(rows))
    held = RunDirectory(runs / "starved")
    held.lock()
    yield runs
    held.unlock()


@pytest.fixture(scope="module")
def dashboard(folder: Path) -> Iterator[Dashboard]:
    with serving(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


PAGES = {
    "/": "#runs tbody tr",
    "/run/0/copy-1": "#f-timeline section",
    "/run/0/starved": "#f-tiles dl",
    "/compare?run=0/copy-0&run=0/copy-1": "#f-body table",
    "/suites": "#f-body table",
    "/plans": "#f-body p",
    "/cache": "#f-body section",
}


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_stands_in_the_way_of_a_screen_reader(
    browser: Any, dashboard: Dashboard, path: str, width: int, scheme: str
) -> None:
    """By the rules of axe-core, which looks at contrast, names, roles and order."""
    axe = pytest.importorskip("axe_playwright_python")
    (script,) = Path(axe.__file__).parent.rglob("axe.min.js")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(dashboard.address + path)
    page.wait_for_selector(PAGES[path], timeout=120_000)
    page.evaluate(script.read_text("utf-8") + ";0")
    found = page.evaluate("axe.run()")
    context.close()
    assert len(found["passes"]) > 10
    assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []


def test_the_list_has_the_columns_and_groups_of_the_readers_choice(browser: Any, dashboard: Dashboard) -> None:
    visitor = Visitor(browser, dashboard, "/")
    page = visitor.page
    page.wait_for_selector("#runs tbody tr")
    visitor.wait_until("[...document.getElementById('group').options].some(o => o.value === 'train.lr')")
    page.select_option("#group", "train.lr")
    visitor.wait_until("document.querySelectorAll('#runs .group').length >= 3")
    visitor.wait_until(
        "[...document.querySelectorAll('#runs .group')].some(g => g.innerText.startsWith('train.lr = 0.2'))"
    )
    page.select_option("#group", "")
    page.get_by_text("columns", exact=True).click()
    page.get_by_label("data wait").uncheck()
    page.select_option("#column", "train.lr")
    heads = page.locator("#runs thead").inner_text()
    assert "data wait" not in heads
    assert "train.lr" in heads
    visitor.wait_until("[...document.querySelectorAll('#runs tbody td')].some(td => td.textContent === '0.3')")
    page.reload()  # and it is kept
    page.wait_for_selector("#runs tbody tr")
    assert "train.lr" in page.locator("#runs thead").inner_text()
    visitor.close_quietly()


def test_the_keyboard_is_enough(browser: Any, dashboard: Dashboard) -> None:
    visitor = Visitor(browser, dashboard, "/")
    page = visitor.page
    page.wait_for_selector("#runs tbody tr")
    page.focus("#search")
    page.keyboard.type("copy-1")
    visitor.wait_until("document.querySelectorAll('#runs tbody tr').length == 1")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "/run/0/copy-1":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#f-curves figure")
    assert page.url.endswith("/run/0/copy-1")
    page.locator("#f-curves .area").first.focus()
    page.keyboard.press("End")
    assert "step" in page.locator("#f-curves .tip").first.inner_text()
    page.locator("input[name='data.workers']").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#what-if-answer table, #what-if-answer .note")
    assert "as it is" in page.locator("#what-if-answer").inner_text()
    visitor.close_quietly()


def test_an_alarm_is_a_notification_where_that_is_allowed(browser: Any, dashboard: Dashboard) -> None:
    context = browser.new_context()
    context.add_init_script(
        "window.raised = []; window.Notification = class { constructor(title, {body}) { raised.push(body); } };"
        "Notification.permission = 'granted';"
    )
    page = context.new_page()
    page.goto(f"{dashboard.address}/run/0/starved")
    page.get_by_role("note").filter(has_text="waits for data 90 % of the time").wait_for(timeout=120_000)
    page.get_by_role("note").filter(has_text="of $0.0100 (stop.max_usd) are spent").wait_for(timeout=120_000)
    raised = page.evaluate("raised")
    assert all(any(text in each for each in raised) for text in ("waits for data 90 %", "(stop.max_usd) are spent"))
    context.close()


def test_a_suite_fills_while_it_is_looked_at(browser: Any, dashboard: Dashboard, folder: Path) -> None:
    visitor = Visitor(browser, dashboard, "/suites", 400)
    page = visitor.page
    page.get_by_role("rowheader", name="small").first.wait_for()
    page.evaluate("window.untouched = true")
    write_table(folder / "suite", ["small", "large"])
    page.get_by_role("rowheader", name="large").first.wait_for()
    assert page.evaluate("window.untouched")
    (folder / "suite" / "table.json").write_text("{")
    page.get_by_text("cannot be read").wait_for()
    write_table(folder / "suite", ["small", "large"])
    visitor.close_quietly()


def test_shared_batches_are_shown_while_they_are_served(browser: Any, folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    code = "from flatout.cli.main import run; run()"
    with serving(folder, environment) as dashboard:
        visitor = Visitor(browser, dashboard, "/cache")
        visitor.page.get_by_text("a job with data.shared=auto starts one").wait_for()
        service = subprocess.Popen([sys.executable, "-c", code, "serve"], env=environment, stdout=subprocess.DEVNULL)
        try:
            visitor.page.get_by_role("rowheader", name="being made (leases)").wait_for()
            visitor.page.get_by_text("No job is connected.").wait_for()
        finally:
            service.terminate()
            service.wait(DEADLINE_SECONDS)
        visitor.close_quietly()


def test_many_runs_come_in_pieces_and_only_so_many_are_drawn(browser: Any, folder: Path, tmp_path: Path) -> None:
    for number in range(300):
        run = tmp_path / f"run-{number:03}"
        run.mkdir()
        for name in ("config.yaml", "summary.json"):
            shutil.copy2(folder / "copy-0" / name, run / name)
    with serving(tmp_path) as dashboard:
        visitor = Visitor(browser, dashboard, "/")
        visitor.wait_until("document.getElementById('count').textContent === '300 of 300 runs'")
        assert visitor.page.locator("#runs tbody tr").count() == 200
        visitor.page.click("#more")
        assert visitor.page.locator("#runs tbody tr").count() == 300
        line = "document.querySelector('#runs tbody tr')"
        visitor.page.evaluate(f"window.line = {line}")
        shutil.rmtree(tmp_path / "run-150")
        visitor.wait_until("document.getElementById('count').textContent === '299 of 299 runs'")
        assert visitor.page.evaluate(f"window.line === {line}")  # what did not change was not made again
        visitor.close_quietly()


def test_it_ends_at_once_and_without_a_word_while_pages_listen(folder: Path) -> None:
    code = "from flatout.cli.main import run; run()"
    words = [sys.executable, "-c", code, "dashboard", str(folder), "--port=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1].partition("/?")[0]
        with (
            urllib.request.urlopen(f"{address}/events/runs", timeout=DEADLINE_SECONDS) as rows,
            urllib.request.urlopen(f"{address}/events/suites", timeout=DEADLINE_SECONDS) as suites,
        ):
            assert rows.readline() == b"event: rows\n"
            assert suites.readline() == b"event: fragments\n"
            server.send_signal(signal.SIGTERM)
            _, said = server.communicate(timeout=DEADLINE_SECONDS)
    assert said == ""


class _Notebook(http.server.BaseHTTPRequestHandler):
    """A page with a frame, as a notebook's cell is."""

    frame = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(f"<!doctype html>{type(self).frame}".encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_the_dashboard_of_a_notebook_is_in_its_frame_and_no_other_is(
    browser: Any, dashboard: Dashboard, folder: Path
) -> None:
    import flatout

    opened = flatout.dashboard(folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Notebook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    try:
        assert "token" not in opened.address
        _Notebook.frame = opened._repr_html_()
        page.goto(f"http://localhost:{server.server_port}/")
        page.frame_locator("iframe").locator("#runs tbody tr").first.wait_for(timeout=120_000)
        _Notebook.frame = f'<iframe src="{dashboard.address}/"></iframe>'
        with page.expect_console_message(lambda message: "frame-ancestors" in message.text):
            page.goto(f"http://localhost:{server.server_port}/")
    finally:
        page.close()
        opened.close()
        server.shutdown()
        server.server_close()
