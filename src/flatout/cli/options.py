"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Recipe: a YAML file, or a name that flatout recipes lists.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. --set train.epochs=3.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines instead of text.")]
LayoutOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="folders, imagenet, table, webdataset, parquet, mds, or auto: found by the files' names."
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="The column that is the class, where it is not called label.")
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, e.g. runs/demo.")]
