"""TensorSocket fed by flatout's loader: what N jobs get when one process prepares and sends (peer of shared_batches.py).

    PYTHONPATH=$BENCH/peers-tensorsocket/lib/python3.11/site-packages \\
        python benchmarks/shared_tensorsocket.py --data ../shared/data/tiny-imagenet-40.tar:train-64 --jobs 1 4

Batches are sent two at a time (with `producer_batch_size=1` it fails): by default it collates eight, and on a CPU each job's
copy of each slice then carries all eight. Its producer listens on all interfaces: run it where that does no harm.
"""

import argparse
import statistics
import subprocess
import sys
import time

PORTS = {"port": 25555, "ack_port": 25556, "heart_ports": (24444, 24445)}


class Loader:
    """What a DataLoader looks like to a TensorProducer."""

    def __init__(self, path, view, batch):
        import flatout
        from flatout.machine.budgets import usable_cores

        self._source = flatout.open_batches(
            path, view=view, batch_size=batch, seed=0, workers=usable_cores(), cache="off"
        )
        self._epoch = -1

    def __len__(self):
        return self._source.batches_per_epoch

    def __iter__(self):
        self._epoch += 1
        for batch in self._source.epoch(self._epoch):
            yield batch.images, batch.labels


def produce(options):
    from tensorsocket import TensorProducer

    path, view = options.data.rsplit(":", 1)
    producer = TensorProducer(Loader(path, view, options.batch), producer_batch_size=2, **PORTS)
    while True:
        for _ in producer:
            pass


def consume(options):
    from tensorsocket import TensorConsumer

    consumer = TensorConsumer(batch_size=options.batch, **PORTS)

    def batches():
        while True:
            yield from consumer

    source = batches()
    for _ in range(options.warm):
        next(source)
    print("ready", flush=True)
    sys.stdin.readline()
    samples, began = 0, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        samples += len(next(source)[1])
    print(samples / (time.perf_counter() - began), flush=True)


def turn(options, count):
    arguments = ["--data", options.data, "--batch", str(options.batch), "--seconds", str(options.seconds)]
    command = [sys.executable, __file__]
    producer = subprocess.Popen([*command, "produce", *arguments], stdout=subprocess.DEVNULL)
    jobs = [
        subprocess.Popen([*command, "consume", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        for each in jobs:
            assert each.stdout.readline() == "ready\n"
        for each in jobs:
            each.stdin.write("go\n")
            each.stdin.flush()
        return [float(each.stdout.readline()) for each in jobs]
    finally:
        for each in (*jobs, producer):
            each.kill()
            each.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", nargs="?", default="measure")
    parser.add_argument("--data", required=True, metavar="PATH:VIEW")
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--warm", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    if options.role != "measure":
        return produce(options) if options.role == "produce" else consume(options)
    for count in options.jobs:
        found = [sum(turn(options, count)) for _ in range(options.rounds)]
        print(f"{count} jobs: {statistics.median(found):.0f} samples/s in all ({min(found):.0f} to {max(found):.0f})")


if __name__ == "__main__":
    main()
