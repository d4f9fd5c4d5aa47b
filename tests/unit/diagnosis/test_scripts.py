"""A recorded script hears of DataLoader, lines and torch, never of a recipe."""

from dataclasses import replace
from typing import Any

from constructed import signals, steps

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.rules import exposed_communication
from flatout.diagnosis.script_rules import debugging_left_on, your_code
from flatout.diagnosis.script_signals import HotLine, ScriptSignals, read_script
from flatout.diagnosis.scripts import in_script_words
from flatout.diagnosis.signal_groups import HostRow, RankSignals
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


def starving(workers: int) -> dict[str, Any]:
    """All that workers do is the dataset's own code, and it takes three times as long as a step."""
    return {
        "steps": steps(own=0.03, wait=0.07),
        "workers": workers,
        "worker_kind": "process",
        "fetch_seconds": 0.0,
        "decode_seconds": 0.0,
        "augment_seconds": 0.1 * 200,
    }


def test_idle_cores_come_before_what_the_dataset_does() -> None:
    one = explain_signals(replace(signals(**starving(1), cores=4), script=script(loader={"num_workers": 1})))
    assert (one.cause, "DataLoader(num_workers=4, " in one.verdict) == ("data-workers", True)
    all_busy = explain_signals(replace(signals(**starving(1), cores=1), script=script(loader={"num_workers": 1})))
    assert all_busy.cause == "data-augment"


def test_what_a_script_died_of_is_told_in_its_own_words() -> None:
    said = (
        "OSError: Caught OSError in DataLoader worker process 1: OSError: no rank on s3://x; exit code 1 after step 9"
    )
    died = explain_signals(replace(signals(), status="failed", cause=said, script=script()))
    assert died.cause == "unexplained"
    assert said.partition("; exit")[0] in died.verdict
    memory = replace(signals(), status="failed", cause="RuntimeError: CUDA out of memory. Tried", script=script())
    assert explain_signals(memory).cause == "memory"


def test_debugging_that_was_left_on_is_named() -> None:
    read = read_script({"recorded": {"debugging": ["detect_anomaly", "of a later version"]}})
    assert read is not None
    told = debugging_left_on(signals(), read)
    assert told is not None
    assert ("set_detect_anomaly" in told.title, told.cause, told.saved_seconds > 0) == (True, "host", True)
    assert debugging_left_on(signals(), script()) is None


def test_saving_without_torch_save_is_a_checkpoint_by_its_line() -> None:
    line = HotLine("other", "/me/train.py", 80, "main", 30, "pickle.dump(model.state_dict(), file)")
    busy = replace(signals(parts={"other": 8.0}), script=script(lines=(line,)))
    assert explain_signals(busy).cause == "checkpoint"


def test_ranks_of_a_script_on_one_machine_may_wait_for_a_link_but_not_for_each_others_cores() -> None:
    ranks = RankSignals(world_size=2, communication_seconds=0.05)
    one = signals(ranks=ranks, device_kind="cpu", parts={"communication": 10.0})
    assert exposed_communication.find(one) is None
    assert exposed_communication.find(replace(one, script=script())) is not None
    crowded = signals(ranks=ranks, device_kind="cpu", parts={"communication": 10.0}, core_wait={"forward": 5.0})
    assert exposed_communication.find(replace(crowded, script=script())) is None


def test_the_line_of_a_slow_epoch_start_is_the_samplers_and_not_the_loops() -> None:
    lines = (
        HotLine("data_wait", "/me/train.py", 20, "main", 50, "for x, y in loader:"),
        HotLine("data_wait", "/me/data.py", 7, "__iter__", 20, "weights = weigh(everything)"),
    )
    slow = signals(steps=steps(gap=3.0))
    kept = {"num_workers": 4, "persistent_workers": True}
    told = explain_signals(replace(slow, script=script(lines=lines, loader=kept)))
    assert (told.cause, "data.py:7" in told.verdict) == ("epoch-start", True)


