from flatout.cli.main import app
from flatout.cli.options import Json, RunPath
from flatout.cli.output import print_json


@app.command()
def report(run: RunPath, as_json: Json = False) -> None:
    """Show a run, finished or not: accuracy, speed, where the time went, what it cost."""
    from flatout.app.show import print_run, read_run

    found = read_run(run)
    if as_json:
        print_json(found.summary)
    else:
        print_run(found)
