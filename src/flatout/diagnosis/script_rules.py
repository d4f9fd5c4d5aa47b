"""What only a script can have wrong: its own code in the loop, and debugging that was left on."""

from __future__ import annotations

import re

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.script_signals import OWN_PARTS, HotLine, ScriptSignals
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_OWN_SHARE, _OWN_SECONDS = 0.05, 0.004  # a step
_LARGE_SHARE, _LEAST_SECONDS = 0.10, 0.001  # below, it is what a loop in Python takes anyway
_READS_BACK = (".item()", ".cpu()", ".tolist()", ".numpy()", "synchronize(", "float(loss", "float(total")
_WRITES = ("print(", ".write(", "log(", "logger.", "logging.", "add_scalar", "tqdm", ".flush(")
_SAVES = ("pickle.dump(", "save_pretrained(", "save_file(", "np.save", "numpy.save", "joblib.dump(", "save_model(")
_SAVING = re.compile(r"(^|_)(save|checkpoint|upload|backup)(_|$)")  # functions of the script, by their names
_LOGGING = re.compile(r"^_?(log|emit|report|track)(_(metric|dict|scalar|step|loss|losses|value|row|event)s?)?$")
_TAKES = re.compile(r"^(for|while|return|yield|with)\b|[^=!<>]=[^=]|:=")  # a line that is given something
_DEBUGGING = {
    "detect_anomaly": (
        "torch.autograd.set_detect_anomaly(True) is on: every operation keeps a Python traceback",
        Interval(0.5, 0.1, 0.9),
    ),
    "profiler": ("torch's profiler is on: it records every operation", Interval(0.2, 0.02, 0.6)),
    "launch_blocking": (
        "CUDA_LAUNCH_BLOCKING=1 is set: the host waits for every kernel",
        Interval(0.3, 0.05, 0.7),
    ),
}
"""By what the recorder saw: in words, and what of forward and backward it may cost."""


def debugging_left_on(signals: Signals, script: ScriptSignals) -> Finding | None:
    """How much it costs is not measured: the interval is wide, and the remedy free."""
    found = [_DEBUGGING[name] for name in script.debugging if name in _DEBUGGING]
    if not found:
        return None
    title, share = max(found, key=lambda each: each[1].value)
    computing = signals.net("forward", "backward")
    evidence = (
        f"forward and backward take {format_seconds(computing)} of the run; what of it is its doing is a guess",
    )
    fix = Fix("take it out: it is for finding one mistake, not for training")
    return saving(signals, "debugging-left-on", "host", title, evidence, fix, share * computing)


def your_code(signals: Signals, script: ScriptSignals) -> Finding | None:
    """Time of the training thread that is neither the loader's, the model's nor the optimizer's."""
    stepping = signals.time.after_start_seconds - script.exit_seconds
    seconds = max(0.0, signals.time.part("other") - script.exit_seconds) * script.own_share
    if not signals.step.done or stepping <= 0 or seconds / stepping <= _OWN_SHARE:
        return None
    if seconds / signals.step.done < (_LEAST_SECONDS if seconds / stepping > _LARGE_SHARE else _OWN_SECONDS):
        return None
    own_lines = script.own_lines()
    line = own_lines[0] if own_lines else None
    named = ""
    if line is not None:
        share = script.share(line, *OWN_PARTS)
        named = f", {percent(share)} of that in {line.shown}"
    return saving(
        signals,
        "your-code",
        _cause(line),
        f"The script's own code between loader, model and optimizer takes {percent(seconds / stepping)} of the run"
        f"{named}",
        (
            f"{format_seconds(seconds / signals.step.done)} a step, {format_seconds(seconds)} in all",
            *(f"{percent(script.share(each, *OWN_PARTS))} {each.shown}" for each in own_lines[:3]),
        ),
        Fix(_advice(line, script.hottest("beside"))),
        Interval(seconds * 0.8, seconds * 0.4, seconds),
    )


def _cause(line: HotLine | None) -> str:
    if line is None:
        return "host"
    if _saves(line):
        return "checkpoint"
    return "data-workers" if line.part == "other_waits" and _TAKES.search(line.text) else "host"


def _saves(line: HotLine) -> bool:
    return any(word in line.text for word in _SAVES) or bool(_SAVING.search(line.function))


def _advice(line: HotLine | None, beside: HotLine | None) -> str:
    text = "" if line is None else line.text
    if line is not None and line.part == "other_waits":
        cheaper = "what they do" if beside is None else f"{beside.shown}, which runs meanwhile,"
        todo = "do not wait at every step"
        if _TAKES.search(text):
            todo = "have more of them at work, or ask for the next batch before this one is used"
        return f"it waits for other threads or processes: {todo}, or make {cheaper} cheaper"
    if any(word in text for word in _READS_BACK):
        return "it waits for the device: keep the value as a tensor and read it every 50 steps"
    if line is not None and _saves(line):
        return "save more rarely, or in another thread from a copy"
    if any(word in text for word in _WRITES) or (line is not None and _LOGGING.search(line.function)):
        return "log every 50th step, or from another thread"
    if "sleep(" in text:
        return "take the wait out"
    return "do it less often, on the whole batch at once, or in the dataset, where workers do it beside the step"


def iterator_for_every_batch(signals: Signals, script: ScriptSignals) -> Finding | None:
    """next(iter(loader)): workers start, or the order is drawn, for one batch and all is thrown away."""
    passes, steps = len({step.epoch for step in signals.steps}), signals.step.done
    samples, batch = script.loader.get("samples"), script.loader.get("batch_size")
    whole = isinstance(samples, int) and isinstance(batch, int) and samples <= batch  # one batch is all there is
    seconds = signals.net("data_wait")
    if steps < 10 or passes < 0.8 * steps or whole or signals.time.share(seconds) <= _OWN_SHARE:
        return None
    return saving(
        signals,
        "iterator-for-every-batch",
        "epoch-start",
        "The DataLoader's iterator is made anew for every batch: "
        f"{percent(signals.time.share(seconds))} of the run waits for it",
        (f"{passes} iterators for {steps} steps, {format_seconds(seconds / steps)} each",),
        Fix("make it once, batches = iter(loader), and take next(batches) until it ends"),
        Interval(seconds * 0.9, seconds * 0.5, seconds),
    )


SCRIPT_RULES = (your_code, debugging_left_on, iterator_for_every_batch)
