"""The report in a real browser: nothing loaded, nothing run but its own script, readable in every light and width."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import ATTACK, CHROMIUM, chromium
from flatout.runs.tables import read_table
from training import command

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def report(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, with a hostile class and the files that monitors, loader lanes and explain leave."""
    run = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(uninterrupted, run, symlinks=True)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "run": ATTACK, "cause": f"class {ATTACK} is empty"}))
    (run / "quarantine.csv").write_text(f"split,sample_id,name,reason\r\ntrain,3,train/{ATTACK}/a.jpg,not an image\r\n")
    began = float(read_table(run / "steps.csv")[0]["time_unix"])
    rows = [f"1,{n},{began + n / 10},0.1,0.{n % 9},{10**9},{10**5 * n},0.9" for n in range(100)]
    header = "attempt,seconds,time_unix,interval_seconds,cpu,rss_bytes,nic_eth0_received_bytes,gpu0_utilization"
    (run / "system.csv").write_text("\n".join([header, *rows]) + "\n")
    with (run / "spans" / "rank0.jsonl").open("a") as spans:
        for n in range(20):
            spans.write(
                json.dumps({"lane": f"loader {ATTACK}", "name": "decode", "step": n, "start": n / 5, "seconds": 0.1})
                + "\n"
            )
            spans.write(json.dumps({"lane": "queue", "name": "depth", "start": n / 5, "value": n % 3}) + "\n")
    (run / "findings.json").write_text(json.dumps([{"id": "x", "title": ATTACK, "evidence": ATTACK, "fix": ATTACK}]))
    finished = command("report", run, cwd=run.parent)
    assert finished.code == 0, finished.err
    return run / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class TaskSetup:
    """A page and all that it said and asked for."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(120_000)
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture(params=[("light", 1200), ("dark", 360)], ids=["light-desktop", "dark-phone"])
def opened(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[TaskSetup]:
    scheme, width = request.param
    found = TaskSetup(browser, report, width, scheme)
    yield found
    found.page.close()


CONTRASTS = """() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const selector of ["h1", "h2", "p", ".dim", "nav a", ".pill", ".note p", "dt", "dd", "td", "th", "summary", "footer p", ".label", ".figure"]) {
    for (const element of document.querySelectorAll(selector)) {
      const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
      const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      found[selector] = Math.min(found[selector] ?? 99, ratio);
    }
  }
  return found;
}"""


def test_the_page_is_whole_quiet_and_readable(opened: TaskSetup) -> None:
    page = opened.page
    assert opened.troubles == []
    assert len(opened.requests) == 1  # the page itself
    titles = page.locator("figcaption").all_inner_texts()
    for title in ("The wall clock of the main thread", "Loss", "Accuracy", "Learning rate", "Step time", "Epoch by epoch",
                  "The main thread over the run", "How busy parallel lanes were", "Queues", "A close look",
                  "CPU use", "GPU use", "Memory of the machine", "Network", "Step time against network use"):  # fmt: skip
        assert any(title in each for each in titles), title
    assert page.evaluate(
        "[...document.querySelectorAll('figure svg[role=img]')].every(s => s.getBoundingClientRect().width > 50)"
    )
    assert page.evaluate("[...document.querySelectorAll('svg[role=img]')].every(s => s.getAttribute('aria-label'))")
    assert page.evaluate("[...document.querySelectorAll('.curve')].every(p => p.getTotalLength() > 0)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    low = {name: ratio for name, ratio in page.evaluate(CONTRASTS).items() if ratio < 4.5}
    assert low == {}


def test_a_class_named_like_a_script_is_text(opened: TaskSetup) -> None:
    page = opened.page
    assert page.locator("script").count() == 1
    assert page.locator("h1").inner_text() == ATTACK
    page.locator("summary", has_text="quarantine").click()
    assert page.locator("th", has_text=f"train/{ATTACK}/a.jpg").is_visible()
    assert page.locator("#findings h3").inner_text() == ATTACK
    assert opened.troubles == []


def test_light_and_dark_differ(browser: Any, report: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        found = TaskSetup(browser, report, 800, scheme)
        grounds.append(found.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        found.page.close()
    assert grounds == ["rgb(246, 247, 249)", "rgb(14, 19, 24)"]


def test_values_by_keyboard_and_pointer_and_series_that_switch_off(opened: TaskSetup) -> None:
    page = opened.page
    figure = page.locator("figure", has=page.locator("figcaption", has_text="Loss"))
    area, tip = figure.locator(".area"), figure.locator(".tip")
    assert not tip.is_visible()
    area.focus()
    page.keyboard.press("End")
    assert "step 40" in tip.inner_text()
    assert "validation" in tip.inner_text()
    page.keyboard.press("Home")
    assert "step 1" in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    area.hover()
    assert "step" in tip.inner_text()
    button = figure.locator("button", has_text="validation")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert not figure.locator("g[data-series]").last.is_visible()
    area.focus()
    page.keyboard.press("End")
    assert "validation" not in tip.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.troubles == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_a_comparison_is_quiet_readable_and_only_text(
    browser: Any, report: Path, uninterrupted: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    target = tmp_path / "compare.html"
    finished = command("compare", report.parent, uninterrupted, "--html", target, cwd=tmp_path)
    assert finished.code == 0, finished.err
    found = TaskSetup(browser, target, width, scheme)
    page = found.page
    assert found.troubles == []
    assert len(found.requests) == 1
    assert page.get_by_text(ATTACK, exact=False).first.is_visible()
    assert page.locator("table").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    low = {name: ratio for name, ratio in page.evaluate(CONTRASTS).items() if ratio < 4.5}
    assert low == {}
    page.close()
