"""Rehearse every story recipe: `make rehearse`, or some of them: python tests/rehearsal/run.py NAME..."""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rehearsal.stories import STORIES, rehearse


def main(names: list[str]) -> int:
    chosen = [story for story in STORIES if not names or story.name in names]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="flatout-rehearsal-") as folder:
        for story in chosen:
            started = time.monotonic()
            wrong = rehearse(story, Path(folder))
            failed += bool(wrong)
            ranks = story.nodes * story.per_node
            print(f"{'FAILED' if wrong else 'ok':8}{story.name:32}{ranks} rank(s)  {time.monotonic() - started:.0f} s")
            for line in wrong:
                print(f"        {line}")
            sys.stdout.flush()
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
