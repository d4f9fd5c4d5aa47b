"""From findings to one sentence: what is wrong first, then what costs the most time, else a clean bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flatout.diagnosis.finding import Finding, percent
from flatout.diagnosis.rules import all_rules
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

WORTH_A_VERDICT = 0.05
"""Share of the run that a fix must save to be named as what holds it back."""
RECURS_SHARE = 0.10
_LEAST_STEPS = 5


@dataclass(frozen=True)
class Explanation:
    """`verdict` in one sentence; `cause` in one word of `finding.CAUSES`; findings by what they buy, best first."""

    verdict: str
    cause: str
    healthy: bool
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        findings = [finding.to_dict() for finding in self.findings]
        return {"verdict": self.verdict, "cause": self.cause, "healthy": self.healthy, "findings": findings}


def explain_signals(signals: Signals) -> Explanation:
    """The verdict on one run."""
    stepping = signals.time.wall_seconds - signals.startup_seconds
    findings = ranked([found for rule in all_rules() if (found := rule(signals)) is not None], stepping)
    leading = next((finding for finding in findings if _leads(finding, signals)), None)
    if leading is not None:
        assert leading.cause is not None
        return Explanation(_sentence(leading), leading.cause, False, findings)
    if signals.step.done < _LEAST_STEPS:
        text = f"No verdict: {signals.step.done} steps were recorded, {_LEAST_STEPS} are needed."
        return Explanation(text, "unexplained", False, findings)
    return Explanation(_clean_bill(signals), "compute", True, findings)


def ranked(findings: Sequence[Finding], stepping_seconds: float) -> tuple[Finding, ...]:
    """Urgent ones first (a wrong result before a missing explanation), then by seconds saved. Startup, which a longer
    run hardly notices, comes after whatever costs a tenth of the rest in every step or epoch."""
    recurs = any(
        finding.cause and finding.cause != "startup" and finding.saved_seconds >= RECURS_SHARE * stepping_seconds
        for finding in findings
    )

    def order(finding: Finding) -> tuple[bool, bool, bool, float, float]:
        once = recurs and finding.cause == "startup"
        return (not finding.urgent, finding.cause == "unexplained", once, -finding.saved_seconds, -(finding.usd or 0.0))

    return tuple(sorted(findings, key=order))


def _leads(finding: Finding, signals: Signals) -> bool:
    enough = signals.step.done >= _LEAST_STEPS and finding.saved_seconds >= WORTH_A_VERDICT * signals.time.wall_seconds
    return bool(finding.cause) and (finding.urgent or enough)


def _sentence(finding: Finding) -> str:
    text = f"{finding.title}; {finding.fix.text}"
    if finding.gain is not None:
        text += f": about {finding.gain.value:.2f} times as fast ({finding.gain.low:.2f} to {finding.gain.high:.2f})"
    return text + "."


def _clean_bill(signals: Signals) -> str:
    return (
        f"Nothing holds this run back but the device itself: {percent(1 - signals.step.wait_share)} of each "
        f"{format_seconds(signals.step.seconds)} step computes, {percent(signals.step.wait_share)} waits for data."
    )
