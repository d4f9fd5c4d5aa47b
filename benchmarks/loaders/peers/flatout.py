"""flatout's own loader: a folder, a pack of the original bytes, a pack of decoded pixels, a cache of decoded samples, and
the folder without the compiled decoder, as on a machine that has no compiler.

As shipped (`--mode epochs`) its variants are SETTINGS: nothing set, beside what a user could have set instead."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from contract import Job, notes, run_peer

if "fallback" in sys.argv:
    os.environ["FLATOUT_NATIVE"] = "0"  # read when flatout is imported

import flatout
from flatout.data.pixels.decode import native
from flatout.data.pixels.views import SHIPPED

VIEWS = {"rrc224": "train-224", "tiny64": "train-64"}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "off-1": {"cache": "off", "workers": 1},
    "off-2": {"cache": "off", "workers": 2},
    "memory": {"cache": "memory", "workers": 2},
    "disk": {"cache": "disk", "workers": 2},
}
PACK_SETTINGS = {f"pack-{name}": SETTINGS[name] for name in ("default", "off-2")}
PACK_MODES = {"pack": "original", "pack-decoded": "decoded"}


def convert(job: Job, target: Path) -> None:
    """Packs; the other variants read the folder as it is."""
    program = [sys.executable, "-c", "from flatout.cli.main import run; run()"]
    command = [*program, "data", "pack", str(job.data), str(target), "--mode", PACK_MODES.get(job.variant, "original")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    if (native is None) != (job.variant == "fallback"):
        raise SystemExit("flatout's compiled decoder is missing, so this would measure Pillow; run make install")
    cache = "memory" if job.variant == "cache" else "off"
    view = SHIPPED[VIEWS[job.task]]
    if job.variant == "scaled":
        view = replace(view, name=f"{view.name}-scaled", decode="scaled")
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


def epochs(job: Job, path: Path) -> Iterator[Iterable[torch.Tensor]]:
    """The README's call: flatout.open_batches(path, view=..., batch_size=...), and what the variant sets."""
    settings = {**SETTINGS, **PACK_SETTINGS}[job.variant]
    source = flatout.open_batches(path, view=VIEWS[job.task], batch_size=job.batch, **settings)
    try:
        for epoch in itertools.count():
            yield (batch.images for batch in source.epoch(epoch))
    finally:
        notes.extend(source.notes)


if __name__ == "__main__":
    folder_variants = ("folder", "cache", "fallback", "scaled", *SETTINGS)
    variants = (*folder_variants, *PACK_MODES, *PACK_SETTINGS)
    flatout.open_batches  # noqa: B018 - imports are no part of the first batch
    shared_pack = dict.fromkeys(PACK_SETTINGS, "flatout-pack")
    run_peer("flatout", ("flatout",), batches, convert, variants, folder_variants, epochs, shared_pack)
