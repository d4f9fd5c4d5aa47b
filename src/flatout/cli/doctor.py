import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Assignments, Json, app, print_json


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Recipe whose data, store and price to check, too.")
    ] = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Is this machine, this recipe and its data fit to train, before money is spent?

    Device and driver, cores and memory this process may use, /dev/shm, disk
    speed, clock, price; with a recipe also its dataset, class maps, a sample of
    images, the store's latency and bandwidth at several concurrencies, and the
    pace: images a second that the device takes against what workers prepare.
    Each line is ok, a warning or a problem with a remedy; the exit code is 1 if
    there is a problem. Takes less than a minute. Started by torchrun on every
    node, it measures the link between them.

    Examples:  flatout doctor   |   flatout doctor recipes/demo.yaml   |   flatout doctor my.yaml --set data.path=s3://b/x
    """
    from flatout.commands.doctor import examine
    from flatout.commands.doctor_show import say_line
    from flatout.commands.show import parse_assignments

    say = (lambda line: None) if as_json else say_line
    checkup = examine(config, say, parse_assignments(assignments or []))
    if as_json:
        lines = [asdict(line) for line in checkup.lines]
        print_json({"ok": checkup.exit_code == 0, "seconds": checkup.seconds, "lines": lines})
    sys.exit(checkup.exit_code)
