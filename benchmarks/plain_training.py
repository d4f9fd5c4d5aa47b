"""Baseline A of time_to_accuracy.py: the script that people write first, as plain PyTorch as it can be.

A DataLoader with workers decodes every picture by Pillow in every epoch, pads it by 4, crops and flips it; SGD with a step
schedule, no label smoothing, fp32. Of flatout it takes the model alone, so that both train the same network.

    python benchmarks/plain_training.py FOLDER --curve curve.json [--epochs 16] [--seed 0] [--width 0.375] [--stem standard]

FOLDER is tiny-imagenet-40 unpacked. Each epoch is written to the curve: seconds since the process began, and top-1.
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from flatout.tasks.classification.resnet import resnet

MEAN, STD = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
PAD = 4


class Pictures(Dataset[tuple[Tensor, int]]):
    def __init__(self, samples: list[tuple[Path, int]], train: bool) -> None:
        self.samples, self.train = samples, train

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as picture:
            pixels = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
        if self.train:
            top, left = random.randint(0, 2 * PAD), random.randint(0, 2 * PAD)
            pixels = nn.functional.pad(pixels, (PAD, PAD, PAD, PAD))[:, top : top + 64, left : left + 64]
            if random.random() < 0.5:
                pixels = pixels.flip(2)
        return (pixels.float() / 255 - MEAN) / STD, label


def samples_of(folder: Path) -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    names = sorted(each.name for each in (folder / "train").iterdir())
    train = [(path, at) for at, name in enumerate(names) for path in sorted((folder / "train" / name).rglob("*.JPEG"))]
    rows = [line.split("\t")[:2] for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
    return train, [(folder / "val" / "images" / file, names.index(name)) for file, name in rows]


def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    with torch.inference_mode():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--curve", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=float, default=0.375)
    parser.add_argument("--stem", default="standard")
    options = parser.parse_args()
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    train, val = samples_of(options.folder)
    workers = {"num_workers": options.workers, "persistent_workers": options.workers > 0}
    loader = DataLoader(Pictures(train, True), options.batch, shuffle=True, **workers)
    val_loader = DataLoader(Pictures(val, False), options.batch, **workers)
    model = resnet("resnet18", 1 + max(label for _, label in train), options.stem, options.width)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [options.epochs // 2, options.epochs * 3 // 4])
    began, curve = psutil.Process().create_time(), []
    for epoch in range(options.epochs):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        schedule.step()
        top1 = validate(model, val_loader)
        curve.append({"epoch": epoch, "seconds": time.time() - began, "samples": len(train), "top1": top1})
        print(f"epoch {epoch}: top-1 {100 * top1:.2f} %, {curve[-1]['seconds']:.0f} s", flush=True)
    options.curve.write_text(json.dumps(curve))


if __name__ == "__main__":
    main()
