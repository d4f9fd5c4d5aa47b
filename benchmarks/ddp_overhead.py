"""What flatout's loop costs over a bare DDP loop: the same model and batches on two gloo ranks, interleaved.

    python benchmarks/ddp_overhead.py [--launches 6] [--rounds 8] [--steps 10]

Each round times both loops, in turn first, on the same two processes. The two loops need a model each (one model cannot
be wrapped twice), and two equal models differ by some percent, by where their memory lies: so the processes are started
anew several times, with flatout's model built first and second in turn, and the figure is the median of all ratios.
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


def rank(place: dict[str, str], config_path: str, rounds: int, steps: int, bare_first: bool, result: str) -> None:
    os.environ.update(place)
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from flatout.config.loading import load_config
    from flatout.data.loading.loader import open_loader
    from flatout.engine.devices import keep_freed_memory
    from flatout.engine.learner import build_learner
    from flatout.engine.loop import Job, Progress, train
    from flatout.engine.parallel.joining import own_place, process_group
    from flatout.timeline import Recorder
    from flatout.training.setup import prepare_setup

    torch.set_num_threads(1)
    keep_freed_memory()  # in both loops: it is not what is compared
    config = load_config(config_path).config
    with process_group(config, own_place(config)) as ranks:
        setup = prepare_setup(config, ranks)
        source = open_loader(setup.plan, config.data, 0)
        batches = [batch for batch, _ in zip(source.epoch(0), range(steps), strict=False)]
        learners = [build_learner(setup.task, config, setup.device) for _ in range(2)]
        bare, learner = learners if bare_first else learners[::-1]
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
            Path(result).write_text(json.dumps({"ratios": ratios, "bare_step_seconds": seconds["bare"] / steps}))


def main() -> None:
    from training import make_dataset, write_recipe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=6)
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
        found = [
            launch(work, config, options.rounds, options.steps, bool(number % 2)) for number in range(options.launches)
        ]
    ratios = [ratio for each in found for ratio in each["ratios"]]
    medians = [f"{statistics.median(each['ratios']):.3f}" for each in found]
    quartiles = statistics.quantiles(ratios, n=4)
    print(f"flatout / bare DDP: median {statistics.median(ratios):.4f} of {len(ratios)} rounds in {len(found)} launches, "
          f"quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}; medians of launches "
          f"{', '.join(medians)}; "
          f"a bare step takes {1e3 * statistics.median(each['bare_step_seconds'] for each in found):.0f} ms")  # fmt: skip


def launch(work: Path, config: Path, rounds: int, steps: int, bare_first: bool) -> Any:
    from ranks import places
    from training import forked

    pairs = [forked(rank, place, str(config), rounds, steps, bare_first, str(work / "r")) for place in places(2)]
    for process in [each.__enter__() for each in pairs]:
        process.join()
    return json.loads((work / "r").read_text())


if __name__ == "__main__":
    main()
