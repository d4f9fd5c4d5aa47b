"""What it takes to hand over one batch of 256x3x224x224 bytes (38 MB) that is ready: mapped memory, and a local Redis.

Redis is compared with redis-benchmark, which moves values of the same size through the same server and does nothing
with them; both in turns, medians over rounds.

    python benchmarks/shared_handover.py [--rounds 5] [--out FILE]
"""

import argparse
import json
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from flatout.cache.bundle import capacity_for, payload, read_bundle, write_bundle
from flatout.cache.redis_store import RedisStore
from flatout.cache.shared_memory import MappedStore, OwnedStore, shared_root

SHAPE = (256, 3, 224, 224)
KEY = b"k" * 32


def fill(space):
    images = payload(space)[: int(np.prod(SHAPE))].reshape(SHAPE)
    images[:] = np.random.default_rng(0).integers(0, 256, (3, 224, 224), np.uint8)
    return write_bundle(space, KEY, {"images": images, "labels": np.arange(256)}, {})


def mapped(rounds):
    """From the word that it is ready to an array in hand; the first time, and when the buffer was used before."""
    owner = OwnedStore(shared_root())
    capacity = capacity_for(int(np.prod(SHAPE)) + 2048, 2, 4096)
    first, again = [], []
    try:
        for number in range(rounds):
            owner.make(number, capacity)
            fill(MappedStore(Path(owner.address)).space(number, capacity))
            reader = MappedStore(Path(owner.address))
            for seconds in (first, again):
                began = time.perf_counter()
                view = reader.read(number, KEY)
                images = read_bundle(view, KEY, verify=False).arrays["images"]
                seconds.append(time.perf_counter() - began)
                assert images.shape == SHAPE
        return {
            "first_ms": 1e3 * statistics.median(first),
            "again_ms": 1e3 * statistics.median(again),
            "slowest_ms": 1e3 * max(first + again),
        }
    finally:
        owner.close()


def through_redis(rounds, gets=20):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            time.sleep(1)
            store = RedisStore(f"redis://127.0.0.1:{port}")
            space = memoryview(bytearray(capacity_for(int(np.prod(SHAPE)) + 2048, 2, 4096)))
            count = fill(space)
            store.commit(0, KEY, space, count)
            ours, theirs = [], []
            for _ in range(rounds):
                began = time.perf_counter()
                for _ in range(gets):
                    view = store.read(0, KEY)
                    read_bundle(view, KEY, verify=not store.is_mapped)
                ours.append(gets * count / (time.perf_counter() - began))
                said = subprocess.run(["redis-benchmark", "-p", str(port), "-c", "1", "-n", str(gets), "-d", str(count), "-t", "set,get", "--csv"],
                                      capture_output=True, text=True, check=True).stdout  # fmt: skip
                rate = float(re.search(r'"GET[^"]*","([0-9.]+)"', said).group(1))
                theirs.append(rate * count)
            return {"bytes": count, "ours_mb_per_second": statistics.median(ours) / 1e6, "redis_benchmark_mb_per_second": statistics.median(theirs) / 1e6,
                    "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True))}  # fmt: skip
        finally:
            server.kill()
            server.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {"date": time.strftime("%Y-%m-%d"), "command": " ".join(sys.argv), "mapped": mapped(options.rounds)}
    if shutil.which("redis-benchmark"):
        results["redis"] = through_redis(options.rounds)
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
