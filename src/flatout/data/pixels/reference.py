"""From a decoded image and its draws to the pixels of one sample: the reference that every fast path equals."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from flatout.data.pixels import draws
from flatout.data.pixels.decode import PILLOW_13, Shrunk, Undecodable, decode_shrunk

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]  # x, y, width, height
_SHEAR, _TRANSLATE, _ROTATE_DEGREES = 0.99, 32 / 224, 135.0  # strongest settings of TrivialAugment (wide)


def crop_box(row: NDArray[np.float64], width: int, height: int) -> Box:
    """The crop of an image of this size, as x, y, width, height in whole pixels."""
    if row[draws.KIND] == 0:
        side = max(1, round(min(width, height) * float(row[draws.FRACTION])))
        return (width - side) // 2, (height - side) // 2, side, side
    root = math.sqrt(width * height)
    for wide, high in zip(row[draws.WIDTHS].tolist(), row[draws.HEIGHTS].tolist(), strict=True):
        w, h = round(wide * root), round(high * root)
        if 0 < w <= width and 0 < h <= height:
            x = min(math.floor(row[draws.OFFSET_X] * (width - w + 1)), width - w)
            y = min(math.floor(row[draws.OFFSET_Y] * (height - h + 1)), height - h)
            return x, y, w, h
    w, h = width, height
    if width / height < 3 / 4:
        h = min(height, round(width / 0.75))
    elif width / height > 4 / 3:
        w = min(width, round(height * (4 / 3)))
    return (width - w) // 2, (height - h) // 2, w, h


def choose_shrink(box: Box, side: int) -> int:
    """The most of 1, 2, 4 and 8 that leaves the box no smaller than the result: what libjpeg can decode to."""
    return max(shrink for shrink in (1, 2, 4, 8) if shrink == 1 or min(box[2:]) // shrink >= side)


def shrink_box(box: Box, shrink: int) -> Box:
    """Edges at the nearest whole pixel of the smaller picture."""
    left, top, right, bottom = (
        (edge + shrink // 2) // shrink for edge in (box[0], box[1], box[0] + box[2], box[1] + box[3])
    )
    return left, top, right - left, bottom - top


def decode_scaled(data: bytes | memoryview, row: NDArray[np.float64], side: int) -> Shrunk:
    """An image no larger than its crop needs."""
    return decode_shrunk(data, lambda width, height: choose_shrink(crop_box(row, width, height), side))


def place_shrunk(shrunk: Shrunk, row: NDArray[np.float64], side: int, out: Pixels, by_torch: bool = False) -> None:
    """As place(), but only the crop ever becomes an array."""
    x, y, w, h = shrink_box(crop_box(row, shrunk.width, shrunk.height), shrunk.shrink)
    crop = shrunk.image.crop((x, y, x + w, y + h))
    if not by_torch:
        crop = crop.resize((side, side), Image.Resampling.BILINEAR)
    _place_crop(np.asarray(crop), row, side, out, by_torch)


def place(image: Pixels, row: NDArray[np.float64], side: int, out: Pixels, by_torch: bool = False) -> None:
    """Crop, resize (antialiased), shift and flip an [h, w, 3] image into `out`, [3, side, side]."""
    x, y, w, h = crop_box(row, image.shape[1], image.shape[0])
    _place_crop(image[y : y + h, x : x + w], row, side, out, by_torch)


def _place_crop(cropped: Pixels, row: NDArray[np.float64], side: int, out: Pixels, by_torch: bool) -> None:
    if cropped.shape[:2] != (side, side):
        cropped = resized_by_torch(cropped.copy(), side) if by_torch else _resized(cropped, side)
    pixels = cropped.transpose(2, 0, 1)
    dx, dy = int(row[draws.SHIFT_X]), int(row[draws.SHIFT_Y])
    if dx or dy:
        pixels = _shifted(pixels, dx, dy)
    out[...] = pixels[:, :, ::-1] if row[draws.FLIP] else pixels


def _resized(image: Pixels, side: int) -> Pixels:
    resized = Image.fromarray(np.ascontiguousarray(image)).resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def resized_by_torch(image: Pixels, side: int) -> Pixels:
    """Within 1 of Pillow, but for one pixel in many thousands, in the order of Pillow's two passes. `image` is written
    to by nobody, but torch wants to be allowed to."""
    import torch  # where the compiled decoder is, nobody in here needs it

    height, width = image.shape[:2]
    down_first = PILLOW_13 and height > side and height - side > 2 * (width - side)
    with torch.inference_mode():
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
        for size in [(side, width), (side, side)] if down_first else [(side, side)]:
            pixels = torch.nn.functional.interpolate(pixels, size=size, mode="bilinear", antialias=True)
        resized: Pixels = pixels[0].permute(1, 2, 0).numpy()
    return resized


def _shifted(pixels: Pixels, dx: int, dy: int) -> Pixels:
    """out[y, x] = pixels[y + dy, x + dx], black outside."""
    side = pixels.shape[1]
    out = np.zeros_like(pixels, order="C")
    dx, dy = max(-side, min(side, dx)), max(-side, min(side, dy))  # farther out it is all black
    rows, columns = slice(max(0, -dy), min(side, side - dy)), slice(max(0, -dx), min(side, side - dx))
    out[:, rows, columns] = pixels[:, max(0, dy) : min(side, side + dy), max(0, dx) : min(side, side + dx)]
    return out


def place_raw(image: Pixels, out: Pixels) -> None:
    """The image as it is; all samples of a raw view must have one size."""
    if image.shape[:2] != out.shape[1:]:
        raise Undecodable(
            f"{image.shape[1]} x {image.shape[0]} pixels, but the raw view holds {out.shape[2]} x {out.shape[1]}"
        )
    out[...] = image.transpose(2, 0, 1)


def recolour(pixels: Pixels, drawn: draws.Draws, slot: int, erase_fill: tuple[int, int, int]) -> None:
    """Colour jitter, TrivialAugment and erasing, in place."""
    if drawn.colour is not None:
        _jitter(pixels, *drawn.colour[slot].tolist())
    if drawn.trivial is not None:
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        pixels[...] = np.asarray(_trivial(image, *drawn.trivial[slot].tolist())).transpose(2, 0, 1)
    if drawn.erase is not None:
        side = pixels.shape[1]
        x, y, w, h = (round(share * side) for share in drawn.erase[slot].tolist())
        pixels[:, y : y + h, x : x + w] = np.array(erase_fill, np.uint8)[:, None, None]


def _jitter(pixels: Pixels, brightness: float, contrast: float, saturation: float) -> None:
    values = np.clip(pixels.astype(np.float32) * np.float32(brightness), 0, 255)
    # the grey level is summed in whole numbers: a float sum would depend on the order numpy adds in
    grey_mean = np.float32(int(_grey(values).astype(np.int64).sum()) / values[0].size)
    values = np.clip(grey_mean + (values - grey_mean) * np.float32(contrast), 0, 255)
    grey = _grey(values)[None]
    values = np.clip(grey + (values - grey) * np.float32(saturation), 0, 255)
    pixels[...] = np.rint(values).astype(np.uint8)


def _grey(values: NDArray[np.float32]) -> NDArray[np.float32]:
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    grey: NDArray[np.float32] = np.rint(values[0] * weights[0] + values[1] * weights[1] + values[2] * weights[2])
    return grey


def _trivial(image: Image.Image, choice: float, strength: float, sign: float) -> Image.Image:
    """One of fourteen operations at a strength in [0, 1)."""
    signed = strength if sign < 0.5 else -strength
    match int(choice * 14):
        case 0:
            return image
        case 1:
            return _affine(image, (1, signed * _SHEAR, 0, 0, 1, 0))
        case 2:
            return _affine(image, (1, 0, 0, signed * _SHEAR, 1, 0))
        case 3:
            return _affine(image, (1, 0, round(signed * _TRANSLATE * image.width), 0, 1, 0))
        case 4:
            return _affine(image, (1, 0, 0, 0, 1, round(signed * _TRANSLATE * image.height)))
        case 5:
            return image.rotate(signed * _ROTATE_DEGREES)
        case 6:
            return ImageEnhance.Brightness(image).enhance(1 + signed * 0.99)
        case 7:
            return ImageEnhance.Color(image).enhance(1 + signed * 0.99)
        case 8:
            return ImageEnhance.Contrast(image).enhance(1 + signed * 0.99)
        case 9:
            return ImageEnhance.Sharpness(image).enhance(1 + signed * 0.99)
        case 10:
            return ImageOps.posterize(image, 8 - round(strength * 6))
        case 11:
            return ImageOps.solarize(image, round(255 * (1 - strength)))
        case 12:
            return ImageOps.autocontrast(image)
        case _:
            return ImageOps.equalize(image)


def _affine(image: Image.Image, coefficients: tuple[float, float, float, float, float, float]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients)
