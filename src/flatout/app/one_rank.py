"""One rank of a run, started by `launch_ranks`: trains, and leaves its error where the launcher finds it."""

import json
import os
import sys
from pathlib import Path

from flatout.app.lasting_output import outlive_readers
from flatout.app.train_run import train_run
from flatout.errors import FlatoutError


def main(folder: Path) -> None:
    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    try:
        train_run(folder / "config.yaml", whole_process=True, **options)
    except FlatoutError as error:
        if not getattr(error, "quiet", False):
            (folder / "error.json").write_text(json.dumps([str(error), error.exit_code]), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)  # threads of a broken process group may end a usual exit with a message of theirs


if __name__ == "__main__":
    outlive_readers()
    main(Path(sys.argv[1]))
