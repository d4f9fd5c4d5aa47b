"""An explanation on one screen: the verdict, then findings with evidence, fix and gain."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from flatout.diagnosis.finding import Finding
from flatout.diagnosis.verdict import Explanation
from flatout.units import format_seconds, format_usd


def render_explanation(name: str, explanation: Explanation) -> RenderableType:
    """The verdict, then each finding with evidence, fix and what it buys."""
    style = "bold green" if explanation.healthy else "bold red" if explanation.cause == "unexplained" else "bold yellow"
    lines: list[RenderableType] = [Text(explanation.verdict, style=style), Text(f"cause: {explanation.cause}")]
    for number, finding in enumerate(explanation.findings, 1):
        lines += [Text(), *_finding(number, finding)]
    return Panel(Group(*lines), title=Text(f"flatout explain: {name}"), title_align="left", padding=(1, 2))


def _finding(number: int, finding: Finding) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"{number}. {finding.title}", style="bold")]
    lines += [Text(f"   {line}", style="dim") for line in finding.evidence]
    changes = "".join(f"  --set {key}={value}" for key, value in finding.fix.changes.items())
    lines.append(Text(f"   fix: {finding.fix.text}{changes}"))
    bought = []
    if finding.gain is not None:
        gain = finding.gain
        bought.append(f"the run {gain.value:.2f} times as fast ({gain.low:.2f} to {gain.high:.2f})")
        bought.append(f"{format_seconds(finding.saved_seconds)} less")
    if finding.usd is not None:
        bought.append(f"{format_usd(finding.usd)} less")
    if bought:
        lines.append(Text(f"   buys: {', '.join(bought)}", style="green"))
    return lines
