from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Assignments, Json, app, draw, print_answer


@app.command()
def plan(
    recipe: Annotated[Path | None, typer.Argument(metavar="[RECIPE]", help="Recipe (YAML); with --score none.")] = None,
    assignments: Assignments = None,
    data: Annotated[str | None, typer.Option(help="Path of the data, or a known name such as imagenet.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Training samples, where the data is not here.")] = None,
    sample_bytes: Annotated[str | None, typer.Option(help="Mean size of a file, e.g. 110kB.")] = None,
    machines: Annotated[
        str | None, typer.Option("--on", help="Only these machines, e.g. g4dn.xlarge,g5.xlarge.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Cards at home, e.g. T4,4xA10G (names of flatout prices show --cards).")
    ] = None,
    max_usd: Annotated[float | None, typer.Option(min=0, help="Most dollars of the whole run.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Longest time of the whole run, e.g. 6h.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines at once.")] = 1,
    store: Annotated[str | None, typer.Option(help="Where the data will lie: nvme, disk or s3.")] = None,
    measured: Annotated[Path | None, typer.Option(help="A run or probe of this model on any card: calibrates.")] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="Plan the epochs in which the run of --measured got there.")
    ] = None,
    emit: Annotated[Path | None, typer.Option(help="Folder to write recipe and start files to.")] = None,
    choose: Annotated[str | None, typer.Option(help="Option to write files for; default the cheapest.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with the frontier as a plot.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of runs; plans are kept in its folder plans.")] = Path("runs"),
    score: Annotated[bool, typer.Option("--score", help="Compare earlier plans with the runs that followed.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every option, also those that do not fit.")] = False,
    as_json: Json = False,
) -> None:
    """What to rent, before a dollar is spent: fits, samples/s, limit, hours and dollars on machines that are not here.

    Every figure has an interval and says what it rests on. Nothing is trained,
    no card and no weights are needed; the data is measured here, or its sizes
    are given (--data imagenet, or --samples and --sample-bytes).

    Examples:  flatout plan imagenet-resnet50-90ep --data imagenet --deadline 24h
               flatout plan my.yaml --on g4dn.xlarge,g5.xlarge --max-usd 20 --emit start/
    """
    from flatout.commands.plan import Question, keep_plan, make_plan, parse_assignments
    from flatout.commands.plan_files import PLANS, plan_text, score_plans, scores_text, write_page
    from flatout.commands.plan_files import emit as emit_files

    if score:
        print_answer(score_plans(runs), as_json, scores_text)
        return
    if recipe is None:
        raise typer.BadParameter("say which recipe, for example: flatout plan recipes/demo.yaml --gpu T4")
    overrides = parse_assignments(assignments or [])
    question = Question(
        data, samples, sample_bytes, _names(machines), _names(gpu), max_usd, deadline, nodes, store, measured, accuracy
    )
    made = make_plan(recipe, overrides, question)
    told, digest = made.to_dict(), None
    written: list[Path] = []
    if emit is not None:
        written, digest = emit_files(made, recipe, overrides, emit, choose)
    keep_plan(made, runs / PLANS, digest)
    if html is not None:
        write_page(told, html)
        written.append(html)
    told["written"] = [str(path) for path in written]
    print_answer(told, as_json, lambda made: plan_text(made, everything))
    for path in () if as_json else written:
        draw(f"written: {path}")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in (text or "").split(",") if each.strip())
