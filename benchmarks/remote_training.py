"""Story D's table on this machine: it/s per epoch from an S3 mount, streamed, staged and local.

A real S3 endpoint (`rclone serve s3`) stands behind a proxy that adds 30 ms to every request. An emulated accelerator
eats 250 images/s from single objects, and 700 images/s from a pack. A plain DataLoader over an rclone mount is
measured beside them. Everything shares the machine's cores, servers included.

    python benchmarks/remote_training.py --photos FOLDER [--samples 2048] [--rounds 2]

FOLDER comes from benchmarks/loaders/make_photos.py.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from servers.faults import Faults  # noqa: E402
from servers.proxy_client import FaultProxy  # noqa: E402
from servers.s3 import S3Server, rclone_binary  # noqa: E402

LATENCY_SECONDS, BATCH, EPOCHS = 0.030, 64, 3
FLATOUT = [sys.executable, "-m", "flatout"]


def train(path, run, images_per_second, environment, stage):
    """it/s of every epoch of a flatout run."""
    settings = {
        "name": "remote", "device": "emulated", "data.path": path, "data.view": "train-224",
        "data.eval_view": "eval-224", "data.batch_size": BATCH, "data.workers": 2, "data.cache": "off",
        "data.stage": stage, "train.epochs": EPOCHS, "emulated.base_seconds": 0,
        "emulated.seconds_per_sample": 1 / images_per_second, "model.width": 0.125, "validate.every_epochs": 100,
        "checkpoint.every_epochs": 100,
    }  # fmt: skip
    recipe = run.parent / "recipe.yaml"
    recipe.write_text("name: remote\n")
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [*FLATOUT, "train", str(recipe), *sets, "--run", str(run), "--fresh", "--json"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, cwd=run.parent)
    with (run / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    per_epoch = {}
    for row in rows:
        per_epoch.setdefault(int(row["epoch"]), []).append((int(row["samples"]), float(row["step_seconds"])))
    return [sum(s for s, _ in steps) / BATCH / sum(t for _, t in steps) for _, steps in sorted(per_epoch.items())]


MOUNT_LOOP = """
import json, random, sys, time
from pathlib import Path
import numpy as np, torch
from PIL import Image
folder, batch, epochs, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

class Photos(torch.utils.data.Dataset):
    def __init__(self):
        self.paths = sorted(path for path in Path(folder, "train").rglob("*") if path.is_file())
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        side = random.uniform(0.3, 1.0) * min(image.size)
        x, y = random.uniform(0, image.width - side), random.uniform(0, image.height - side)
        image = image.resize((224, 224), Image.BILINEAR, box=(x, y, x + side, y + side))
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()), 0

loader = torch.utils.data.DataLoader(Photos(), batch, shuffle=True, num_workers=2, persistent_workers=True)
figures = []
for epoch in range(epochs):
    started, seen = time.perf_counter(), 0
    for images, _ in loader:
        time.sleep(len(images) / rate)
        seen += len(images)
    figures.append(seen / batch / (time.perf_counter() - started))
print(json.dumps(figures))
"""


def mount_loop(endpoint, server, bucket_path, folder, rate, environment):
    """A plain DataLoader over an rclone mount; None where FUSE is not to be had."""
    point, cache = folder / "mount", folder / "vfs"
    point.mkdir()
    remote = f":s3,provider=Other,endpoint='{endpoint}',access_key_id={server.access_key},secret_access_key={server.secret_key}:{bucket_path}"
    process = subprocess.Popen(
        [rclone_binary(), "mount", remote, str(point), "--config", os.devnull, "--read-only", "--vfs-cache-mode", "full",
         "--cache-dir", str(cache)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(200):
            if os.path.ismount(point):
                break
            time.sleep(0.1)
        else:
            return None
        command = [sys.executable, "-c", MOUNT_LOOP, str(point), str(BATCH), str(EPOCHS), str(rate)]
        out = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=1200)
        return json.loads(out.stdout)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(point)], check=False)
        process.kill()
        process.wait()


def subset(photos, target, samples):
    """Hard links (or copies) of the first samples, so that a run takes seconds, not minutes."""
    names = sorted(photos.glob("train/*/*"))[:: max(1, len(list(photos.glob("train/*/*"))) // samples)][:samples]
    for name in [*names, *sorted(photos.glob("val/*/*"))]:
        place = target / name.relative_to(photos)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, place)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=ROOT / f"benchmarks/results/{time.strftime('%Y-%m-%d')}-remote-training.md"
    )
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        data = work / "s3" / "bucket" / "photos"
        subset(options.photos, data, options.samples)
        pack = work / "s3" / "bucket" / "pack"
        subprocess.run([*FLATOUT, "data", "pack", str(data), str(pack), "--shard-mb", "60"], check=True)
        with S3Server(work / "s3", cache_seconds=3600) as server, FaultProxy("127.0.0.1", server.port) as proxy:
            proxy.set(Faults(latency_seconds=LATENCY_SECONDS))
            for number in range(options.rounds):
                for name, per_epoch in one_round(work / f"round{number}", data, pack, server, proxy).items():
                    figures.setdefault(name, []).append(per_epoch)
                    print(number, name, per_epoch, flush=True)
    write(options, figures)


def one_round(work, data, pack, server, proxy):
    work.mkdir()
    environment = {
        **os.environ, "AWS_ENDPOINT_URL": proxy.endpoint, "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        "XDG_CACHE_HOME": str(work / "cache"),
    }  # fmt: skip
    run = work / "run"
    return {
        "objects 250/s: local folder": train(str(data), run, 250, environment, "off"),
        "objects 250/s: flatout, staged while training": train("s3://bucket/photos", run, 250, environment, "auto"),
        "objects 250/s: flatout, streamed": train("s3://bucket/photos", run, 250, environment, "off"),
        "objects 250/s: plain DataLoader, rclone mount": mount_loop(
            proxy.endpoint, server, "bucket/photos", work, 250, environment
        ),
        "pack 700/s: local pack": train(str(pack), run, 700, environment, "off"),
        "pack 700/s: flatout, staged while training": train("s3://bucket/pack", run, 700, environment, "auto"),
        "pack 700/s: flatout, streamed": train("s3://bucket/pack", run, 700, environment, "off"),
    }


def write(options, figures):
    lines = [
        f"# Training from S3 (story D's table), {time.strftime('%Y-%m-%d')}", "",
        f"Batch {BATCH}, view train-224, 500x375 JPEGs, {options.samples} samples, {options.rounds} interleaved rounds, medians; "
        f"30 ms added to every request; servers, proxy and training share 2 cores. EMULATED accelerator.", "",
        f"    {' '.join(['python', *sys.argv])}", "",
        "| source | epoch 0, it/s | epoch 1 | epoch 2 | epoch 0 / local | epoch 1 / local |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, rounds in figures.items():
        done = [each for each in rounds if each]
        if not done:
            lines.append(f"| {name} | not run: no FUSE here | | | | |")
            continue
        medians = [statistics.median(values) for values in zip(*done, strict=True)]
        local = next(value for key, value in figures.items() if key.startswith(name.split(":")[0]) and "local" in key)
        base = [statistics.median(values) for values in zip(*local, strict=True)]
        cells = " | ".join(f"{value:.2f}" for value in medians)
        lines.append(f"| {name} | {cells} | {medians[0] / base[0]:.2f} | {medians[1] / base[1]:.2f} |")
    options.out.write_text("\n".join(lines) + "\n")
    options.out.with_suffix(".json").write_text(json.dumps(figures, indent=1))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
