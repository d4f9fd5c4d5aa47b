"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="Recipe (YAML); see recipes/ for examples.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. --set train.epochs=3.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines instead of text.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, e.g. runs/demo.")]
