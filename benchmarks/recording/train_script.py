"""A plain PyTorch training script with one thing wrong, chosen by its options. It knows nothing of flatout.

The model waits for a set time in its forward pass, as an accelerator would: the rest of the machine does not disturb it.
With --traceml, each step is wrapped as TraceML wants it.
"""

import argparse
import contextlib
import copy
import gc
import os
import pickle
import queue
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

parser = argparse.ArgumentParser()
for option, default in {
    "seconds": 12.0,
    "batch": 16,
    "workers": 2,
    "step-seconds": 0.03,
    "step-spin": 0.0,
    "sample-sleep": 0.0,
    "sample-spin": 0.0,
    "batch-spin": 0.0,
    "collate-spin": 0.0,
    "epoch-spin": 0.0,
    "read-back": 0.0,
    "save-every": 0,
    "save-megabytes": 0,
    "pickle-megabytes": 0,
    "validate": 0,
    "start-sleep": 0.0,
    "leak-megabytes": 0,
    "idle": 0.0,
    "epoch-batches": 40,
    "prints": 0,
    "accumulate": 1,
    "optimizers": 1,
    "late-rank": 0.0,
    "worker-start": 0.0,
    "nan-after": 0,
    "layers": 2,
    "width": 32,
    "crash-after": 0,
    "bad-sample": -1,
    "hang-after": 0,
    "copies": 0,
    "thread-sleep": 0.0,
    "validate-steps": 0,
}.items():
    parser.add_argument(f"--{option}", type=type(default), default=default)
parser.add_argument("--jpegs", default="")
for flag in (
    "no-loader",
    "iterate-anew",
    "persistent",
    "collect-garbage",
    "clip-by-hand",
    "fused",
    "eval-with-grad",
    "anomaly",
    "rebuild",
    "scaler",
    "traceml",
):
    parser.add_argument(f"--{flag}", action="store_true")
options = parser.parse_args()


def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(50))


class Samples(Dataset):
    def __init__(self, count):
        self.count = count
        folder = options.jpegs
        self.files = sorted(os.path.join(folder, name) for name in os.listdir(folder)) if folder else []

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
        if index == options.bad_sample:
            raise OSError("cannot identify image file")
        return torch.full((options.width,), index / self.count), index % 10


def collate(samples):
    spin(options.collate_spin)
    return default_collate(samples)


class Order:
    """A sampler that weighs every sample anew before each epoch."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        spin(options.epoch_spin)
        return iter(torch.randperm(self.count).tolist())

    def __len__(self):
        return self.count


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        width = options.width
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(options.layers)), nn.Linear(width, 10))

    def forward(self, x):
        if options.step_seconds:
            time.sleep(options.step_seconds)
        if options.step_spin:
            spin(options.step_spin)
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


def make_loader():
    data = Samples(options.batch * options.epoch_batches)
    order = {"sampler": Order(len(data))} if options.epoch_spin else {"shuffle": True}
    return DataLoader(
        data,
        options.batch,
        num_workers=options.workers,
        persistent_workers=options.persistent and options.workers > 0,
        worker_init_fn=start_worker if options.worker_start else None,
        collate_fn=collate if options.collate_spin else None,
        **order,
    )


def random_batches():
    for _ in range(options.epoch_batches):
        yield torch.rand(options.batch, options.width), torch.zeros(options.batch, dtype=torch.long)


def put_batches(ahead):
    for batch in random_batches():
        time.sleep(options.thread_sleep)
        ahead.put(batch)
    ahead.put(None)


def batches_of_a_thread():
    ahead = queue.Queue(2)
    threading.Thread(target=put_batches, args=(ahead,), daemon=True).start()
    while True:
        batch = ahead.get()
        if batch is None:
            return
        yield batch


def batches_of(train):
    if options.thread_sleep:
        return batches_of_a_thread()
    if options.no_loader:
        return random_batches()
    return (next(iter(train)) for _ in range(options.epoch_batches)) if options.iterate_anew else train


def clip_by_hand(parameters):
    total = 0.0
    for parameter in parameters:
        total += parameter.grad.norm().item() ** 2
    for parameter in parameters:
        parameter.grad.mul_(min(1.0, 1.0 / (total**0.5 + 1e-6)))


def after_step(model, loss, steps, epoch, number, kept):
    """What scripts do between two steps."""
    if options.read_back:
        Pending(loss).item()
    if options.leak_megabytes:
        kept.append(torch.ones(options.leak_megabytes * 250_000))
    if options.save_every and steps % options.save_every == 0:
        torch.save([model.state_dict(), torch.zeros(options.save_megabytes * 250_000)], "checkpoint.pt")
    if options.pickle_megabytes:
        with open("checkpoint.pkl", "wb") as file:
            pickle.dump([model.state_dict(), b"1" * options.pickle_megabytes * 1_000_000], file)
    if options.collect_garbage:
        gc.collect()
    for _ in range(options.copies):
        best = copy.deepcopy(model.state_dict())
        del best
    for _ in range(options.prints):
        print(f"epoch {epoch} batch {number} loss {loss.item():.4f}", flush=True)
    if options.crash_after and steps == options.crash_after:
        raise ValueError("a label is out of range")
    if options.hang_after and steps == options.hang_after:
        torch.multiprocessing.Event().wait()


def validate(model, held_out):
    model.eval()
    with contextlib.nullcontext() if options.eval_with_grad else torch.no_grad():
        for x, _ in held_out:
            model(x)
    model.train()


def time_is_up(began, world, steps):
    over = time.perf_counter() - began > options.seconds
    if world == 1:
        return over
    if steps % 10:
        return False
    told = torch.tensor(over)
    torch.distributed.broadcast(told, 0)
    return bool(told)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    time.sleep(options.start_sleep)
    torch.autograd.set_detect_anomaly(options.anomaly)
    model = Net()
    step_of = contextlib.nullcontext
    if options.traceml:
        import traceml_ai as traceml

        traceml.init()
        step_of = traceml.trace_step
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    parameters = list(model.parameters())
    optimizers = [torch.optim.Adam(parameters, 1e-3, fused=options.fused or None) for _ in range(options.optimizers)]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=20, enabled=options.scaler)
    train = make_loader()
    held_out = DataLoader(Samples(options.batch * max(1, options.validate)), options.batch)
    kept, steps, epoch, over, began = [], 0, 0, False, time.perf_counter()
    while not over:
        if options.rebuild:
            train = make_loader()
        for number, (x, y) in enumerate(batches_of(train)):
            with step_of(model):
                if options.batch_spin:
                    spin(options.batch_spin)
                if rank == 1 and options.late_rank:
                    time.sleep(options.late_rank)
                loss = nn.functional.cross_entropy(model(x), y)
                if options.nan_after and steps > options.nan_after:
                    loss = loss * float("nan")
                scaler.scale(loss).backward()
                if options.clip_by_hand:
                    clip_by_hand(parameters)
                if (number + 1) % options.accumulate == 0:
                    for optimizer in optimizers:
                        scaler.step(optimizer)
                    scaler.update()
                    for optimizer in optimizers:
                        optimizer.zero_grad()
                    steps += 1
                after_step(model, loss, steps, epoch, number, kept)
                if options.validate_steps and steps % options.validate_steps == 0:
                    validate(model, held_out)
            if over := time_is_up(began, world, steps):
                break
        if options.validate and not options.validate_steps:
            validate(model, held_out)
        epoch += 1
        time.sleep(options.idle)
    print(f"{steps} steps, {epoch} epochs")


if __name__ == "__main__":
    main()
