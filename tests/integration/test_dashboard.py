"""The dashboard in a real browser beside a real training run: it moves without a reload, acts only with the token."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import ATTACK, Dashboard, Visitor, chromium, serving
from training import DEADLINE_SECONDS, command, installed_command, write_recipe

pytest.importorskip("starlette", reason="the extra web is not installed")


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
    with serving(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


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
    for axis in ("time", "dollars"):
        page.get_by_role("link", name=f"by {axis}").click()
        page.wait_for_selector("#f-overlay section")
        assert page.locator("nav [aria-current]").inner_text() == f"by {axis}"
    visitor.close_quietly()


def test_a_live_run_moves_without_a_reload_stops_and_resumes(
    browser: Any, dashboard: Dashboard, folder: Path, shapes: Path
) -> None:
    changes = {
        "device": "emulated",
        "emulated__base_seconds": 0.01,
        "data__workers": 0,
        "data__cache": "off",
        "train__epochs": 4000,
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
    visitor = Visitor(browser, dashboard, "/")
    page = visitor.page
    page.evaluate("window.untouched = true")
    visitor.wait_until("[...document.querySelectorAll('#runs a')].some(a => a.textContent === 'live')")
    progress = "document.querySelector('#runs progress')?.value"
    visitor.wait_until(f"{progress} > 0")
    page.evaluate(f"window.before = {progress}")
    visitor.wait_until(f"{progress} > window.before")
    assert page.evaluate("window.untouched")
    page.get_by_role("link", name="live", exact=True).click()
    page.evaluate("window.untouched = true")
    page.wait_for_selector("#f-curves figure")
    curve = "document.querySelector('#f-curves figure .curve').getAttribute('d')"
    tile = "[...document.querySelectorAll('#f-tiles div')].find(d => d.innerText.startsWith('{}'))?.innerText"
    seen = [curve, *map(tile.format, ("cost", "waiting for data", "wall clock"))]
    page.evaluate(f"window.before = [{', '.join(seen)}]")
    page.locator("#f-curves figure .area").first.focus()
    for number, each in enumerate(seen):
        visitor.wait_until(f"{each} !== window.before[{number}]")
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


def test_record_with_a_dashboard_beside_it(tmp_path: Path) -> None:
    """It says its address, answers while the script runs, and ends with it; the script's output is its own."""
    (tmp_path / "script.py").write_text("import sys; print('ready', flush=True); sys.stdin.readline()\n")
    recording = subprocess.Popen(
        [Path(sys.executable).with_name("flatout"), "record", "--dashboard", "--", sys.executable, "script.py"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert recording.stderr is not None
    line = recording.stderr.readline()
    found = re.match(r"dashboard: (http://\S+)/\?token=", line)
    assert found, line
    with urllib.request.urlopen(f"{found.group(1)}/api/runs", timeout=DEADLINE_SECONDS) as answer:
        assert answer.status == 200
    out, _ = recording.communicate("go on\n", timeout=DEADLINE_SECONDS)
    assert recording.returncode == 0
    assert out == "ready\n"


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
