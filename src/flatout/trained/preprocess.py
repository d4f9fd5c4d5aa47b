"""From a picture to what the model takes, by preprocessing.json. Needs numpy and Pillow, nothing else.

import onnxruntime, preprocess
rules = preprocess.read_rules("preprocessing.json")
session = onnxruntime.InferenceSession("model.onnx")
pixels = preprocess.prepare("picture.jpg", rules)[None]
(probabilities,) = session.run(None, {"pixels": pixels})
"""

import io
import json
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def read_rules(path: Any) -> dict[str, Any]:
    """The rules of preprocessing.json."""
    with open(path, encoding="utf-8") as file:
        rules: dict[str, Any] = json.load(file)
    return rules


def prepare(picture: Any, rules: dict[str, Any]) -> Any:
    """A path, the bytes of a file, or a PIL image -> [3, height, width]; uint8, or float32 where it is normalised."""
    image = picture if isinstance(picture, Image.Image) else _opened(picture)
    if rules["crop"]["kind"] == "centre-square":
        side = max(1, round(min(image.size) * rules["crop"]["fraction"]))
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    wanted = (rules["resize"]["width"], rules["resize"]["height"])
    if image.size != wanted:
        image = image.resize(wanted, getattr(Image.Resampling, rules["resize"]["filter"].upper()))
    pixels = np.asarray(image)
    if rules["channels"] == "BGR":
        pixels = pixels[:, :, ::-1]
    pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if rules["normalise"]["in_model"]:
        return pixels
    mean, std = (np.array(rules["normalise"][name], np.float32)[:, None, None] for name in ("mean", "std"))
    return (pixels.astype(np.float32) / 255 - mean) / std


def _opened(picture: Any) -> Image.Image:
    """Upright and RGB; alpha is dropped, 16 bits keep their upper 8."""
    image: Image.Image = Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture)
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray(np.clip(np.asarray(image) >> 8, 0, 255).astype(np.uint8))
    return image.convert("RGB")
