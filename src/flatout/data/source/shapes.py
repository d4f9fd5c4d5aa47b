"""Synthesise a learnable JPEG dataset: coloured shapes on noise, the same bytes every time."""

import io
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from flatout.errors import DataError
from flatout.sampling import uniforms

KINDS = ("circle", "square", "triangle", "star", "cross", "ring", "bars", "moon")
_GOLDEN = 0.6180339887498949
_OVERSAMPLE = 2  # drawn larger, then reduced: smooth edges


def make_shapes(
    folder: Path, classes: int, samples_per_class: int, size: int, val_per_class: int | None = None, seed: int = 0
) -> Iterator[tuple[int, int]]:
    """Write train/<class>/ and val/<class>/ under `folder`; yields (written, total) for a progress bar."""
    if classes < 2 or samples_per_class < 1 or not 8 <= size <= 4096:
        raise DataError(
            f"cannot make {classes} classes of {samples_per_class} samples at {size} pixels; "
            "give at least 2 classes, 1 sample per class and a size from 8 to 4096"
        )
    val = max(1, samples_per_class // 5) if val_per_class is None else val_per_class
    plan = [
        (split, label, number)
        for split, count in (("train", samples_per_class), ("val", val))
        for label in range(classes)
        for number in range(count)
    ]
    for written, (split, label, number) in enumerate(plan, 1):
        path = folder / split / class_name(label, classes) / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        sample = label * 2**20 + number + (2**40 if split == "val" else 0)
        _write(path, draw_shape(label, size, uniforms(seed, 0, np.array([sample]), 0x10, 12)[0].tolist(), sample))
        yield written, len(plan)


def class_name(label: int, classes: int) -> str:
    return f"{label:0{len(str(classes - 1))}d}-{KINDS[label % len(KINDS)]}"


def draw_shape(label: int, size: int, u: list[float], sample: int) -> bytes:
    """One JPEG: the class gives kind and hue; place, scale, turn, brightness and background are random."""
    canvas = size * _OVERSAMPLE
    background = _noise(size, u[0:3], sample).resize((canvas, canvas), Image.Resampling.BILINEAR)
    mask = Image.new("L", (canvas, canvas))
    radius = canvas * (0.22 + 0.14 * u[3])
    centre = (canvas * (0.35 + 0.3 * u[4]), canvas * (0.35 + 0.3 * u[5]))
    _draw(ImageDraw.Draw(mask), KINDS[label % len(KINDS)], centre, radius, 2 * math.pi * u[6])
    hue = (label // len(KINDS) * _GOLDEN + label % len(KINDS) / len(KINDS) + 0.02 * (u[7] - 0.5)) % 1
    colour = Image.new("HSV", (canvas, canvas), (round(255 * hue), 150 + round(80 * u[8]), 170 + round(80 * u[9])))
    background.paste(colour.convert("RGB"), mask=mask)
    image = background.resize((size, size), Image.Resampling.BOX)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=88)
    return out.getvalue()


def _noise(size: int, u: list[float], sample: int) -> Image.Image:
    coarse = max(2, size // 8)
    values = uniforms(0, 1, np.arange(coarse * coarse) + sample * 2**20, 0x11, 3).reshape(coarse, coarse, 3)
    base = 40 + 90 * np.array(u)
    pixels = np.clip(base + (values - 0.5) * 70, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR).filter(ImageFilter.SMOOTH)


def _draw(pen: ImageDraw.ImageDraw, kind: str, centre: tuple[float, float], radius: float, turn: float) -> None:
    x, y = centre

    def around(*points: tuple[float, float]) -> list[tuple[float, float]]:
        """Polar points (angle in turns, share of the radius) as pixels."""
        return [
            (x + radius * r * math.cos(turn + a * math.tau), y + radius * r * math.sin(turn + a * math.tau))
            for a, r in points
        ]

    disc = (x - radius, y - radius, x + radius, y + radius)
    match kind:
        case "circle":
            pen.ellipse(disc, fill=255)
        case "ring":
            pen.ellipse(disc, fill=0, outline=255, width=max(1, int(radius * 0.3)))
        case "square":
            pen.polygon(around(*((k / 4, 1.1) for k in range(4))), fill=255)
        case "triangle":
            pen.polygon(around(*((k / 3, 1.25) for k in range(3))), fill=255)
        case "star":
            pen.polygon(around(*((k / 10, 1.25 if k % 2 == 0 else 0.5) for k in range(10))), fill=255)
        case "cross":
            for k in (0, 0.25):
                pen.line(around((k, 1.1), (k + 0.5, 1.1)), fill=255, width=max(1, int(radius * 0.55)))
        case "bars":
            for shift in (0.12, 0.38):
                pen.line(around((shift, 1.1), (0.5 - shift, 1.1)), fill=255, width=max(1, int(radius * 0.3)))
                pen.line(around((-shift, 1.1), (0.5 + shift, 1.1)), fill=255, width=max(1, int(radius * 0.3)))
        case _:
            pen.ellipse(disc, fill=255)
            (cut_x, cut_y), cut = around((0, 0.6))[0], radius * 0.85
            pen.ellipse((cut_x - cut, cut_y - cut, cut_x + cut, cut_y + cut), fill=0)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)  # an interrupted run leaves no half image behind
