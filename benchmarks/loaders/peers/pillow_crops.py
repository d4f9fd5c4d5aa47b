"""The augmentations for peers that leave them to the user: parameters as torchvision draws them, pixels by Pillow."""

import math
import random

import numpy as np
from contract import TINY_PAD_PIXELS
from PIL import Image


def random_resized_box(width: int, height: int) -> tuple[int, int, int, int]:
    """(left, top, crop width, crop height): area 8-100 %, aspect ratio 3/4-4/3, as torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left, top = random.randint(0, width - crop_width), random.randint(0, height - crop_height)
            return left, top, crop_width, crop_height
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def augment_pillow(image: Image.Image, task: str, pixels: int) -> np.ndarray:
    """One augmented image as uint8 HWC."""
    image = image.convert("RGB")
    if task == "rrc224":
        left, top, width, height = random_resized_box(*image.size)
        image = image.crop((left, top, left + width, top + height)).resize((pixels, pixels), Image.Resampling.BILINEAR)
    else:
        left, top = (random.randint(-TINY_PAD_PIXELS, TINY_PAD_PIXELS) for _ in range(2))
        image = image.crop((left, top, left + pixels, top + pixels))  # Pillow fills what lies outside with black
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)
