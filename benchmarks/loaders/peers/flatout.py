"""flatout's own loader: a folder, a pack of the original bytes, a pack of decoded pixels, a cache of decoded samples, and
the folder without the compiled decoder, as on a machine that has no compiler."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from contract import Job, run_peer

if "fallback" in sys.argv:
    os.environ["FLATOUT_NATIVE"] = "0"  # read when flatout is imported

import flatout
from flatout.data.decode import native

VIEWS = {"rrc224": "train-224", "tiny64": "train-64"}
PACK_MODES = {"pack": "original", "pack-decoded": "decoded"}


def convert(job: Job, target: Path) -> None:
    """Packs; the other variants read the folder as it is."""
    program = [sys.executable, "-c", "from flatout.cli.main import run; run()"]
    command = [*program, "data", "pack", str(job.data), str(target), "--mode", PACK_MODES[job.variant]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    if (native is None) != (job.variant == "fallback"):
        raise SystemExit("flatout's compiled decoder is missing, so this would measure Pillow; run make install")
    cache = "memory" if job.variant == "cache" else "off"
    view = VIEWS[job.task]
    source = flatout.open_batches(path, view=view, batch_size=job.batch, seed=0, workers=job.workers, cache=cache)
    first_epoch = 0
    if job.variant == "cache":
        if any("cache: off" in note for note in source.notes):
            raise SystemExit(f"the decoded samples were not cached: {'; '.join(source.notes)}")
        for _ in source.epoch(0):  # fills the cache
            pass
        first_epoch = 1
    for epoch in itertools.count(first_epoch):
        for batch in source.epoch(epoch):
            yield flatout.normalize(batch.images) if job.is_float else batch.images


if __name__ == "__main__":
    folder_variants = ("folder", "cache", "fallback")
    variants = (*folder_variants, *PACK_MODES)
    run_peer("flatout", ("flatout",), batches, convert, variants, folder_variants)
