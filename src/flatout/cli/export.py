from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, RunPath, app, print_json
from flatout.cli.evaluate import Checkpoint


class ExportFormat(StrEnum):
    onnx = "onnx"
    torch = "torch"
    safetensors = "safetensors"


@app.command()
def export(
    run: RunPath,
    to: Annotated[ExportFormat, typer.Option(help="onnx, torch (torch.export) or safetensors (weights).")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder that is not there yet (default RUN/export-<format>).")
    ] = None,
    checkpoint: Checkpoint = "best",
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Prove it on this data instead of the run's validation set.")
    ] = None,
    view: Annotated[str | None, typer.Option(help="Another view than the run's data.eval_view.")] = None,
    licence: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Licence of the data, for the model card.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Export a trained run with its preprocessing, classes and model card; proven before it is written.

    The folder has the model, preprocessing.json with preprocess.py (numpy and Pillow alone), classes.json and a card.
    What was written is run on the whole validation set: where top-1 differs from that of the run's own model, or a
    probability by more than 0.001, nothing is left behind. Translation: --to safetensors.

    Examples:  flatout export runs/demo --to onnx --licence CC-BY-4.0
               flatout export runs/demo --to torch --out served/demo
    """
    from flatout.commands.export import export_run

    result = export_run(run, to.value, out, checkpoint, data, view, licence, quiet=as_json)
    if as_json:
        print_json(result)
        return
    typer.echo(f"{result['out']}: {', '.join(result['files'])}")
    for line in result["proven"]:
        typer.echo(f"proven: {line}")
