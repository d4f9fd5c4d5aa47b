"""One rank of a run, started by `launch_ranks`: trains, and leaves its error where the launcher finds it."""

import faulthandler
import json
import sys
from pathlib import Path
from typing import NoReturn

from flatout.errors import FlatoutError
from flatout.machine.lasting_output import leave, outlive_readers
from flatout.machine.parents import exit_with_parent


def main(folder: Path) -> NoReturn:
    """Train as `folder` says (config.yaml, options.json) and exit; `launch_ranks` wrote it."""
    from flatout.commands.train import train_run  # seconds, in which the launcher may end

    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    try:
        train_run(folder / "config.yaml", whole_process=True, **options)
    except FlatoutError as error:
        if not error.quiet:
            (folder / "error.json").write_text(json.dumps([str(error), error.exit_code]), encoding="utf-8")
        leave(error.exit_code)
    leave(0)


if __name__ == "__main__":
    exit_with_parent(int(sys.argv[2]))
    outlive_readers()
    faulthandler.enable(file=2)  # as the command does
    main(Path(sys.argv[1]))
