from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, print_answer, recipes_app

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `flatout recipes` lists.")]


@recipes_app.callback(invoke_without_command=True)
def recipes(context: typer.Context, as_json: Json = False) -> None:
    """List the recipes that come with flatout; show or copy one.

    Commands that take a recipe take its name: flatout train demo.

    Examples:  flatout recipes   |   flatout recipes show demo   |   flatout recipes copy demo mine.yaml
    """
    if context.invoked_subcommand is not None:
        return
    from flatout.commands.recipes import list_recipes, recipes_table

    print_answer(list_recipes(), as_json, recipes_table)


@recipes_app.command()
def show(name: Name) -> None:
    """Print a recipe as it is, comments and all."""
    from flatout.commands.recipes import recipe_text

    typer.echo(recipe_text(name), nl=False)


@recipes_app.command()
def copy(
    name: Name,
    to: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to (default NAME.yaml in the working directory).")
    ] = None,
) -> None:
    """Copy a recipe to change it; a suite comes with the recipe it varies. Nothing is overwritten."""
    from flatout.commands.recipes import copy_recipe

    for path in copy_recipe(name, to):
        typer.echo(str(path))
