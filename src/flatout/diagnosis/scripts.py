"""Findings of a recorded script, in its own language: arguments of DataLoader, lines of its files, calls of torch.

Rules stay as they are. A finding that has words here is told in them; one that speaks of a recipe and has none is not
told at all: the script has no recipe. What only a script can have wrong is in script_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.input import workers_needed
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.script_rules import SCRIPT_RULES
from flatout.diagnosis.script_signals import HotLine, ScriptSignals
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

Words = Callable[[Signals, ScriptSignals, Finding], Finding]

_AS_THEY_ARE = ("straggler", "diverged", "diverging", "hot-clock", "spot-price", "port-speed")


_PREPARING = ("augment-bound", "decode-bound", "slow-fetch", "disk-cap", "bursty-loading")
_LOADING = (*_PREPARING, "no-workers", "few-workers", "epoch-start")


def in_script_words(signals: Signals, findings: Iterable[Finding]) -> list[Finding]:
    """What can be said of a script; its own code comes in place of our records (host-time)."""
    script = signals.script
    assert script is not None
    own = [finding for rule in SCRIPT_RULES if (finding := rule(signals, script)) is not None]
    given = list(findings)
    if any(finding.id == "iterator-for-every-batch" for finding in own):
        given = [replace(finding, cause=None) if finding.id in _LOADING else finding for finding in given]
    told = [_tell(signals, script, finding) for finding in _workers_first(signals, given)]
    return [finding for finding in [*told, *own] if finding is not None]


def _workers_first(signals: Signals, findings: list[Finding]) -> list[Finding]:
    """Without any worker, or with fewer than the cores can feed, what preparing a batch consists of is the next
    question, not the cause."""
    found = [finding.id for finding in findings]
    if "no-workers" not in found:
        more = _more_workers(signals) if "augment-bound" in found else None
        if more is None:
            return findings
        findings = [*findings, more]
    return [replace(finding, cause=None) if finding.id in _PREPARING else finding for finding in findings]


def _more_workers(signals: Signals) -> Finding | None:
    """Where idle cores would end the wait. A recipe knows its augmentation and can make it cheaper; of a script's own
    code nothing is known but that another process can run it, too."""
    own, cores = signals.step.own_seconds, signals.host.cores
    if signals.input.workers == 0 or signals.input.active_workers >= cores or signals.step.seconds <= 0:
        return None
    faster = signals.step_with(cores)
    if faster - own > 0.5 * signals.step.wait_seconds:
        return None
    title = (
        f"Too few loader workers: {percent(signals.data_wait_share)} of the run waits for data while "
        f"{signals.idle_cores:.1f} of {cores} cores are idle"
    )
    return saving(signals, "few-workers", "data-workers", title, (), Fix(""), faster_steps(signals, faster))


def _tell(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding | None:
    if finding.id == "diverged" and "grew" in finding.title and not script.loader:
        return None  # without data that comes again, what is minimised may be a reward, which is to grow
    if finding.id == "startup-time" and not signals.step.done and not script.lines:
        return None  # no process of it trained: when it had started is not known
    if finding.id in _WORDS:
        return _WORDS[finding.id](signals, script, finding)
    known = finding.id in _AS_THEY_ARE or finding.id.startswith("rule-")
    text = finding.fix.text.replace("train.lr", "the learning rate").replace("train.clip_norm", "clip_grad_norm_")
    text = text.replace(" (flatout lr-find suggests one)", "")  # which takes a recipe
    return replace(finding, fix=Fix(text)) if known else None


def _failed(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    """In its own words: ours are not in them. Only what has no memory left says so in every library."""
    said = (signals.cause or "no cause was recorded").partition("; exit code")[0]
    memory = finding.cause == "memory"
    title = f"{'The run ran out of memory' if memory else 'The run failed'} after {signals.step.done} steps: {said}"
    fix = "a smaller batch_size, torch.utils.checkpoint or accumulation" if memory else "see the script's own output"
    return replace(finding, cause="memory" if memory else "unexplained", title=title, fix=Fix(fix))


def loader_call(signals: Signals, script: ScriptSignals, workers: int, prefetch: int | None = None) -> str:
    """The DataLoader that the script should build."""
    arguments = [f"num_workers={workers}", "persistent_workers=True"]
    if prefetch is not None:
        arguments.append(f"prefetch_factor={prefetch}")
    if signals.device.kind == "cuda" and not script.loader.get("pin_memory"):
        arguments.append("pin_memory=True")
    return f"DataLoader({', '.join(arguments)})"


def _of_a_stream(script: ScriptSignals, workers: int) -> str:
    """Each worker iterates over a copy of an IterableDataset."""
    if not script.loader.get("iterable") or workers < 2:
        return ""
    parts = "its IterableDataset must give each worker its part (torch.utils.data.get_worker_info())"
    return f"; {parts}, or all of it comes {workers} times"


def _workers_wanted(signals: Signals) -> int:
    seconds = signals.load.seconds if signals.load else signals.step.wait_seconds
    needed = max(signals.input.workers + 1, workers_needed(seconds, signals.step.own_seconds))
    return max(1, min(needed, max(1, signals.host.cores)))


def _loading_line(script: ScriptSignals) -> HotLine | None:
    return script.hottest("loading") or (script.hottest("data_wait") if not script.loader.get("num_workers") else None)


def _with_line(finding: Finding, line: HotLine | None, what: str = "most of it in") -> Finding:
    return finding if line is None else replace(finding, evidence=(*finding.evidence, f"{what} {line.shown}"))


def _no_workers(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    workers = _workers_wanted(signals)
    title = finding.title.replace("data.workers = 0", "num_workers=0")
    fix = Fix(f"{loader_call(signals, script, workers)} prepares them beside the step{_of_a_stream(script, workers)}")
    return _with_line(replace(finding, title=title, fix=fix), _loading_line(script))


def _few_workers(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    shallow = signals.input.prefetch < signals.input.workers
    call = loader_call(
        signals, script, signals.input.workers if shallow else _workers_wanted(signals), 2 if shallow else None
    )
    return _with_line(replace(finding, fix=Fix(f"use {call}")), _loading_line(script))


def _augment(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    title = finding.title.replace("Augmentation is the limit", "The dataset's own Python is the limit")
    title = title.replace("augmenting is", "it is")
    line = _loading_line(script)
    where = f"make {line.place} cheaper" if line is not None else "make transforms cheaper"
    fix = Fix(f"{where}, do it on the whole batch or the device, or take batches from flatout.open_batches(...)")
    return _with_line(replace(finding, title=title, fix=fix), line)


def _decode(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    fix = Fix(
        "store the images once in the size that is trained on, or take batches from flatout.open_batches(...), which "
        "decodes at reduced size and keeps what fits in memory"
    )
    return _with_line(replace(finding, fix=fix), _loading_line(script))


def _fetch(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    workers = max(4, 2 * signals.input.workers)
    title = finding.title.replace("Reading from the disk", "Waiting for a disk, a network or a lock in the dataset")
    title = title.replace("fetching is", "that is")
    call = loader_call(signals, script, workers, 4)
    fix = Fix(f"have more samples on their way with {call}, or bring the data near: one large file on a local disk")
    return _with_line(replace(finding, title=title, fix=fix), _loading_line(script))


def _bursts(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    deeper = 4 * max(2, int(script.loader.get("prefetch_factor") or 2))
    call = loader_call(signals, script, max(1, signals.input.workers), deeper)
    return replace(finding, fix=Fix(f"prepare further ahead with {call}"))


def _epoch_start(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    if signals.input.workers and script.loader.get("rebuilt"):
        call = loader_call(signals, script, signals.input.workers)
        return replace(
            finding, fix=Fix(f"build it once, before the loop over epochs: {call}; a new one starts its workers anew")
        )
    if signals.input.workers and not script.loader.get("persistent_workers"):
        return replace(
            finding, fix=Fix(f"keep the workers across epochs: {loader_call(signals, script, signals.input.workers)}")
        )
    inside = (
        line for line in script.lines if line.part == "data_wait" and not line.text.startswith(("for ", "async "))
    )
    line = next(inside, None)  # of a sampler or a dataset, not of the loop that waits for them
    where = "the sampler and the dataset's first sample" if line is None else f"what {line.place} does"
    return _with_line(
        replace(finding, fix=Fix(f"make {where} cheaper, keep it for all epochs, or make epochs longer")), line
    )


def _startup(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    line = script.hottest("startup")
    fix = Fix("keep what is computed before the first batch in a file, and train longer in one go")
    return _with_line(replace(finding, fix=fix), line)


def _validation(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    seconds = signals.time.part("validation")
    rarer = max(2, round(seconds / max(1e-9, signals.time.after_start_seconds) / 0.05))
    count, epochs = max(1, signals.time.validation_spans), signals.recipe.epochs
    title = finding.title.replace("Validation takes", "Validation (passes without gradients) takes")
    often = f"every {rarer} epochs"
    evidence = (f"{format_seconds(seconds)} in all, {format_seconds(seconds / max(1, epochs))} an epoch",)
    if count > 1.5 * epochs:  # within epochs
        every = max(1, round(signals.step.done / count))
        often = f"every {every * rarer} steps instead of every {every}"
        evidence = (f"{count} times, {format_seconds(seconds / count)} each",)
    fix = Fix(f"validate {often}, on fewer samples, or in larger batches")
    most = signals.net("validation")  # the rule asks a recipe how often it validates
    saved = Interval(most * (1 - 1 / rarer), most * 0.4, most)
    told = saving(signals, finding.id, "validation", title, evidence, fix, saved)
    return _with_line(told, script.hottest("validation"))


def _checkpoints(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    saves = max(1, signals.time.checkpoints)
    each, every = signals.time.part("checkpoint") / saves, max(1, round(signals.step.done / saves))
    rarer = max(10 * every, round(each / (0.02 * max(signals.step.seconds, 1e-6))))
    fix = Fix(f"save every {rarer} steps instead of every {every}, or in another thread from a copy")
    seconds = signals.net("checkpoint")  # the rule asks a recipe how often it saves
    saved = seconds * (1 - every / rarer)
    told = saving(
        signals, finding.id, "checkpoint", finding.title, finding.evidence, fix, Interval(saved, saved * 0.7, seconds)
    )
    return _with_line(told, script.hottest("checkpoint"), "in")


def _fixed(text: str) -> Words:
    return lambda signals, script, finding: replace(finding, fix=Fix(text))


def _busy_host(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    """Where others have the cores, threads that spin at barriers take 3 to 5 times as long as those that sleep."""
    computing = signals.contention.outside("forward", "backward")
    if not script.threads_spin or signals.device.kind != "cpu" or computing == 0:
        return finding
    sleeping = "GOMP_SPINCOUNT=1000 in the environment lets threads that wait for each other give up their cores"
    return replace(finding, fix=replace(finding.fix, text=f"{finding.fix.text}; where it must stay, {sleeping}"))


def _small_batch(signals: Signals, script: ScriptSignals, finding: Finding) -> Finding:
    larger = 8 * signals.recipe.batch_size
    text = f"batch_size={larger} with the learning rate scaled, or model = torch.compile(model)"
    return replace(finding, fix=Fix(text))


_WORDS: dict[str, Words] = {
    "failed": _failed,
    "no-workers": _no_workers,
    "few-workers": _few_workers,
    "augment-bound": _augment,
    "decode-bound": _decode,
    "slow-fetch": _fetch,
    "disk-cap": _fetch,
    "bursty-loading": _bursts,
    "epoch-start": _epoch_start,
    "startup-time": _startup,
    "busy-host": _busy_host,
    "validation-time": _validation,
    "checkpoint-time": _checkpoints,
    "small-batch": _small_batch,
    "copy": _fixed("DataLoader(pin_memory=True) and batch.to(device, non_blocking=True); send uint8 and convert there"),
    "memory-growth": _fixed(
        "look for what is kept from step to step: losses with their graph (use loss.detach()), growing lists, caches"
    ),
    "memory-full": _fixed("torch.utils.checkpoint gives room for a larger batch, for a third more compute"),
    "memory-headroom": _fixed("a larger batch_size, with the learning rate scaled"),
    "optimizer-time": _fixed(
        "a larger batch makes fewer of these steps; fused=True or foreach=True makes them shorter"
    ),
    "too-many-processes": lambda signals, script, finding: replace(
        finding, fix=Fix(loader_call(signals, script, max(1, signals.host.cores // signals.ranks_near)))
    ),
    "too-many-threads": _fixed("torch.set_num_threads(number of cores), or unset OMP_NUM_THREADS"),
    "exposed-communication": _fixed(
        "accumulate gradients under no_sync(), send them in 16 bits (register_comm_hook with bf16_compress_hook), or "
        "use a faster link"
    ),
    "unattributed": _fixed("record it again on a quiet machine"),
}
