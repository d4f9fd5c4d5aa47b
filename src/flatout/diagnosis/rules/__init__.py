"""One file for every cause that can be diagnosed; each holds a pure function Signals -> Finding or None."""

from collections.abc import Iterator
from functools import partial
from typing import Protocol, cast

from flatout import plugins
from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.rules import (
    augment_bound,
    bursty_loading,
    busy_host,
    checkpoint_time,
    cold_epoch,
    cold_producers,
    copy_time,
    crowded,
    decode_bound,
    disk_cap,
    epoch_start,
    exposed_communication,
    failed,
    few_workers,
    host_time,
    hot_clock,
    learning,
    memory_full,
    memory_growth,
    memory_headroom,
    needless_checkpointing,
    no_workers,
    optimizer_time,
    port_speed,
    prediction_off,
    retries,
    slow_fetch,
    small_batch,
    small_shared_cache,
    spot_price,
    startup_time,
    starved_producers,
    straggler,
    throttling,
    too_many_nodes,
    unattributed,
    validation_time,
)
from flatout.diagnosis.signals import Signals
from flatout.errors import ConfigError


class Rule(Protocol):
    """What is seen in one run -> a diagnosed cause, or None. Pure: it reads nothing but the signals."""

    def __call__(self, signals: Signals) -> Finding | None: ...


RULES: tuple[Rule, ...] = (
    augment_bound.find,
    bursty_loading.find,
    busy_host.find,
    checkpoint_time.find,
    cold_epoch.find,
    cold_producers.find,
    copy_time.find,
    crowded.find,
    decode_bound.find,
    disk_cap.find,
    epoch_start.find,
    exposed_communication.find,
    failed.find,
    few_workers.find,
    host_time.find,
    hot_clock.find,
    learning.find,
    memory_full.find,
    memory_growth.find,
    memory_headroom.find,
    needless_checkpointing.find,
    no_workers.find,
    optimizer_time.find,
    port_speed.find,
    prediction_off.find,
    retries.find,
    slow_fetch.find,
    small_batch.find,
    small_shared_cache.find,
    spot_price.find,
    startup_time.find,
    starved_producers.find,
    straggler.find,
    throttling.find,
    too_many_nodes.find,
    unattributed.find,
    validation_time.find,
)


def all_rules() -> Iterator[Rule]:
    """Our own, then those that installed packages offer as entry points of flatout.rules."""
    yield from RULES
    for name in plugins.installed("rules"):
        yield partial(_guarded, name)


def _guarded(name: str, signals: Signals) -> Finding | None:
    """A rule of somebody else's that fails is itself a finding: it takes neither the others nor the run with it."""
    try:
        rule = cast(Rule, plugins.load("rules", name, "flatout.rules"))
        with plugins.blamed(f"rule {name!r}"):
            return rule(signals)
    except ConfigError as error:
        package = plugins.installed("rules")[name].module.partition(".")[0]
        fix = Fix(f"repair or uninstall {package}, which offers the rule")
        return Finding(f"rule-{name}", None, f"The rule {name!r} of {package} failed", (str(error),), fix)
