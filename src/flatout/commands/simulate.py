"""`flatout simulate FILE`: sharing for jobs and machines that are not here, or a live service's decisions again."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatout.config.schema import Bytes, Seconds
from flatout.errors import ConfigError
from flatout.service.coordinator.policy import Policy
from flatout.simulation.baselines import POLICIES
from flatout.simulation.simulator import SimulatedJob, SimulatedWorld, SimulationOutcome, replay
from flatout.units import format_seconds, format_usd
from flatout.untrusted import blamed_as, read_yaml

_MOST_BATCHES, _MOST_SECONDS = 10_000_000, 5e6


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobsPlan(_Section):
    count: int = Field(1, ge=1, le=10_000)
    step_seconds: Seconds = Field(..., ge=0)
    epochs: int = Field(1, ge=1)
    start_seconds: Seconds = 0.0
    start_apart_seconds: Seconds = 0.0


class ProducersPlan(_Section):
    hands: int = Field(..., ge=1, le=9_999)
    make_seconds: Seconds = Field(..., gt=0)
    cold_seconds: Seconds = 0.0
    usd_per_hour: float = Field(0.0, ge=0)


class Plan(_Section):
    """A scenario; every key says a quantity and its unit."""

    jobs: list[JobsPlan] = Field(..., min_length=1)
    producers: ProducersPlan
    batches_per_epoch: int = Field(..., ge=1)
    batch_size: int = Field(256, ge=1)
    batch_bytes: Bytes = Field(..., gt=0)
    cache_bytes: Bytes = Field(..., gt=0)
    window: int = Field(16, ge=1)
    handover_seconds: Seconds = 0.0
    node_usd_per_hour: float = Field(0.0, ge=0)
    service_usd_per_hour: float = Field(0.0, ge=0)
    functions_usd_per_hour_cap: float | None = Field(None, ge=0)


def simulate(path: Path) -> dict[str, Any]:
    """Figures of every policy, or (a .jsonl trace) the comparison with what the live service decided."""
    if path.suffix == ".jsonl":
        if not path.exists():
            raise ConfigError(f"{path} is not there")
        count, differ = replay(path)
        return {"decisions": count, "different": differ}
    plan = _read(path)
    world, policy = _world(plan), Policy(plan.cache_bytes, plan.window, usd_per_hour=plan.functions_usd_per_hour_cap)
    if 2 * plan.batch_bytes > plan.cache_bytes:
        raise ConfigError(f"cache_bytes is {plan.cache_bytes} but two batches of {plan.batch_bytes} must fit")
    results = {name: _figures(plan, simulated(world, policy), name) for name, simulated in POLICIES.items()}
    return {"jobs": len(world.jobs), "policies": results}


def _read(path: Path) -> Plan:
    try:
        with blamed_as(ConfigError):
            return Plan.model_validate(read_yaml(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path}: {where}: {first['msg']}; see recipes/simulations/shared.yaml for an example"
        ) from None


def _require_bounded(jobs: list[SimulatedJob], made: ProducersPlan, handover_seconds: float) -> None:
    """Simulated seconds and batches take real ones."""
    batches = sum(job.batches for job in jobs)
    each = made.make_seconds / made.hands + handover_seconds
    seconds = made.cold_seconds + made.make_seconds
    seconds += max(job.start_seconds + job.batches * max(job.step_seconds, each) for job in jobs)
    if batches > _MOST_BATCHES or seconds > _MOST_SECONDS:
        raise ConfigError(
            f"{batches:,} batches in at least {format_seconds(seconds)} are to be simulated; at most {_MOST_BATCHES:,} "
            f"in {format_seconds(_MOST_SECONDS)} are: fewer jobs, epochs or batches_per_epoch tell as much"
        )


def _world(plan: Plan) -> SimulatedWorld:
    jobs = [
        SimulatedJob(
            each.step_seconds,
            each.epochs * plan.batches_per_epoch,
            each.start_seconds + number * each.start_apart_seconds,
        )
        for each in plan.jobs
        for number in range(each.count)
    ]
    made = plan.producers
    _require_bounded(jobs, made, plan.handover_seconds)
    return SimulatedWorld(
        tuple(jobs),
        plan.batches_per_epoch,
        plan.batch_bytes,
        made.hands,
        made.make_seconds,
        made.cold_seconds,
        made.usd_per_hour / 3600,
        plan.handover_seconds,
    )


def _figures(plan: Plan, outcome: SimulationOutcome, name: str) -> dict[str, Any]:
    """Each job pays for its node as long as it runs; the service is paid once, as long as any job runs."""
    nodes = sum(outcome.job_seconds) / 3600 * plan.node_usd_per_hour
    service = 0.0 if name == "independent" else outcome.seconds / 3600 * plan.service_usd_per_hour
    rates = [plan.batch_size * outcome.batches / len(outcome.job_seconds) / max(s, 1e-9) for s in outcome.job_seconds]
    return {
        **asdict(outcome),
        "samples_per_second": sum(rates),
        "usd": {
            "training": nodes,
            "service": service,
            "producers": outcome.usd,
            "total": nodes + service + outcome.usd,
        },
    }


def simulation_shown(values: dict[str, Any]) -> RenderableType:
    if "decisions" in values:
        count = f"{values['decisions']} decisions made again, {len(values['different'])} of them differently"
        return Group(*map(Text, (*values["different"][:5], count)))
    table = Table("policy", "samples/s", "longest job", "batches made", "hits", "cost", box=None, pad_edge=False)
    for name, row in values["policies"].items():
        hits = "n/a" if row["hit_rate"] is None else f"{100 * row['hit_rate']:.1f} %"
        table.add_row(
            name,
            f"{row['samples_per_second']:,.0f}",
            format_seconds(max(row["job_seconds"])),
            str(row["made"] + row["made_locally"]),
            hits,
            format_usd(row["usd"]["total"]),
        )
    return table
