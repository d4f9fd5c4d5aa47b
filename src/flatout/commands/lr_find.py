"""Find a learning rate for a recipe. Trains scratch weights in memory; no run, weights or random state is touched."""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from flatout.config.loading import load_config
from flatout.engine.learner import build_learner
from flatout.engine.parallel.joining import require_one_process
from flatout.engine.range_test import range_test, suggest
from flatout.errors import ConfigError, RunFailed
from flatout.reports.lr_plot import write_lr_plot
from flatout.runs.directory import write_json
from flatout.training.display import Display
from flatout.training.setup import folder_name, prepare_compute, prepare_setup


def find_learning_rate(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    low: float = 1e-5,
    high: float = 10.0,
    steps: int = 100,
    out: Path | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Measure, suggest, and write lr-find.json and lr-find.html."""
    if not 0 < low < high or steps < 10:
        raise ConfigError(f"low {low:g}, high {high:g}, steps {steps}: need 0 < low < high and at least 10 steps")
    config = load_config(source, overrides).config
    require_one_process(config, "lr-find")
    setup = prepare_setup(config)
    config = setup.config
    folder = out or Path("runs") / f"{folder_name(config.name)}-lr-find"
    random_state = torch.get_rng_state()
    prepare_compute(config, setup.device)
    opened, kind = setup.opened, setup.device.kind
    workers = opened.choose_workers(config.data, kind, opened.plan)
    points = []
    try:
        batches = opened.open_source(opened.plan, config.data, workers, device_kind=kind)
        with Display(quiet) as display, closing(batches):
            learner = build_learner(setup.task, config, setup.device)
            display.begin("learning rate", 0, steps)
            for point in range_test(setup.task, learner, batches, config, low, high, steps):
                points.append(point)
                figures = f"rate {point.learning_rate:.2e}  loss {point.smoothed:.3f}"
                display.advance("learning rate", len(points), steps, figures)
    finally:
        torch.set_rng_state(random_state)
    if not points:
        raise RunFailed(f"the loss was not finite at the lowest rate, {low:g}; look at the data, or lower --low")
    suggestions = suggest(points)
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "suggestions": suggestions,
        "diverged_at": points[-1].learning_rate if len(points) < steps else None,
        "chance_loss": math.log(setup.opened.chance_loss_of),
        "points": [asdict(point) for point in points],
        "plot": str(folder / "lr-find.html"),
    }
    write_json(folder / "lr-find.json", result)
    write_lr_plot(folder / "lr-find.html", config.name, result)
    return result
