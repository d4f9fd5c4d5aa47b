"""What a cache of decoded samples would cost this run's data: measured where the run did not, and the data is here."""

import platform
from dataclasses import replace

import numpy as np

from flatout.config.schema import Config
from flatout.decisions.caching import CacheChoice, SampleCosts, choose_tier, with_costs
from flatout.diagnosis.calibration import Calibration
from flatout.errors import FlatoutError
from flatout.machine.budgets import cache_folder, disk_budget_bytes, memory_budget_bytes
from flatout.runs import Run


def with_cache_costs(calibration: Calibration, run: Run, config: Config) -> Calibration:
    """A recipe that fixes `data.cache` has the loader measure nothing: what a first epoch takes that decodes whole
    pictures, and what later ones take, is measured now. Left alone on another machine, and where the data is gone."""
    choice = calibration.cache_choice or CacheChoice(config.data.cache, calibration.settings.cache)
    here = run.environment.get("host") == platform.node()
    if choice.is_measured or not choice.possible or not config.spec.has_images or not here:
        return calibration
    try:
        measured = _measure(config, choice)
    except (FlatoutError, OSError):
        return calibration
    return calibration if measured is None else replace(calibration, cache_choice=measured)


def _measure(config: Config, choice: CacheChoice) -> CacheChoice | None:
    """A moment; a tier that has room for a part of the samples keeps that part."""
    from flatout.data.loading.fill_costs import probe_samples
    from flatout.data.loading.prepare import BatchPlan
    from flatout.tasks.setup import open_task

    plan = open_task(config).plan
    if not isinstance(plan, BatchPlan) or plan.view.decode == "scaled":
        return None
    if plan.split.shapes(np.zeros(1, np.int64)) is not None:
        return None
    probed = probe_samples(plan, with_costs=True)
    if probed.costs is None:
        return None
    needed, memory = int(probed.decoded_bytes * len(plan.split)), memory_budget_bytes()
    found = choose_tier("auto", config.train.epochs, needed, memory, disk_budget_bytes(cache_folder()), 0, probed.costs)
    room = min(1.0, memory / max(1, needed))
    kept = room * probed.costs.kept_seconds + (1 - room) * probed.costs.crop_seconds
    costs = SampleCosts(probed.costs.crop_seconds, probed.costs.fill_seconds, kept)
    return with_costs(replace(choice, fits=found.fits), costs)