def test_an_iterator_for_every_batch_is_named_before_what_it_waits_for() -> None:
    anew = tuple(step._replace(epoch=at, batch_index=0) for at, step in enumerate(steps(own=0.03, wait=0.1)))
    loader = {"num_workers": 2, "samples": 640, "batch_size": 64}
    told = explain_signals(replace(signals(steps=anew, workers=2), script=script(loader=loader)))
    assert (told.cause, "batches = iter(loader)" in told.verdict) == ("epoch-start", True)
    one_batch = script(loader={**loader, "samples": 64})
    assert "iter(loader)" not in explain_signals(replace(signals(steps=anew, workers=2), script=one_batch)).verdict


def test_memory_that_grew_until_the_command_ended_is_named() -> None:
    """After the last step it lets go of what it holds, and the recorder's last look is at itself alone."""
    seconds = tuple(float(second) for second in range(40))
    grown = (*(1e9 + 50e6 * second for second in seconds[:-2]), 4e8, 4e7)
    trained = tuple(step._replace(time_unix=0.37 * at) for at, step in enumerate(steps(own=0.3)[:101]))
    told = explain_signals(replace(signals(seconds=seconds, resident_bytes=grown, steps=trained), script=script()))
    assert told.cause == "memory"


def test_own_code_of_a_few_milliseconds_counts_where_it_is_much_of_a_step() -> None:
    base = signals()

    def told(milliseconds: float) -> bool:
        own = 1e-3 * milliseconds * base.step.done
        time = replace(base.time, wall_seconds=own / 0.16, parts={"forward": own * 0.84 / 0.16, "other": own})
        return your_code(replace(base, time=time), script()) is not None

    assert told(3.0)
    assert not told(0.5)


def test_a_loss_that_grows_is_no_divergence_where_there_is_no_data() -> None:
    grown = Finding("diverged", "diverged", "Training diverged: the loss grew from 2.36 to 20.40", (), Fix(""))
    learning = replace(signals(), script=script(loader={}))
    assert "diverged" not in [finding.id for finding in in_script_words(learning, [grown])]
    assert "diverged" in [finding.id for finding in in_script_words(replace(learning, script=script()), [grown])]


def test_on_a_busy_host_threads_that_spin_are_told_to_sleep() -> None:
    def fix(kind: str = "cpu", spin: bool = True) -> str:
        busy = signals(device_kind=kind, core_wait={"forward": 4.0}, rows=(HostRow(20.0, 1.0, 4.0, 2.0),))
        given = found("busy-host", cause="host", changes={})
        return in_script_words(replace(busy, script=script(threads_spin=spin)), [given])[0].fix.text

    assert "GOMP_SPINCOUNT" in fix()
    assert {fix(kind="cuda"), fix(spin=False)} == {"set it"}


def own_code(line: HotLine, *more: HotLine) -> Finding:
    base = signals()
    time = replace(base.time, wall_seconds=12.0, parts={"startup": 0.0, "other": 5.0, "forward": 7.0})
    told = your_code(replace(base, time=time), script(lines=(line, *more)))
    assert told is not None
    return told


def test_a_wait_for_what_others_prepare_is_no_code_that_is_to_be_done_less_often() -> None:
    line = HotLine("other_waits", "/me/train.py", 42, "main", 50, "item = q.get()")
    told = own_code(line, HotLine("beside", "/me/train.py", 30, "produce", 40, "image = slow(image)"))
    assert (told.cause, "train.py:30" in told.fix.text) == ("data-workers", True)
    assert "train.py:42" in told.title
    joined = own_code(replace(line, text="writer.join()"))
    assert (joined.cause, "waits for other threads" in joined.fix.text) == ("host", True)


