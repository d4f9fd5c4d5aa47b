"""The run did not end well: what it died of."""

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals

_CAUSES = (
    (("ended without a word",), "unexplained", "dmesg says whether it was killed; the same command resumes"),
    (("cannot be used, more than",), "data-decode", "flatout data audit lists the samples that cannot be decoded"),
    (("out of memory", "cannot allocate memory"), "memory", "a smaller batch, gradient checkpointing or accumulation"),
    (
        ("not finite", "loss is nan", "loss is inf", "loss is -inf"),
        "diverged",
        "lower train.lr, set train.clip_norm, or look at bad_batch.json",
    ),
    (
        ("received no gradient", "ranks hold different", "ranks disagree"),
        "diverged",
        "wrap the model that is trained; checkpoint with use_reentrant=False",
    ),
    (("no room", "no space", "checkpoints in a row"), "checkpoint", "free some space, then the same command resumes"),
    (
        ("was not ready after", "store", "bucket", "no answer", "://"),
        "data-fetch",
        "flatout doctor says whether the store answers and how fast",
    ),
    (("worker",), "data-workers", "look at the worker's own message above; data.workers=0 shows it in the open"),
    (("rank", "peer"), "network", "flatout doctor measures the link between the nodes"),
)


def find(signals: Signals) -> Finding | None:
    if signals.status != "failed":
        return None
    said = signals.cause or "it left no cause"
    for words, cause, remedy in _CAUSES:
        if any(word in said.lower() for word in words):
            return _failed(signals, cause, remedy)
    return _failed(signals, "unexplained", "read the end of log.txt; the same command resumes")


def _failed(signals: Signals, cause: str, remedy: str) -> Finding:
    said = (signals.cause or "no cause was recorded").partition(";")[0].partition(". ")[0]  # the remedy follows anyway
    what = {"diverged": "Training diverged", "memory": "The run ran out of memory"}.get(cause, "The run failed")
    return Finding(
        cause if cause == "diverged" else "failed",
        cause,
        f"{what} after {signals.step.done} steps: {said}",
        tuple(f"step {number + 1}: loss {step.loss}" for number, step in enumerate(signals.steps) if step.loss)[-3:],
        Fix(remedy),
        urgent=True,
    )
