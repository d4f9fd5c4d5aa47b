from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, LabelColumn, LayoutOption, data_app, print_answer


@data_app.command()
def audit(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A dataset of any layout (docs/data-layouts.md).")],
    layout: LayoutOption = "detect",
    label_column: LabelColumn = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with pictures of what is wrong.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Quick look: read N samples of each class and split.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at every sample and say what is wrong with the dataset, before training pays for it.

    Finds broken and empty files; copies in a class, between classes and from
    train to val; classes that do not match; odd colour modes, formats, names.
    Each finding says how many, gives examples and what to do.

    Exit code: 0 no problem (warnings and notes may be), 1 a problem, 2 no dataset.

    Examples:  flatout data audit data/   |   flatout data audit s3://b/set --limit 20
    """
    from flatout.commands.audit import audit_data, audit_text

    result = audit_data(path, html, limit, quiet=as_json, layout=layout, label_column=label_column)
    print_answer(result, as_json, audit_text)
    raise typer.Exit(1 if result["problems"] else 0)


make_app = typer.Typer(help="Synthesise datasets.", no_args_is_help=True)
data_app.add_typer(make_app, name="make")


@make_app.command()
def shapes(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write train/ and val/.")],
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 8,
    samples_per_class: Annotated[int, typer.Option(help="Training samples of each class.")] = 200,
    size: Annotated[int, typer.Option(metavar="PX", help="Side of the images in pixels.")] = 64,
    val_per_class: Annotated[
        int | None, typer.Option(help="Validation samples of each class (default a fifth).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives other images.")] = 0,
    as_json: Json = False,
) -> None:
    """Coloured shapes on noise: a small dataset that a small model can learn. The same bytes every time."""
    from flatout.commands.make_data import make_shapes_dataset

    made = make_shapes_dataset(folder, classes, samples_per_class, size, val_per_class, seed, quiet=as_json)
    print_answer(made, as_json, f"{made['samples']} images of {classes} classes in {folder}")
