"""Make the shapes dataset with a progress bar."""

from pathlib import Path
from typing import Any

from flatout.app.display import Display
from flatout.data.shapes import make_shapes


def make_shapes_dataset(
    folder: Path, classes: int, samples_per_class: int, size: int, val_per_class: int | None, seed: int, quiet: bool
) -> dict[str, Any]:
    with Display(quiet) as display:
        written = total = 0
        for written, total in make_shapes(folder, classes, samples_per_class, size, val_per_class, seed):
            if written == 1:
                display.begin("making images", 0, total)
            display.advance("making images", written, total, "")
    return {"folder": str(folder), "classes": classes, "samples": total, "size": size, "seed": seed}
