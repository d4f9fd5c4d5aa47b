"""One file for every cause that can be diagnosed; each holds a pure function Signals -> Finding or None."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from flatout import plugins
from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals
from flatout.errors import ConfigError


class Rule(Protocol):
    """What is seen in one run -> a diagnosed cause, or None. Pure: it reads nothing but the signals."""

    def __call__(self, signals: Signals) -> Finding | None: ...


RULES: tuple[Rule, ...] = tuple(import_module(f"{__name__}.{each.name}").find for each in iter_modules(__path__))
"""`find` of every file of this folder, by name."""


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
