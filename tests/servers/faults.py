"""What the fault proxy may do to a request, as values that travel as JSON; which fault hits which request is pure."""

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["throttle", "answer", "truncate", "disconnect", "stall", "corrupt", "etag"]


@dataclass
class Rule:
    """One fault. It hits a request when every condition holds; the first rule that hits wins."""

    kind: Kind
    first: int | None = None
    """Only so many requests; None is no limit."""
    share: float = 1.0
    """Of the requests that match, this share is hit (seeded draw)."""
    seconds: float | None = None
    """Only for so long after the faults were set."""
    path_contains: str = ""
    method: str = "GET"
    objects_only: bool = False
    """Leave listings alone: their path has a query."""
    after_bytes: int = 0
    """truncate, disconnect, stall, corrupt: how much of the body passes first. (etag: another MD5 in the header.)"""
    status: int = 503
    """answer: the status line's code."""
    body: str = ""
    """answer: the body, XML as S3 sends it."""


@dataclass
class Faults:
    """Everything the proxy does besides passing bytes on."""

    latency_seconds: float = 0.0
    """Added to every request before it goes upstream."""
    bytes_per_second: float | None = None
    """One line shared by all answers, as a slow link is."""
    rules: list[Rule] = field(default_factory=list)
    seed: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Faults":
        raw: dict[str, Any] = json.loads(text)
        return cls(**{**raw, "rules": [Rule(**rule) for rule in raw.get("rules", [])]})


class Chooser:
    """Counts how often each rule has hit, and says which one hits next."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.hits = [0] * len(faults.rules)
        self._random = random.Random(faults.seed)

    def choose(self, method: str, target: str, elapsed_seconds: float) -> Rule | None:
        for index, rule in enumerate(self.faults.rules):
            if self._hits(index, rule, method, target, elapsed_seconds):
                self.hits[index] += 1
                return rule
        return None

    def _hits(self, index: int, rule: Rule, method: str, target: str, elapsed_seconds: float) -> bool:
        return (
            (not rule.method or rule.method == method)
            and (rule.first is None or self.hits[index] < rule.first)
            and (rule.seconds is None or elapsed_seconds < rule.seconds)
            and rule.path_contains in target
            and not (rule.objects_only and "?" in target)
            and (rule.share >= 1.0 or self._random.random() < rule.share)
        )
