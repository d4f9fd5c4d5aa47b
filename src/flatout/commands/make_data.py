"""Make the shapes dataset with a progress bar."""

from pathlib import Path
from typing import Any

from flatout.data.source.shapes import make_shapes
from flatout.errors import DataError
from flatout.training.display import Display


def make_shapes_dataset(
    folder: Path, classes: int, samples_per_class: int, size: int, val_per_class: int | None, seed: int, quiet: bool
) -> dict[str, Any]:
    if folder.suffix in (".tar", ".gz", ".tgz", ".zip"):
        raise DataError(
            f"shapes are written to a folder, and {folder} is named like an archive; give {folder.with_suffix('')}, "
            f"and if it is to be one file: tar -cf {folder.with_suffix('.tar')} -C {folder.with_suffix('')} ."
        )
    written = total = 0
    try:
        with Display(quiet) as display:
            for written, total in make_shapes(folder, classes, samples_per_class, size, val_per_class, seed):
                if written == 1:
                    display.begin("making images", 0, total)
                display.advance("making images", written, total, "")
    except OSError as error:
        raise DataError(f"cannot write images to {folder}: {error.strerror}; choose another folder") from None
    return {"folder": str(folder), "classes": classes, "samples": total, "size": size, "seed": seed}
