"""What `auto` means, decided once: recipe + machine + dataset -> `Resolved`, kept in a run's resolved.json.

Decisions are pure functions here. Where one needs a measurement (what filling a cache costs, how slow files are), the
measurement is made elsewhere and comes in as a value. Never torch."""

from flatout.decisions.choice import Change, Choice
from flatout.decisions.resolved import Resolved

__all__ = ["Change", "Choice", "Resolved"]
