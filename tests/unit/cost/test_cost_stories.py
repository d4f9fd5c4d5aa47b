"""The worked examples of docs/cost.md, figure by figure."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from flatout.config.loading import load_config
from flatout.cost import Usage, hourly_rate_usd, load_catalogue, usage_cost
from flatout.units import format_usd

DOCUMENT = Path(__file__).parents[3] / "docs" / "cost.md"
MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True)
class Example:
    cost: dict[str, object]
    usage: Usage
    usd: dict[str, float]
    total_usd: float


EXAMPLES = {
    "A": Example(
        {
            "instance": "g4dn.xlarge",
            "coordinator": {"instance": "c5n.xlarge"},
            "cache": {"instance": "c5n.xlarge"},
        },
        Usage(
            training_seconds=600,
            coordinator_seconds=600,
            cache_seconds=600,
            function_gb_seconds=3519,
            function_requests=1173,
            gets=300_000,
        ),
        {
            "training nodes": 0.0876666667,
            "coordinator nodes": 0.036,
            "cache nodes": 0.036,
            "function compute": 0.0586501173,
            "function requests": 0.0002346,
            "object-store GETs": 0.12,
        },
        0.3385513840,
    ),
    "B": Example(
        {"usd_per_hour": 7.14, "count": 2}, Usage(training_seconds=14 * HOUR), {"training nodes": 199.92}, 199.92
    ),
    "B, 1,700 steps of 1.8 s": Example(
        {"usd_per_hour": 7.14, "count": 2}, Usage(training_seconds=3060), {"training nodes": 12.138}, 12.138
    ),
    "B, 50,000 steps of 30 s": Example(
        {"usd_per_hour": 7.14, "count": 2}, Usage(training_seconds=1_500_000), {"training nodes": 5950.0}, 5950.0
    ),
    "B, 50,000 steps of 1.8 s": Example(
        {"usd_per_hour": 7.14, "count": 2}, Usage(training_seconds=90_000), {"training nodes": 357.0}, 357.0
    ),
    "B across zones": Example(
        {"usd_per_hour": 7.14, "count": 2},
        Usage(training_seconds=14 * HOUR, transferred_bytes_cross_zone=1260e9),
        {"training nodes": 199.92, "transfer across zones": 25.2},
        225.12,
    ),
    "C, one machine": Example(
        {"instance": "g4dn.xlarge", "disk": {"bytes": "150 GB"}},
        Usage(training_seconds=75 * MINUTE),
        {"training nodes": 0.6575, "disks": 0.0205479452},
        0.6780479452,
    ),
    "C, two machines": Example(
        {"instance": "g4dn.xlarge", "count": 2, "disk": {"bytes": "150 GB"}},
        Usage(training_seconds=37 * MINUTE),
        {"training nodes": 0.6487333333, "disks": 0.0202739726},
        0.6690073059,
    ),
    "C, two machines, spot": Example(
        {"instance": "g4dn.xlarge", "count": 2, "spot": True, "disk": {"bytes": "150 GB"}},
        Usage(training_seconds=37 * MINUTE),
        {"training nodes": 0.2824333333, "disks": 0.0202739726},
        0.3027073059,
    ),
    "D, S3 mount": Example(
        {"instance": "g5.2xlarge"},
        Usage(training_seconds=26 * MINUTE, gets=510_000, stored_byte_seconds=5.46e9 * 26 * MINUTE),
        {"training nodes": 0.5252, "object-store GETs": 0.204, "object-store storage": 0.0000745452},
        0.7292745452,
    ),
    "D, copy and NVMe": Example(
        {"instance": "g5.2xlarge"},
        Usage(training_seconds=39 * MINUTE, gets=51_000, stored_byte_seconds=5.46e9 * 39 * MINUTE),
        {"training nodes": 0.7878, "object-store GETs": 0.0204, "object-store storage": 0.0001118178},
        0.8083118178,
    ),
    "E, baseline": Example(
        {"usd_per_hour": 1.2}, Usage(training_seconds=187), {"training nodes": 0.0623333333}, 0.0623333333
    ),
    "E, estimate": Example({"usd_per_hour": 1.2}, Usage(training_seconds=111), {"training nodes": 0.037}, 0.037),
    "E, checkpointing": Example(
        {"usd_per_hour": 1.2}, Usage(training_seconds=125), {"training nodes": 0.0416666667}, 0.0416666667
    ),
    "E, DP": Example(
        {"usd_per_hour": 1.2}, Usage(training_seconds=127), {"training nodes": 0.0423333333}, 0.0423333333
    ),
    "E, DDP": Example({"usd_per_hour": 1.2}, Usage(training_seconds=96), {"training nodes": 0.032}, 0.032),
}


@pytest.mark.parametrize("story", EXAMPLES)
def test_worked_example(story: str) -> None:
    example = EXAMPLES[story]
    config = load_config({"cost": example.cost}).config.cost
    ledger = usage_cost(example.usage, config, load_catalogue(None))
    assert {line.name: line.usd for line in ledger.lines} == pytest.approx(example.usd, abs=1e-10)
    assert ledger.total_usd == pytest.approx(example.total_usd, abs=1e-9)
    document = DOCUMENT.read_text(encoding="utf-8")
    assert format_usd(ledger.total_usd) in document
    for line in ledger.lines:
        assert format_usd(line.usd) in document, line.name


def test_story_a_adds_sums_never_hourly_rates() -> None:
    """The report of story A added rates per hour to sums in dollars and said 1.14."""
    config = load_config({"cost": EXAMPLES["A"].cost}).config.cost
    catalogue = load_catalogue(None)
    assert hourly_rate_usd(config, catalogue) == pytest.approx(0.958)
    rates_and_sums = 0.958 + 0.0586501173 + 0.0002346 + 0.12
    total = usage_cost(EXAMPLES["A"].usage, config, catalogue).total_usd
    assert rates_and_sums == pytest.approx(1.1368847173)
    assert total == pytest.approx(0.958 / 6 + 0.0586501173 + 0.0002346 + 0.12)
