"""The scenarios again as a plain PyTorch script, for a tool that looks at such scripts: `traceml run plain_loop.py`.

    DATA=FOLDER SCENARIO=NAME traceml run --run-name NAME plain_loop.py

The model is real where the scenario is about learning, otherwise a wait, as flatout's emulated device.
"""

import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import traceml_ai as traceml
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SCENARIO, DATA = os.environ["SCENARIO"], Path(os.environ["DATA"])
PLANS = {
    "healthy: compute-bound": {"device_seconds": 0.15},
    "0 workers": {"data": "big", "workers": 0},
    "too few workers": {"data": "big", "workers": 1},
    "heavy decode": {"data": "big", "workers": 2, "device_seconds": 0.01},
    "heavy Python augmentation": {"augment_seconds": 0.003},
    "slow store: latency": {"fetch_seconds": 0.02},
    "tiny batch": {"batch": 2, "device_seconds": 0.006, "steps": 200},
    "checkpoint every step": {"device_seconds": 0.1, "checkpoint": True},
    "long validation": {"device_seconds": 0.05, "validate_seconds": 4.0},
    "slow start-up": {"device_seconds": 0.1, "startup_seconds": 12.0},
    "slow epoch start": {"device_seconds": 0.1, "gap_seconds": 1.0},
    "wrong labels in val": {"data": "mismatched", "learn": True},
    "NaN": {"learn": True, "lr": 1e9},
    "memory growth": {"device_seconds": 0.1, "leak_bytes": 8_000_000},
    "device idle while a logger is awaited": {"device_seconds": 0.05, "log_seconds": 0.03},
    "slow copy to the device": {"device_seconds": 0.05, "copy_seconds": 0.02},
}
PLAN = {"data": "small", "workers": 1, "batch": 64, "steps": 60, "device_seconds": 0.03, "lr": 0.05, **PLANS[SCENARIO]}


class Folder(Dataset):
    def __init__(self, root):
        self.paths = sorted(path for path in root.rglob("*.*") if path.is_file() and path.parent != root)
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, at):
        time.sleep(PLAN.get("fetch_seconds", 0.0))
        image = Image.open(self.paths[at]).convert("RGB").resize((64, 64))
        if seconds := PLAN.get("augment_seconds"):
            started = time.perf_counter()
            while time.perf_counter() < started + seconds:
                sum(range(1000))
        pixels = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()).float() / 255
        return pixels, self.classes.index(self.paths[at].parent.name)


class Waits(nn.Module):
    """Forward and backward take their time and compute nothing."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(3, classes)

    def forward(self, images):
        time.sleep(PLAN["device_seconds"])
        return self.head(images.mean((2, 3)))


class Learns(nn.Sequential):
    def __init__(self, classes):
        super().__init__(
            nn.Conv2d(3, 16, 5, 2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, classes),
        )


def main():
    torch.set_num_threads(1)
    time.sleep(PLAN.get("startup_seconds", 0.0))
    train = Folder(DATA / PLAN["data"] / "train")
    loader = DataLoader(
        train, PLAN["batch"], shuffle=True, num_workers=PLAN["workers"], persistent_workers=PLAN["workers"] > 0
    )
    model = (Learns if PLAN.get("learn") else Waits)(len(train.classes))
    optimizer = torch.optim.SGD(model.parameters(), PLAN["lr"], momentum=0.9)
    loss_of, kept, step = nn.CrossEntropyLoss(), [], 0
    traceml.init(mode="auto")
    for _ in range(100):
        time.sleep(PLAN.get("gap_seconds", 0.0))
        for images, labels in loader:
            with traceml.trace_step(model):
                time.sleep(PLAN.get("copy_seconds", 0.0))
                images = images.to("cpu")
                optimizer.zero_grad(set_to_none=True)
                loss = loss_of(model(images), labels)
                loss.backward()
                optimizer.step()
                if PLAN.get("checkpoint"):
                    with open("checkpoint.bin", "wb") as file:
                        file.write(os.urandom(4_000_000))
                        file.flush()
                        os.fsync(file.fileno())
                time.sleep(PLAN.get("log_seconds", 0.0))
                if PLAN.get("leak_bytes"):
                    kept.append(bytearray(b"x" * PLAN["leak_bytes"]))
            step += 1
            if step >= PLAN["steps"] or not math.isfinite(loss.item()):
                time.sleep(PLAN.get("validate_seconds", 0.0))
                return
        time.sleep(PLAN.get("validate_seconds", 0.0))


if __name__ == "__main__":
    main()
