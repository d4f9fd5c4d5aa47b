"""One rank of several, started by `launch_ranks`: trains or evaluates, and leaves its error for the launcher."""

import faulthandler
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from flatout.errors import FlatoutError
from flatout.machine.lasting_output import leave, outlive_readers
from flatout.machine.parents import exit_with_parent


def main(folder: Path) -> NoReturn:
    """Do what `folder` says (config.yaml, options.json) and exit; `launch_ranks` wrote it."""
    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    try:
        _work(options.pop("work", "train"), folder, options)
    except FlatoutError as error:
        if not error.quiet:
            told = [str(error), error.exit_code, error.details]
            (folder / "error.json").write_text(json.dumps(told), encoding="utf-8")
        leave(error.exit_code)
    leave(0)


def _work(what: str, folder: Path, options: dict[str, Any]) -> None:
    """The imports take seconds, in which the launcher may end."""
    if what == "evaluate":
        from flatout.commands.evaluate import evaluate_as_rank

        evaluate_as_rank(**options)
    else:
        from flatout.commands.train import train_run

        train_run(folder / "config.yaml", whole_process=True, **options)


if __name__ == "__main__":
    exit_with_parent(int(sys.argv[2]))
    outlive_readers()
    faulthandler.enable(file=2)  # as the command does
    main(Path(sys.argv[1]))
