"""The doctor's lines on a terminal."""

from rich.console import Console
from rich.text import Text

from flatout.commands.doctor_data import CheckResult

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_CONSOLE = Console(highlight=False)


def say_line(line: CheckResult) -> None:
    text = Text(f"{line.status:8}", style=_STYLES[line.status])
    text.append(f" {line.area:9} {line.text}", style="default")
    if line.remedy:
        text.append(f"\n{'':19}{line.remedy}", style="dim")
    _CONSOLE.print(text, soft_wrap=True)
