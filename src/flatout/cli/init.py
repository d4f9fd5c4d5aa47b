from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, print_json


@app.command()
def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Folder, .tar, pack or s3:// URL of your images.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the recipe goes (default <name of the data>.yaml).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at your data and this machine, and write a first recipe with a reason beside every value.

    The view goes by the size of the pictures, the batch by memory, epochs by the number of samples; where there is no
    validation split, a share is held out. Nothing is overwritten.

    Examples:  flatout init photos/   |   flatout init s3://bucket/photos --out first.yaml
    """
    from flatout.commands.init import init_recipe

    made = init_recipe(data, out)
    if as_json:
        print_json(made)
        return
    for line in made["found"]:
        typer.echo(line)
    typer.echo(f"{made['recipe']} is written. What to type next:")
    for line in made["next"]:
        typer.echo(f"  {line}")
