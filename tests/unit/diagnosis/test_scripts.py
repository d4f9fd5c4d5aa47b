"""A recorded script hears of DataLoader, lines and torch, never of a recipe."""

from dataclasses import replace
from typing import Any

from constructed import signals

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.script_signals import HotLine, ScriptSignals, read_script
from flatout.diagnosis.scripts import in_script_words, your_code
from flatout.diagnosis.verdict import explain_signals

LINES = (
    HotLine("other", "/me/train.py", 57, "main", 30, "print(loss.item())"),
    HotLine("other_torch", "/me/train.py", 40, "main", 10, "loss = F.cross_entropy(out, y)"),
    HotLine("other", "/me/train.py", 61, "main", 10, "metrics.update(out)"),
    HotLine("loading", "/me/data.py", 12, "__getitem__", 9, "image = slow(image)"),
)


def script(**given: Any) -> ScriptSignals:
    return ScriptSignals(**{"loader": {"num_workers": 0}, "lines": LINES, **given})


def found(id: str, cause: str = "data-workers", title: str = "t", changes: dict[str, Any] | None = None) -> Finding:
    return Finding(id, cause, title, (), Fix("set it", changes or {"data.workers": 2}))


def test_a_fix_names_arguments_of_dataloader_and_the_line() -> None:
    told = in_script_words(replace(signals(), script=script()), [found("no-workers", title="x (data.workers = 0)")])[0]
    assert "DataLoader(num_workers=" in told.fix.text
    assert "persistent_workers=True" in told.fix.text
    assert (told.title, told.fix.changes) == ("x (num_workers=0)", {})
    assert "data.py:12" in told.evidence[0]


def test_what_needs_a_recipe_is_silent_and_a_plugins_rule_is_not() -> None:
    told = in_script_words(
        replace(signals(), script=script()),
        [found("staging-pays"), found("host-time"), found("rule-mine", cause="host")],
    )
    assert [finding.id for finding in told if finding.id != "your-code"] == ["rule-mine"]


def test_without_workers_what_a_batch_consists_of_is_no_cause() -> None:
    told = in_script_words(
        replace(signals(), script=script()), [found("augment-bound", cause="data-augment"), found("no-workers")]
    )
    assert [(finding.id, finding.cause) for finding in told if finding.id != "your-code"] == [
        ("augment-bound", None),
        ("no-workers", "data-workers"),
    ]


def test_your_own_code_is_told_with_its_hottest_line_and_without_torchs() -> None:
    base = signals()
    time = replace(base.time, wall_seconds=12.0, parts={"startup": 0.0, "other": 5.0, "forward": 7.0})
    now = replace(base, time=time)
    told = your_code(now, script(exit_seconds=1.0))
    assert told is not None
    assert (told.cause, round(told.saved_seconds, 2)) == (
        "host",
        round(0.8 * 4.0 * 0.8, 2),
    )  # 4 s, 80 % of them its own
    assert "train.py:57" in told.title
    assert "keep the value as a tensor" in told.fix.text
    assert your_code(replace(now, time=replace(time, parts={"other": 0.1})), script()) is None
    assert explain_signals(replace(now, script=script())).cause == "host"


def test_a_damaged_record_says_nothing() -> None:
    assert read_script({}) is None
    assert read_script({"recorded": {"loader": 3, "lines": [1, {"samples": "x"}]}}) is not None


def test_a_script_that_saves_at_every_step_is_promised_most_of_that_time() -> None:
    """It has no recipe that says how often."""
    busy = replace(signals(checkpoints=200, parts={"checkpoint": 6.0}), script=script())
    explained = explain_signals(busy)
    assert explained.cause == "checkpoint"
    assert "save every 15 steps instead of every 1" in explained.verdict
    assert 5.0 < explained.findings[0].saved_seconds < 6.0