def test_a_function_says_by_its_name_what_its_line_is_for() -> None:
    line = HotLine("other", "/me/train.py", 46, "log", 50, "self.file.readline()")
    assert "log every 50th step" in own_code(line).fix.text
    assert "log every" not in own_code(replace(line, function="log_prob")).fix.text
    assert own_code(replace(line, function="upload_checkpoint")).cause == "checkpoint"


def test_a_stream_is_not_promised_workers_without_its_parts() -> None:
    def fix(iterable: bool) -> str:
        given = script(loader={"num_workers": 0, "iterable": iterable})
        waiting = replace(signals(steps=steps(own=0.03, wait=0.1), workers=0), script=given)
        return in_script_words(waiting, [found("no-workers")])[0].fix.text

    assert ("get_worker_info" in fix(True), "get_worker_info" in fix(False)) == (True, False)


def test_loaders_that_are_built_anew_every_epoch_are_to_be_built_once() -> None:
    slow = signals(steps=steps(gap=3.0), workers=2)
    loader = {"num_workers": 2, "persistent_workers": True, "rebuilt": True}
    assert "build it once" in explain_signals(replace(slow, script=script(loader=loader))).verdict
    assert (
        "build it once"
        not in explain_signals(replace(slow, script=script(loader={**loader, "rebuilt": False}))).verdict
    )


def test_validation_within_an_epoch_is_told_in_steps() -> None:
    base = signals(parts={"forward": 10.0, "validation": 10.0})
    given = found("validation-time", cause="validation", title="Validation takes 50 % of the run")

    def fix(spans: int) -> str:
        often = replace(base, time=replace(base.time, validation_spans=spans), script=script())
        return in_script_words(often, [given])[0].fix.text

    assert f"steps instead of every {round(base.step.done / 20)}" in fix(20)
    assert "epochs" in fix(base.recipe.epochs)


def test_memory_that_imports_filled_before_the_first_step_does_not_grow() -> None:
    seconds = tuple(float(second) for second in range(24))
    filled = tuple(1e8 + 30e6 * second for second in seconds)
    late = tuple(step._replace(time_unix=20.0 + 0.02 * at) for at, step in enumerate(steps(own=0.02)[:150]))
    told = explain_signals(replace(signals(seconds=seconds, resident_bytes=filled, steps=late), script=script()))
    assert told.cause != "memory"


def test_a_line_with_a_comprehension_is_one_place() -> None:
    lines = (
        HotLine("other", "/me/train.py", 35, "order", 39, "return [i for i in order]"),
        HotLine("other", "/me/train.py", 34, "<genexpr>", 29, "order = sorted(weigh(i) for i in everything)"),
        HotLine("other", "/me/train.py", 34, "order", 20, "order = sorted(weigh(i) for i in everything)"),
    )
    told = own_code(*lines)
    assert "train.py:34" in told.title
    assert sum("train.py:34" in each for each in told.evidence) == 1


def test_on_a_host_that_was_busy_while_it_started_what_holds_back_a_longer_run_is_told() -> None:
    slow = signals(steps=steps(own=0.03, wait=0.1), workers=0, rows=(HostRow(20.0, 1.0, 4.0, 2.0),))
    wall = slow.time.wall_seconds + 60.0
    parts = {**slow.time.parts, "startup": slow.time.part("startup") + 60.0}
    time = replace(slow.time, wall_seconds=wall, parts=parts, core_wait={"startup": 55.0})
    told = explain_signals(replace(slow, time=time, script=script())).verdict
    assert "waits for cores that other processes have" in told
    assert "A longer run is held back by something else: Batches are prepared in the training thread" in told


def test_a_command_that_never_trained_is_not_told_that_it_starts_slowly() -> None:
    def told(**given: Any) -> list[str]:
        never = replace(signals(steps=()), script=script(**given))
        return [finding.id for finding in in_script_words(never, [found("startup-time", cause="startup")])]

    assert told(lines=()) == []
    assert told() == ["startup-time"]
