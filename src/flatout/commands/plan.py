"""Plan a recipe on machines that are not here: every option, the cheapest, the fastest, and what lies between."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

from flatout.commands.planned_data import KNOWN, Facts, Sizes, data_facts
from flatout.commands.traced_model import Shape, traced_work
from flatout.config.loading import config_digest, load_config
from flatout.config.loading import parse_assignments as parse_assignments
from flatout.config.schema import Config
from flatout.config.sections.model import RESNETS
from flatout.cost.catalogue import load_catalogue, read_price_file
from flatout.cost.machines import OLD_DAYS, Machine, days_old, load_machines
from flatout.decisions.choice import unless_open
from flatout.errors import ConfigError
from flatout.planning.alternatives import with_alternatives
from flatout.planning.cards import Card, card_of_device, find_card, load_cards
from flatout.planning.estimate import Correction
from flatout.planning.options import Option, PlannedJob, at_price, cheapest, fastest, frontier, option_for
from flatout.runs.directory import write_json
from flatout.units import parse_bytes, parse_seconds

_LARGE_SIDE = 128
"""Pixels from which on nobody means a stem that keeps them all."""


@dataclass(frozen=True)
class Question:
    """What was asked on the command line."""

    data: str | None = None
    samples: int | None = None
    sample_bytes: str | None = None
    machines: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    max_usd: float | None = None
    deadline: str | None = None
    nodes: int = 1
    store: str | None = None
    measured: Path | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class MachinePlan:
    """Every option, the two best and the frontier between them."""

    recipe: str
    digest: str
    question: Question
    options: tuple[Option, ...]
    cheapest: Option | None
    fastest: Option | None
    frontier: tuple[Option, ...]
    data_basis: str
    notes: tuple[str, ...]
    made_unix: float
    identity: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": self.identity,
            "recipe": self.recipe,
            "config_digest": self.digest,
            "made_unix": self.made_unix,
            "options": [each.to_dict() for each in self.options],
            "best": {
                "cheapest": None if self.cheapest is None else self.cheapest.to_dict(),
                "fastest": None if self.fastest is None else self.fastest.to_dict(),
            },
            "frontier": [each.name for each in self.frontier],
            "data_basis": self.data_basis,
            "notes": list(self.notes),
        }


def make_plan(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any], question: Question) -> MachinePlan:
    """Traces, sizes and prices to options, cheapest first."""
    config = load_config(source, _with_path(question, overrides)).config
    facts = data_facts(config, _sizes(config, question), question.store)
    job = job_of(config, facts, question)
    machines, notes = _machines(config, question)
    notes += recipe_notes(config)
    if question.accuracy is not None:
        epochs, why = epochs_to(question.accuracy, question.measured)
        job = replace(job, epochs=epochs or job.epochs)
        notes.append(f"--accuracy: {why}")
    options = []
    for machine, card, prices in machines:  # a price changes nothing but the dollars
        found = option_for(job, machine, card)
        options += [at_price(found, spot, job.nodes) for spot in prices]
    options.sort(key=lambda each: (not each.fits, each.usd is None, each.usd.value if each.usd else each.hours.value))
    deadline = None if question.deadline is None else parse_seconds(question.deadline) / 3600
    options = with_alternatives(job, options, deadline)
    made = time.time()
    plan = MachinePlan(
        config.name,
        config_digest(config),
        question,
        tuple(options),
        cheapest(options, deadline),
        fastest(options, question.max_usd),
        tuple(frontier(options)),
        facts.samples.basis,
        tuple(notes),
        made,
    )
    return replace(plan, identity=f"{plan.digest[:8]}-{int(made):x}")


def _with_path(question: Question, overrides: Mapping[str, Any]) -> dict[str, Any]:
    is_path = question.data is not None and question.data not in KNOWN
    return {**overrides, **({"data.path": question.data} if is_path else {})}


def _sizes(config: Config, question: Question) -> Sizes | None:
    """None: the data itself has to say."""
    known = KNOWN.get(question.data or "")
    if question.samples is None and known is not None:
        return known
    if question.samples is None:
        return None
    sizes = known or KNOWN["imagenet"]
    classes = config.data.classes if isinstance(config.data.classes, int) else sizes.classes
    each = sizes.bytes_each if question.sample_bytes is None else float(parse_bytes(question.sample_bytes))
    if each <= 0:
        raise ConfigError(f"--sample-bytes is {question.sample_bytes!r}; a file has at least one byte")
    scale = (each / sizes.bytes_each) ** 0.5  # as many bytes a pixel
    width, height = (max(32, round(side * scale)) for side in (sizes.width, sizes.height))
    return Sizes(question.samples, round(0.04 * question.samples), classes, each, width, height)


def job_of(config: Config, facts: Facts, question: Question) -> PlannedJob:
    shape = Shape(config, max(1, facts.classes), side_of(config))
    works = cache(partial(traced_work, shape))
    train, text = config.train, config.spec.batch_unit == "tokens"
    correction = None if question.measured is None else _correction(question.measured, config, works)
    workers = unless_open(config.data.workers)
    return PlannedJob(
        model=config.model.name.rpartition(":")[2],
        works=works,
        samples=facts.samples,
        batch=batch_of(config),
        epochs=train.epochs,
        max_steps=train.max_steps,
        precision=train.precision,
        tf32=train.tf32,
        channels_last=None if text else train.channels_last,
        checkpointing=train.checkpointing,
        can_checkpoint=":" not in config.model.name,
        accumulate=train.accumulate,
        sharded=config.parallel.mode == "fsdp",
        workers=workers,
        cached=not text and config.data.cache != "off",
        nodes=question.nodes,
        validations=-(-train.epochs // config.validate_.every_epochs),
        correction=correction,
    )


def batch_of(config: Config) -> int:
    """Samples of one step on one card; of text, pairs of average length that fill its tokens."""
    from flatout.commands.traced_model import PAIR_TOKENS

    if config.spec.batch_unit == "tokens":
        return max(1, config.data.batch_tokens // (2 * PAIR_TOKENS))
    if config.data.global_batch is None:
        return config.data.batch_size
    devices = config.parallel.devices if isinstance(config.parallel.devices, int) else 1
    return max(1, config.data.global_batch // (devices * config.parallel.nodes))


def side_of(config: Config) -> int:
    if config.spec.batch_unit == "tokens":
        return 0
    from flatout.data.pixels.views import resolve_view

    view = resolve_view(config.data.view, config.views)
    return max([view.size, *(size for _, size in view.sizes)])


def epochs_to(accuracy: float, measured: Path | None) -> tuple[int | None, str]:
    """From the curve of the run that calibrates; None where there is none or it never got there. In percent or as a
    share."""
    from flatout.runs import read_run

    if measured is None:
        return None, "no run says how many epochs it takes; name one with --measured. Epochs are the recipe's"
    run = read_run(measured)
    rows = [(int(row["epoch"]), float(row["top1"])) for row in run.epochs if row.get("top1")]
    target = accuracy / 100 if accuracy > 1 else accuracy
    reached = [epoch for epoch, top1 in rows if top1 >= target]
    if reached:
        return reached[0] + 1, f"{measured} reached {target:.1%} in epoch {reached[0] + 1}: so many are planned"
    best = f"its best is {max(top1 for _, top1 in rows):.1%}" if rows else "it has no top1"
    return None, f"{measured} never reached {target:.1%} ({best}); epochs are the recipe's"


def recipe_notes(config: Config) -> list[str]:
    """What of the recipe itself would surprise who looks at the figures."""
    side = side_of(config)
    if config.model.name in RESNETS and config.model.stem == "small" and side >= _LARGE_SIDE:
        return [
            f"model.stem is small, for images of 32 to 64 pixels: at {side} every layer has 16 times the pixels of the "
            "published model; set model.stem=standard"
        ]
    return []


Offer = tuple[Machine, Card, tuple[bool, ...]]
"""A machine, its card, and whether it is offered on demand (False) or as spot (True)."""


def _machines(config: Config, question: Question) -> tuple[list[Offer], list[str]]:
    """What was named, else every machine with a card that specs.csv knows; on demand, and spot where it has a price."""
    own = None if config.cost.prices is None else read_price_file(config.cost.prices)
    load_catalogue(config.cost.prices)  # refuses what is wrong in the user's file
    cards, known = load_cards(), load_machines(own)
    notes: list[str] = []
    chosen: list[Machine] = []
    for name in question.machines:
        found = [each for each in known if each.name == name]
        if not found:
            raise ConfigError(_unknown_machine(name, known))
        chosen += found
    homes = [_at_home(name) for name in question.gpus]
    if not question.machines and not question.gpus:
        chosen = known
    unknown = sorted({each.gpu for each in chosen if each.gpu not in cards})
    if unknown:
        notes.append(f"no figures of {', '.join(unknown)}: machines with them are left out")
    offered: list[Offer] = [
        (each, cards[each.gpu], prices)
        for each in chosen
        if each.gpu in cards and (prices := tuple(spot for spot in (False, True) if each.hourly_usd(spot) is not None))
    ]
    if not offered and not homes:
        why = f"no figures of {', '.join(unknown)}" if unknown else "no machine has a price"
        raise ConfigError(
            f"{why}: give a card of flatout prices show --cards and a price in a price file (cost.prices), "
            "or ask for cards with --gpu"
        )
    old = [
        days for each, _, _ in offered if (days := days_old(each.as_of, date.today())) is not None and days > OLD_DAYS
    ]
    if old:
        notes.append(f"prices are up to {max(old)} days old: flatout prices import FILE brings newer ones")
    return offered + [(machine, card, (False,)) for machine, card in homes], notes


def _unknown_machine(name: str, known: Sequence[Machine]) -> str:
    import difflib

    close = difflib.get_close_matches(name, [each.name for each in known], n=1)
    hint = f"did you mean {close[0]}?" if close else "flatout prices show lists them;"
    return f"no machine is called {name!r}; {hint} a card at home is asked for with --gpu"


def _at_home(name: str) -> tuple[Machine, Card]:
    """A card in this machine, or several (`4xT4`): its cores and memory are the ones at hand."""
    from flatout.machine.budgets import usable_cores

    several = re.fullmatch(r"([1-9]\d?)\s*x\s*(.+)", name)
    count, card = (int(several[1]), find_card(several[2])) if several else (1, find_card(name))
    said = f"{count} x {card.name} here" if count > 1 else f"{card.name} here"
    cores = float(usable_cores())
    return Machine(said, "own", card.name, count, cores, None, None, None, None, "nvme", "here", "n/a"), card


def _correction(directory: Path, config: Config, works: Any) -> Correction:
    """A run or probe of the same model on a known card: what its device took of what is estimated for that card."""
    from flatout.commands.predict import calibration_of
    from flatout.planning.estimate import arithmetic_for, speed_of
    from flatout.runs import read_run

    run = read_run(directory)
    own = load_config(run.config).config
    if own.model != config.model:
        raise ConfigError(
            f"{directory} trained {own.model.name}, not {config.model.name}: it says nothing of its speed"
        )
    device = str((run.summary.get("device") or {}).get("name") or "")
    card = card_of_device(device)
    if card is None:
        raise ConfigError(f"{directory} ran on {device or 'an unknown device'}, which is no card of specs.csv")
    calibration = calibration_of(run, own)
    arithmetic = arithmetic_for(card, calibration.settings.precision, own.train.tf32)
    work = works(arithmetic == "amp", own.train.checkpointing)
    batch = calibration.settings.batch_size
    measured = calibration.device.step_seconds(batch)
    if not 0 < measured < math.inf:
        raise ConfigError(f"{directory} has no times of steps to go by; train some more of it, or leave out --measured")
    told = speed_of(work, batch, card, arithmetic, own.train.channels_last, own.model.name).seconds.value
    return Correction(measured / told, card.name, str(directory))


def keep_plan(plan: MachinePlan, folder: Path, emitted_digest: str | None = None) -> Path:
    """Stored under runs/plans, where `flatout plan --score` finds it. A run follows it that trains the recipe as it was
    planned, or as it was emitted for one machine."""
    digests = [plan.digest, *([emitted_digest] if emitted_digest else [])]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{plan.identity}.json"
        write_json(path, {**plan.to_dict(), "config_digests": digests})
    except OSError as error:
        raise ConfigError(f"cannot keep the plan in {folder}: {error.strerror}; name a folder with --runs") from None
    return path
