from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, RunPath, app, print_answer

Checkpoint = Annotated[
    str, typer.Option(metavar="best|last|FILE", help="Which weights: by checkpoint.metric, the newest, or a file.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto (default: that of the run).")]


@app.command()
def evaluate(
    run: RunPath,
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Other data: its validation split, or all of it without one.")
    ] = None,
    checkpoint: Checkpoint = "best",
    view: Annotated[str | None, typer.Option(help="Another view than the run's data.eval_view.")] = None,
    device: Device = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes that share the batches; or start it by torchrun.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes (default RUN/evaluation.html).")
    ] = None,
    tta: Annotated[
        bool, typer.Option("--tta", help="Also with test-time augmentation, 2 and 10 looks: figures of their own.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Evaluate a trained run: top-1 and top-5, classes, confusions, calibration, the worst samples; BLEU and chrF.

    The same code as the validation of training, with the averaged weights where training validated with them: the
    figures are the same to the last digit. A class of --data that the run does not know is refused.

    Examples:  flatout evaluate runs/demo   |   flatout evaluate runs/demo --data test-set/ --json > test.json
    """
    from flatout.commands.evaluate import PAGE, evaluation_text
    from flatout.commands.evaluate import evaluate as evaluate_run

    result = evaluate_run(run, data, checkpoint, view, device, ranks, out or run / PAGE, as_json, tta)
    if not result:  # one of several ranks; rank 0 prints
        return
    print_answer(result, as_json, evaluation_text)
