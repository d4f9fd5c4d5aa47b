"""What flatout's own loader would give a recorded script that waits for an image folder: measured for a second."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flatout.diagnosis.verdict import Explanation
from flatout.errors import FlatoutError
from flatout.runs import Run
from flatout.untrusted import number

_CAUSES = ("data-workers", "data-decode", "data-augment", "data-fetch")
_SECONDS = 1.0
_WORTH_IT = 1.2  # times as many samples a second
_SMALL_SIDE = 96


def with_drop_in(run: Run, explanation: Explanation) -> Explanation:
    """The finding that the verdict comes from, with what flatout.open_batches gave of the same files; as it was where
    the script does not wait for an image folder of this machine, or gets as much from its own loader."""
    recorded = run.summary.get("recorded")
    loader = recorded.get("loader") if isinstance(recorded, Mapping) else None
    theirs = number((run.summary.get("throughput") or {}).get("samples_per_second"))
    if not isinstance(loader, Mapping) or not loader.get("image_folder") or not theirs:
        return explanation
    if explanation.cause not in _CAUSES or not Path(str(loader.get("root"))).is_dir():
        return explanation
    shape = loader.get("shape")
    side = number(shape[-1]) if isinstance(shape, list) and shape else None
    view = "train-64" if side and side <= _SMALL_SIDE else "train-224"
    try:
        ours = samples_per_second(str(loader["root"]), view, int(number(loader.get("batch_size")) or 64))
    except (FlatoutError, OSError):
        return explanation
    if ours < _WORTH_IT * theirs:
        return explanation
    told = (
        f"flatout.open_batches({str(loader['root'])!r}, view={view!r}) gave {ours:.0f} samples/s of the same files "
        f"just now, the script's loader {theirs:.0f}: {ours / theirs:.1f} times as many"
    )
    place = next(at for at, each in enumerate(explanation.findings) if each.cause == explanation.cause)
    leading = explanation.findings[place]
    findings = list(explanation.findings)
    findings[place] = replace(leading, evidence=(*leading.evidence, told))
    return replace(explanation, verdict=f"{explanation.verdict} Measured: {told}.", findings=tuple(findings))


def samples_per_second(path: str, view: str, batch_size: int) -> float:
    """Of the loader as it ships, in its first epochs, without what its start takes. Keeps nothing on a disk."""
    from flatout.commands.library import open_batches

    samples, started = 0, 0.0
    with open_batches(path, view, batch_size, cache="off", stage="off", max_quarantine_share=1.0) as source:
        for epoch in range(1_000_000):
            for batch in source.epoch(epoch):
                now = time.perf_counter()
                if started:
                    samples += len(batch.sample_ids)
                    if now - started > _SECONDS:
                        return samples / (now - started)
                else:
                    started = now
    return 0.0
