from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, LabelColumn, LayoutOption, data_app, print_answer

Source = Annotated[str, typer.Argument(metavar="SRC", help="A dataset of any layout: docs/data-layouts.md.")]
Target = Annotated[Path, typer.Argument(metavar="DST", help="Folder to write to.")]


@data_app.command()
def pack(
    source: Source,
    target: Target,
    mode: Annotated[str, typer.Option(help="original bytes, resized JPEGs, or decoded pixels.")] = "original",
    short_side: Annotated[int, typer.Option(metavar="PX", help="Mode resized: the shorter side.")] = 256,
    quality: Annotated[int, typer.Option(help="Mode resized: JPEG quality.")] = 90,
    shard_mb: Annotated[int, typer.Option(help="Size of a shard in MB.")] = 1000,
    layout: LayoutOption = "detect",
    label_column: LabelColumn = None,
    as_json: Json = False,
) -> None:
    """Put a dataset into a few large files: faster to read, to copy and to list than many small ones.

    Use the pack's folder as data.path. A pack of original or decoded samples gives byte-identical batches.
    """
    from flatout.commands.pack import PackOptions, pack_dataset

    options = PackOptions.checked(mode, short_side, quality, shard_mb * 10**6)
    result = pack_dataset(source, target, options, as_json, layout, label_column)
    print_answer(result, as_json, f"packed {result['samples']:,} samples into {target}")


@data_app.command()
def export(
    source: Source,
    target: Target,
    to: Annotated[str, typer.Option(metavar="FORMAT", help="webdataset: tars of images and .cls, with classes.txt.")],
    shard_mb: Annotated[int, typer.Option(min=1, help="Size of a shard in MB.")] = 256,
    layout: LayoutOption = "detect",
    label_column: LabelColumn = None,
    as_json: Json = False,
) -> None:
    """Write a dataset in a format that other loaders read.

    The images are the same bytes, and flatout reads the result with the same fingerprint and the same batches.

    Example:  flatout data export data/ shards/ --to webdataset
    """
    from flatout.commands.export_data import export_dataset

    result = export_dataset(source, target, to, shard_mb * 10**6, as_json, layout, label_column)
    print_answer(result, as_json, f"wrote {result['samples']:,} samples in {result['shards']} shards under {target}")


@data_app.command()
def unpack(source: Source, target: Target, as_json: Json = False) -> None:
    """Write the samples of a pack back as files."""
    from flatout.commands.pack import unpack_dataset

    result = unpack_dataset(source, target, quiet=as_json)
    labels = "" if result["labels"] is None else f"; their names do not say the classes: use {result['labels']}"
    print_answer(result, as_json, f"wrote {result['samples']:,} files under {target}{labels}")


@data_app.command()
def stage(
    source: Source,
    target: Target,
    classes: Annotated[int | None, typer.Option(help="Only the first N classes.")] = None,
    samples_per_class: Annotated[int | None, typer.Option(help="At most M training samples of each class.")] = None,
    as_json: Json = False,
) -> None:
    """Copy a remote dataset to local disk ahead of training, many objects at a time, verified and resumable."""
    from flatout.commands.pack import stage_dataset

    result = stage_dataset(source, target, classes, samples_per_class, quiet=as_json)
    print_answer(result, as_json, result["advice"])
