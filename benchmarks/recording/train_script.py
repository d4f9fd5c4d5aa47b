"""A plain PyTorch training script with one thing wrong, chosen by its options. It knows nothing of flatout.

The model waits for a set time in its forward pass, as an accelerator would: the rest of the machine does not disturb it.
"""

import argparse
import os
import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
for option, default in {
    "seconds": 15.0,
    "batch": 16,
    "workers": 2,
    "step-seconds": 0.03,
    "sample-sleep": 0.0,
    "sample-spin": 0.0,
    "batch-spin": 0.0,
    "read-back": 0.0,
    "save-every": 0,
    "save-megabytes": 0,
    "validate": 0,
    "start-sleep": 0.0,
    "leak-megabytes": 0,
    "idle": 0.0,
    "epoch-batches": 40,
    "prints": 0,
    "accumulate": 1,
    "optimizers": 1,
    "late-rank": 0.0,
    "slow-link": 0.0,
    "burners": 0,
    "worker-start": 0.0,
    "nan-after": 0,
    "layers": 2,
    "crash-after": 0,
}.items():
    parser.add_argument(f"--{option}", type=type(default), default=default)
parser.add_argument("--jpegs", default="")
parser.add_argument("--no-loader", action="store_true")
parser.add_argument("--persistent", action="store_true")
options = parser.parse_args()


def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(50))


class Samples(Dataset):
    def __init__(self, count):
        self.count = count
        self.files = (
            sorted(os.path.join(options.jpegs, name) for name in os.listdir(options.jpegs)) if options.jpegs else []
        )

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if options.sample_sleep:
            time.sleep(options.sample_sleep)
        if self.files:
            from PIL import Image

            image = Image.open(self.files[index % len(self.files)]).convert("RGB")
            image.resize((8, 8))
        if options.sample_spin:
            spin(options.sample_spin)
        return torch.full((32,), index / self.count), index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(options.layers)), nn.Linear(32, 10))

    def forward(self, x):
        if options.step_seconds:
            time.sleep(options.step_seconds)
        return self.layers(x)


class Pending:
    """A loss whose value is still being computed: reading it waits."""

    def __init__(self, value):
        self.value, self.ready = value, time.perf_counter() + options.read_back

    def item(self):
        time.sleep(max(0.0, self.ready - time.perf_counter()))
        return self.value.item()


def start_worker(worker):
    time.sleep(options.worker_start)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    time.sleep(options.start_sleep)
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(options.burners)
    ]
    model = Net()
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        if options.slow_link:

            def exchange(state, bucket):
                time.sleep(options.slow_link)
                return (
                    torch.distributed.all_reduce(bucket.buffer(), async_op=True)
                    .get_future()
                    .then(lambda f: f.value()[0])
                )

            model.register_comm_hook(None, exchange)
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for _ in range(options.optimizers)]
    train = DataLoader(
        Samples(options.batch * options.epoch_batches),
        options.batch,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.persistent and options.workers > 0,
        worker_init_fn=start_worker if options.worker_start else None,
    )
    held_out = DataLoader(Samples(options.batch * max(1, options.validate)), options.batch)
    kept, steps, began, epoch = [], 0, time.perf_counter(), 0
    while time.perf_counter() - began < options.seconds:
        batches = (
            (
                (torch.rand(options.batch, 32), torch.zeros(options.batch, dtype=torch.long))
                for _ in range(options.epoch_batches)
            )
            if options.no_loader
            else train
        )
        for number, (x, y) in enumerate(batches):
            if options.batch_spin:
                spin(options.batch_spin)
            if rank == 1 and options.late_rank:
                time.sleep(options.late_rank)
            loss = nn.functional.cross_entropy(model(x), y)
            if options.nan_after and steps > options.nan_after:
                loss = loss * float("nan")
            loss.backward()
            if (number + 1) % options.accumulate == 0:
                for optimizer in optimizers:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                steps += 1
            if options.read_back:
                running = Pending(loss).item()
            if options.leak_megabytes:
                kept.append(torch.ones(options.leak_megabytes * 250_000))
            if options.save_every and steps % options.save_every == 0:
                torch.save([model.state_dict(), torch.zeros(options.save_megabytes * 250_000)], "checkpoint.pt")
            for _ in range(options.prints):
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}", flush=True)
            if options.crash_after and steps == options.crash_after:
                raise ValueError("a label is out of range")
            if world > 1 and steps % 10 == 0:
                more = torch.tensor(time.perf_counter() - began < options.seconds)
                torch.distributed.broadcast(more, 0)
                if not more:
                    began = -1e9
                    break
            elif world == 1 and time.perf_counter() - began > options.seconds:
                break
        if options.validate:
            model.eval()
            with torch.no_grad():
                for x, _ in held_out:
                    model(x)
            model.train()
        epoch += 1
        time.sleep(options.idle)
    for burner in burners:
        burner.kill()
    print(f"{steps} steps, {epoch} epochs")
