"""From findings to one sentence: what is wrong first, then what costs the most time, else a clean bill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flatout.diagnosis.contention import COMPUTING
from flatout.diagnosis.finding import Finding, percent, run_gain
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.rules import all_rules
from flatout.diagnosis.rules.busy_host import who_has_the_cores
from flatout.diagnosis.scripts import in_script_words
from flatout.diagnosis.signals import Signals
from flatout.html_view import html_of

WORTH_A_VERDICT = 0.05
"""Share of the run that a fix must save to be named as what holds it back."""
RECURS_SHARE = 0.10
_LEAST_STEPS = 5
_WORTH_LISTING = 0.01
# What a cause can save at most: the parts of the ledger that it is about. Causes that are not here have no such bound.
_PARTS = {
    **dict.fromkeys(("data-workers", "data-decode", "data-fetch", "epoch-start"), ("data_wait", "startup")),
    "network": ("communication",),
    "copy": ("copy",),
    "checkpoint": ("checkpoint",),
    "validation": ("validation",),
}


@dataclass(frozen=True)
class Explanation:
    """`verdict` in one sentence; `cause` in one word of `finding.CAUSES`; findings by what their
    causes take, most first. `shares` of the run's wall clock say where its time went; they add up to 1."""

    verdict: str
    cause: str
    healthy: bool
    findings: tuple[Finding, ...]
    shares: dict[str, float]
    _repr_html_ = html_of

    def to_dict(self) -> dict[str, Any]:
        findings = [finding.to_dict() for finding in self.findings]
        told = {"verdict": self.verdict, "cause": self.cause, "healthy": self.healthy, "findings": findings}
        return {**told, "shares": self.shares}


def explain_signals(signals: Signals, improve: Callable[[Finding], Finding] = lambda finding: finding) -> Explanation:
    """The verdict on one run. `improve` gives a finding the best fix there is (diagnosis/remedies.py)."""
    found = [bounded(improve(each), signals) for rule in all_rules() if (each := rule(signals)) is not None]
    told = found if signals.script is None else in_script_words(signals, found)
    findings = ranked(told)
    shares = {name: signals.time.share(seconds) for name, seconds in ledger(signals).items()}
    leading = next((finding for finding in findings if _leads(finding, signals)), None)
    if leading is not None:
        assert leading.cause is not None
        return Explanation(_sentence(leading, findings, signals), leading.cause, False, findings, shares)
    if signals.step.done < _LEAST_STEPS:
        text = f"No verdict: {signals.step.done} steps were recorded, {_LEAST_STEPS} are needed."
        return Explanation(text, "unexplained", False, findings, shares)
    return Explanation(_clean_bill(shares), "compute", True, findings, shares)


def ledger(signals: Signals) -> dict[str, float]:
    """Where the run's time went, in words; adds up to its wall clock. The one denominator of every share."""
    named = {
        "computes": signals.net(*COMPUTING),
        "waits for data": signals.net("data_wait"),
        "waits for gradients": signals.net("communication"),
        "waits for a core that others have": signals.contention.outside(),
        "copies to the device": signals.net("copy"),
        "validates": signals.net("validation"),
        "saves checkpoints": signals.net("checkpoint"),
        "starts": signals.net("startup"),
        "keeps records" if signals.script is None else "runs the script's other code": signals.net("other"),
        "has no owner": signals.net("unattributed"),
    }
    return {name: seconds for name, seconds in named.items() if seconds > 0}


def bounded(finding: Finding, signals: Signals) -> Finding:
    """No fix saves more than the parts of the run that its cause is about hold, nor what only waited for a core."""
    parts = _PARTS.get(finding.cause or "")
    if parts is None or finding.gain is None:
        return finding
    most = max(0.0, signals.net(*parts))
    finding = replace(finding, cost_seconds=min(finding.cost_seconds, most))
    if finding.saved_seconds <= most:
        return finding
    kept = most / finding.saved_seconds
    saved = (finding.saved or Interval.exact(finding.saved_seconds)) * kept
    usd = None if finding.usd is None else finding.usd * kept
    return replace(finding, saved=saved, saved_seconds=saved.value, gain=run_gain(signals, saved), usd=usd)


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """What ended the run, then urgent ones (a wrong result before a missing explanation), then by what the cause takes
    of the run, of which its fix may save a part."""

    def order(finding: Finding) -> tuple[bool, bool, bool, float, float]:
        costs = max(finding.saved_seconds, finding.cost_seconds)
        unexplained = finding.cause == "unexplained"
        return (finding.id != "failed", not finding.urgent, unexplained, -costs, -(finding.usd or 0.0))

    return tuple(sorted(findings, key=order))


def _leads(finding: Finding, signals: Signals) -> bool:
    enough = signals.step.done >= _LEAST_STEPS and finding.saved_seconds >= WORTH_A_VERDICT * signals.time.wall_seconds
    return bool(finding.cause) and (finding.urgent or enough)


def _sentence(finding: Finding, findings: Sequence[Finding], signals: Signals) -> str:
    text = f"{finding.title}; {finding.fix.text}"
    if finding.gain is not None:
        text += f": about {finding.gain.value:.2f} times as fast ({finding.gain.low:.2f} to {finding.gain.high:.2f})"
    waited = signals.time.share(signals.contention.outside())
    if finding.id != "busy-host" and waited >= WORTH_A_VERDICT and (who := who_has_the_cores(signals)):
        text += f". Besides, {percent(waited)} of the run waits for cores that {who[0][0]}"
    later = _recurring(findings, signals) if finding.cause == "startup" or finding.id == "busy-host" else None
    if later is not None and later is not finding:
        text += f". A longer run is held back by something else: {later.title}"
    return text + "."


def _recurring(findings: Sequence[Finding], signals: Signals) -> Finding | None:
    """What costs most of the time after the start, where that is much: a longer run hardly notices its start. Cores
    that others took while it started are part of the start."""
    stepping = signals.time.wall_seconds - signals.startup_seconds

    def later(finding: Finding) -> float:
        start = signals.contention.outside("startup") if finding.id == "busy-host" else 0.0
        return finding.saved_seconds - start if finding.cause and finding.cause != "startup" else 0.0

    most = max(findings, key=later)
    return most if later(most) >= RECURS_SHARE * stepping and later(most) > 0 else None


def _clean_bill(shares: dict[str, float]) -> str:
    """If another part than computing is the largest, no rule knows how to make that one shorter."""
    told = sorted((item for item in shares.items() if item[1] >= _WORTH_LISTING), key=lambda item: -item[1])
    device = bool(told) and told[0][0] == "computes"
    what = (
        "Nothing holds this run back but the device itself" if device else "Nothing that a change would save is large"
    )
    return f"{what}: of its time, {', '.join(f'{percent(share)} {name}' for name, share in told)}."
