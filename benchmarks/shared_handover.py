"""What it takes to hand over one batch of 256x3x224x224 bytes (38 MB) that is ready: mapped memory, and a local Redis.

Redis is compared with redis-benchmark, which moves values of the same size through the same server and does nothing
with them; and with the same store without seals, which sums batches instead: by CPU time of all threads, since that is
what a seal takes. All in turns, medians over rounds.

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

from flatout.cache.bundle import SUM_EVERY, capacity_for, payload, read_bundle, write_bundle
from flatout.cache.redis_address import parse_redis
from flatout.cache.redis_store import RedisStore
from flatout.cache.sealing import SEAL_BYTES, entry_keys, seal_of
from flatout.cache.shared_memory import MappedStore, OwnedStore, shared_root

SHAPE = (256, 3, 224, 224)
KEY = b"k" * 32


def fill(space, sum_every=1):
    images = payload(space)[: int(np.prod(SHAPE))].reshape(SHAPE)
    images[:] = np.random.default_rng(0).integers(0, 256, (3, 224, 224), np.uint8)
    return write_bundle(space, KEY, {"images": images, "labels": np.arange(256)}, {}, sum_every)


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
                view = reader.read(number, KEY, capacity)
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


class Unsealed(RedisStore):
    """As it was before there were seals: the same bytes, and a checksum instead."""

    def _get(self, connection, key, most_bytes):
        connection.send(b"GET", b"flatout:" + key)
        count = connection.value_bytes(most_bytes + SEAL_BYTES)
        connection.take_into(memoryview(bytearray(SEAL_BYTES)))
        bundle = self._memory(count - SEAL_BYTES)
        connection.take_into(bundle)
        connection.end_value()
        read_bundle(bundle, key, verify=True)
        return bundle


def cpu_ms(work):
    began = time.process_time()
    work()
    return 1e3 * (time.process_time() - began)


def seals(address, space, count, rounds, gets):
    """CPU milliseconds for one batch, with a seal and without: reading it from Redis, and what its writer adds."""
    entry_key = entry_keys("token")
    stores = {"sealed": RedisStore(address, entry_key), "summed": Unsealed(address, entry_key)}
    stores["sealed"].commit(0, KEY, space, count)
    spent = {name: [] for name in ("read_sealed", "read_summed", "write_sealed", "write_summed")}
    for _ in range(rounds * gets):
        for name, store in stores.items():
            spent[f"read_{name}"].append(cpu_ms(lambda store=store: store.read(0, KEY, count)))
        spent["write_sealed"].append(cpu_ms(lambda: (fill(space, SUM_EVERY), seal_of(entry_key(KEY), space[:count]))))
        spent["write_summed"].append(cpu_ms(lambda: fill(space)))
    medians = {f"{name}_cpu_ms": statistics.median(values) for name, values in spent.items()}
    return {
        **medians,
        "read_ratio": statistics.median(a / b for a, b in zip(spent["read_sealed"], spent["read_summed"], strict=True)),
        "read_ratio_quartiles": statistics.quantiles(
            [a / b for a, b in zip(spent["read_sealed"], spent["read_summed"], strict=True)], n=4
        )[::2],
    }


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
            address = parse_redis(f"redis://127.0.0.1:{port}")
            store = RedisStore(address, entry_keys("token"))
            space = memoryview(bytearray(capacity_for(int(np.prod(SHAPE)) + 2048, 2, 4096)))
            count = fill(space)
            store.commit(0, KEY, space, count)
            ours, theirs = [], []
            for _ in range(rounds):
                began = time.perf_counter()
                for _ in range(gets):
                    read_bundle(store.read(0, KEY, count), KEY, verify=False)
                ours.append(gets * count / (time.perf_counter() - began))
                said = subprocess.run(["redis-benchmark", "-p", str(port), "-c", "1", "-n", str(gets), "-d", str(count), "-t", "set,get", "--csv"],
                                      capture_output=True, text=True, check=True).stdout  # fmt: skip
                rate = float(re.search(r'"GET[^"]*","([0-9.]+)"', said).group(1))
                theirs.append(rate * count)
            return {"bytes": count, "ours_mb_per_second": statistics.median(ours) / 1e6, "redis_benchmark_mb_per_second": statistics.median(theirs) / 1e6,
                    "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
                    "seals": seals(address, space, count, rounds, gets)}  # fmt: skip
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
