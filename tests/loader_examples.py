"""The examples of docs/use-the-loader.md as code, and pictures to run them on."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

PAGE = Path(__file__).parents[1] / "docs" / "use-the-loader.md"
CLASSES, PER_CLASS, BATCH = 3, 8, 4


def make_pictures(folder: Path) -> Path:
    for number in range(CLASSES * PER_CLASS):
        for split in ("train", "val"):
            path = folder / split / f"class-{number % CLASSES}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(coarse).resize((60 + number, 50)).save(path)
    return folder


def example(heading: str, *replaced: tuple[str, str]) -> str:
    """The code under a heading of the page; what is to be replaced must be there."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1]
    match = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert match is not None
    code = match.group(1)
    for old, new in replaced:
        assert old in code, f"{old!r} is no longer in the example under {heading!r}"
        code = code.replace(old, new)
    return code
