from typing import Annotated

import typer

from flatout.cli.apps import Json, bench_app, print_answer


@bench_app.command()
def loader(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder, .tar, pack or s3:// URL of a dataset.")],
    view: Annotated[str, typer.Option(help="What batches look like: train-224, eval-224, train-64, raw, ...")] = (
        "train-224"
    ),
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a batch.")] = 256,
    workers: Annotated[
        int | None, typer.Option(min=0, max=512, metavar="N", help="Loader workers (default: as beside a GPU).")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600, help="How long to measure each stage; never less than five batches.")
    ] = 3.0,
    as_json: Json = False,
) -> None:
    """How many images a second can this machine feed a model, and which stage is the limit?

    A staircase: read the files; + decode them; + augment whole batches, all in
    one thread; then the loader with its workers, and its second epoch where
    decoded samples fit memory. A loader slower than the model leaves the device
    waiting.

    Examples:  flatout bench loader data/   |   flatout bench loader data/ --workers 4
    """
    from flatout.commands.bench_loader import bench_loader, bench_table

    result = bench_loader(path, view, batch_size, workers, seconds, quiet=as_json)
    print_answer(result, as_json, bench_table)
