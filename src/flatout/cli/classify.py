import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import RunPath, app
from flatout.cli.evaluate import Checkpoint, Device


@app.command()
def classify(
    run: RunPath,
    what: Annotated[
        list[str], typer.Argument(metavar="FILES|DIR|-", help="Images, folders of images, or - for paths on stdin.")
    ],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead of to the terminal.")] = None,
    top: Annotated[int, typer.Option(min=1, help="So many of the most probable classes.")] = 5,
    checkpoint: Checkpoint = "best",
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, one object a file, instead of CSV.")] = False,
) -> None:
    """Classify images with a trained run: a row for each with class names and probabilities, as they are done.

    Files are decoded ahead by the loader's workers and prepared as validation does. One that cannot be read is a row
    with the error. Exit code: 0 all were classified, 1 some could not be read, 2 nothing was done.

    Examples:  flatout classify runs/demo photos/ --out photos.csv
               find . -name '*.jpg' | flatout classify runs/demo - --json
    """
    from flatout.commands.classify import classify as classify_files

    done = classify_files(run, what, out, top, as_json, checkpoint, device, quiet=False)
    if done["unreadable"]:
        typer.echo(f"{done['unreadable']} of {done['files']} files could not be read; see the column error", err=True)
        sys.exit(1)
