from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, draw, print_json


@app.command()
def predict(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Run to start from; with --score a folder of runs.")
    ] = None,
    alternatives: Annotated[
        list[str] | None,
        typer.Option("--if", metavar="KEY=VALUE[,KEY=VALUE]", help="One alternative; may be given several times."),
    ] = None,
    score: Annotated[
        bool, typer.Option("--score", help="Compare earlier predictions with the runs that followed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What would a change buy? Step, epoch, run, memory and cost, each with an interval.

    Keys are those of a recipe (data.workers, data.batch_size, data.cache,
    data.stage, train.checkpointing, train.accumulate, train.epochs,
    cost.instance, ...) and of the world around it: storage.latency=50ms,
    storage.bandwidth=200Mbps, link=1Gbps, ranks=4. An interval holds 8 of 10
    outcomes: it is never narrower than what the model missed of this run, and
    as wide as the outcomes of earlier predictions ask for. Predictions are kept
    in RUN/predictions.jsonl; --score holds them against the runs that followed,
    with the share that was inside.

    Examples:  flatout predict runs/demo --if data.workers=4 --if data.workers=4,data.batch_size=128
               flatout predict --score
    """
    from flatout.commands.predict import parse_alternatives, predict_changes, predictions_shown, scores_shown
    from flatout.commands.scoring import score_predictions

    if score:
        scores = score_predictions(run or Path("runs"))
        if as_json:
            print_json([each.to_dict() for each in scores])
        else:
            draw(scores_shown(scores))
        return
    if run is None:
        raise typer.BadParameter("say which run, for example: flatout predict runs/demo --if data.workers=4")
    predictions = predict_changes(run, parse_alternatives(alternatives or []))
    if as_json:
        print_json([each.to_dict() for each in predictions])
    else:
        draw(predictions_shown(predictions))
