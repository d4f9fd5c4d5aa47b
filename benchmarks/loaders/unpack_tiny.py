"""Unpack Tiny-ImageNet's tar into the image-folder layout that every loader reads: train/<class>/ and val/<class>/."""

import argparse
import json
import tarfile
from pathlib import Path

TAR = Path(__file__).resolve().parents[3] / "shared/data/tiny-imagenet-40.tar"  # beside the project


def val_classes(tar: tarfile.TarFile) -> dict[str, str]:
    name = next(name for name in tar.getnames() if name.endswith("val/val_annotations.txt"))
    lines = tar.extractfile(name).read().decode().splitlines()
    return {line.split("\t")[0]: line.split("\t")[1] for line in lines}


def unpack_tiny(tar_path: Path, out: Path) -> dict[str, int]:
    counts = {"train": 0, "val": 0}
    with tarfile.open(tar_path) as tar:
        class_of = val_classes(tar)
        for member in tar:
            file = Path(member.name)
            if file.suffix != ".JPEG":
                continue
            split = file.parts[1]
            target = out / split / (file.parts[2] if split == "train" else class_of[file.name]) / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())
            counts[split] += 1
    (out / "unpacked.json").write_text(json.dumps(counts) + "\n")  # last: its presence means the folder is complete
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tar", type=Path, default=TAR)
    args = parser.parse_args()
    print(json.dumps(unpack_tiny(args.tar, args.out)))
