"""Every kind of finding of an audit: how bad it is, what was found, and what to do."""

from typing import Literal

from flatout.data.pixels.picture_limits import MAX_EXPANSION, MAX_FILE_BYTES, MAX_PIXELS, MAX_SCANS
from flatout.units import format_bytes

Severity = Literal["problem", "warning", "note"]
FEW_SAMPLES = 10  # a training class below this hardly teaches anything
LONG_NAME_BYTES = 250  # of 255: a longer name leaves no room for the suffix of a temporary file

TEXTS: dict[str, tuple[Severity, str, str]] = {
    "class-mismatch": (
        "problem",
        "classes that only one of train and val has",
        "Training refuses such a dataset, since labels would not match: give both splits the same class folders.",
    ),
    "empty-class": (
        "problem",
        "class folders without a sample",
        "Training refuses an empty class: add images or remove the folder.",
    ),
    "empty-file": (
        "problem",
        "files of zero bytes",
        "Usually a download or copy that broke off: fetch them again or delete them.",
    ),
    "undecodable": (
        "problem",
        "files that cannot be decoded",
        "Training leaves them out of every epoch and lists them in quarantine.csv: fetch them again or delete them.",
    ),
    "unreadable": ("problem", "files that cannot be read", "Check permissions, the disk and the mount."),
    "bomb": (
        "problem",
        "pictures that cost too much: decompression bombs, headers that lie, thousands of scans",
        f"Refused before anything is allocated (limits: {MAX_PIXELS} pixels, {format_bytes(MAX_FILE_BYTES)}, pixels of "
        f"{MAX_EXPANSION} times the file, {MAX_SCANS} scans): delete them, or scale them down if they are genuine.",
    ),
    "label-conflict": (
        "problem",
        "samples with the same bytes as a sample of another class",
        "One of the labels is wrong: look at them, keep one and delete the others.",
    ),
    "leak": (
        "problem",
        "validation samples with the same bytes as a training sample",
        "Accuracy on them is memory, not skill: remove them from one of the splits.",
    ),
    "duplicates": (
        "warning",
        "copies of a sample in the same class and split",
        "Each copy counts again in every epoch, and held-out validation would leak: keep one of each.",
    ),
    "imbalance": (
        "warning",
        "classes with a tenth or less of the samples of the largest",
        "Accuracy will favour large classes: collect more of the small ones, or judge by accuracy per class.",
    ),
    "few-samples": (
        "warning",
        f"training classes with fewer than {FEW_SAMPLES} samples",
        "Collect more, merge them with another class, or leave them out with data.classes.",
    ),
    "one-class": (
        "warning",
        "the only class there is",
        "Nothing can be learned from one class: is PATH the right folder? expected train/<class>/<image>.",
    ),
    "similar-classes": (
        "warning",
        "class names that differ only by case, spaces or unicode form",
        "Probably one class under two names: merge the folders, or rename them so that they differ clearly.",
    ),
    "not-in-a-class": (
        "warning",
        "images that belong to no class or split",
        "They are not used: move them into a class folder (train/<class>/, val/<class>/) or delete them.",
    ),
    "mode-16-bit": (
        "warning",
        "images with 16 bits per channel",
        "The upper 8 bits are kept; 12-bit data in 16 bits turns nearly black: convert to 8 bits yourself if so.",
    ),
    "mode-alpha": (
        "warning",
        "images with transparency",
        "Alpha is dropped, so hidden colours show: paste them on the background you want if that matters.",
    ),
    "mode-other": (
        "warning",
        "images in a rare colour mode",
        "Pillow converts them to RGB; look at the result, or convert them yourself.",
    ),
    "odd-characters": (
        "warning",
        "names with control or invisible characters",
        "Scripts and other tools trip over them: rename the files.",
    ),
    "not-unicode": ("warning", "names that are not valid UTF-8", "Object stores refuse them: rename the files."),
    "mode-grey": ("note", "greyscale images", "Nothing to do: the three channels become equal."),
    "mode-palette": ("note", "palette images", "Nothing to do: converted to RGB; transparency is dropped."),
    "mode-CMYK": ("note", "CMYK images", "Nothing to do: converted to RGB without a colour profile."),
    "mode-bilevel": ("note", "black-and-white (1 bit) images", "Nothing to do: converted to RGB."),
    "exif-rotation": (
        "note",
        "images turned upright by an EXIF tag",
        "Nothing to do: turned in training and validation alike; other tools may not turn them.",
    ),
    "wrong-extension": (
        "note",
        "files whose name does not tell their format",
        "flatout goes by the content; other tools may skip or refuse them: rename them.",
    ),
    "copy-names": (
        "note",
        "names that look like copies",
        "Look for near-duplicates: exact ones are listed as duplicates, re-saved ones are not.",
    ),
    "long-names": (
        "note",
        f"names of {LONG_NAME_BYTES} bytes or more",
        "At the limit of file systems (255), so tools that append a suffix fail: shorten them.",
    ),
    "hidden-files": (
        "note",
        "hidden files (a part of the name starts with a dot)",
        "Not used. Those named ._* and .DS_Store are left over from macOS and can go.",
    ),
    "other-files": ("note", "files that are not samples", "Not used; nothing to do."),
    "no-validation": (
        "note",
        "no validation split",
        "Training holds out a fixed share (data.holdout): add a val/ folder to choose the samples yourself.",
    ),
}
