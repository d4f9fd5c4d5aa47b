"""What flatout's loop costs over a bare DDP loop: the same model and batches on two gloo ranks, interleaved.

    python benchmarks/ddp_overhead.py [--rounds 6] [--steps 12]

Each round times both loops, in turn first, on the same two processes; the figure is the median of the rounds' ratios.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def rank(place: dict[str, str], config_path: str, rounds: int, steps: int, result: str) -> None:
    os.environ.update(place)
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from flatout.app.joining import joined, own_place
    from flatout.app.train_run import prepare_setup
    from flatout.config.loading import load_config
    from flatout.data.loader import open_loader
    from flatout.engine.learner import build_learner
    from flatout.engine.loop import Job, Progress, train
    from flatout.timeline import Recorder

    torch.set_num_threads(1)
    config = load_config(config_path).config
    with joined(config, own_place(config)) as ranks:
        setup = prepare_setup(config, ranks)
        source = open_loader(setup.recipe, config.data, 0)
        batches = [batch for batch, _ in zip(source.epoch(0), range(steps), strict=False)]
        learner = build_learner(setup.task, config, setup.device)
        recorder = Recorder(Path(result + f".spans{ranks.rank}"))
        recorder.open(time.perf_counter())
        ranks.begin(learner, recorder, end=lambda cause: None)

        class Repeated:
            """The same batches for both loops: the loader is not what is compared."""

            batches_per_epoch = 10**9
            samples = 10**9

            def epoch(self, epoch: int, start: int = 0) -> Any:
                for index, batch in enumerate(cycle(batches)):
                    batch.index = index
                    yield batch

        job = Job(
            config, setup.task, learner, Repeated(), None, recorder, Progress(), save=lambda progress: None,
            stop_reason=lambda: None, total_steps=10**9, peak_rate=0.01, ranks=ranks,
        )  # fmt: skip
        records = train(job)
        bare = build_learner(setup.task, config, setup.device)
        wrapped = DistributedDataParallel(bare.model)

        def flatout_steps() -> None:
            for _ in range(steps):
                next(records)

        def bare_steps() -> None:
            for batch in batches:
                loss = setup.task.loss(wrapped, setup.task.to_device(batch, bare.device.torch))
                loss.backward()
                bare.optimizer.step()
                bare.optimizer.zero_grad(set_to_none=True)
                loss.item()

        ratios, loops = [], [("flatout", flatout_steps), ("bare", bare_steps)]
        for loop in (flatout_steps, bare_steps):
            loop()
        for number in range(rounds):
            seconds = {}
            for name, loop in loops if number % 2 else loops[::-1]:
                torch.distributed.barrier()
                started = time.perf_counter()
                loop()
                torch.distributed.barrier()
                seconds[name] = time.perf_counter() - started
            ratios.append(seconds["flatout"] / seconds["bare"])
        if ranks.rank == 0:
            figures = {
                "ratios": ratios,
                "median": statistics.median(ratios),
                "bare_step_seconds": seconds["bare"] / steps,
            }
            Path(result).write_text(json.dumps(figures))


def main() -> None:
    from ranks import places
    from training import forked, make_dataset, write_recipe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = make_dataset(work / "data", samples_per_class=160)
        config = write_recipe(
            work / "config.yaml", data, data__batch_size=32, model__width=0.5, train__warmup_epochs=0,
            train__schedule="constant", checkpoint__every_steps=None, parallel__mode="ddp", parallel__devices=2,
            views={"small": {"base": "train-64", "size": 32}, "plain": {"base": "eval-64", "size": 32}},
        )  # fmt: skip
        pairs = [
            forked(rank, place, str(config), options.rounds, options.steps, str(work / "r")) for place in places(2)
        ]
        processes = [each.__enter__() for each in pairs]
        for process in processes:
            process.join()
        figures = json.loads((work / "r").read_text())
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
