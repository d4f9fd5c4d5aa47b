"""Start the ranks of one machine through torch's elastic launcher, and end with what they end with."""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.config.loading import dump_config
from flatout.config.schema import Config
from flatout.errors import EndedBySomeRank, FlatoutError, RunFailed
from flatout.runs import RunDirectory
from flatout.runs.directory import mark_failed

_SAVE_SECONDS = 60  # from SIGTERM to the end of the checkpoint; then a rank is killed


def launch_ranks(config: Config, ranks: int, directory: RunDirectory, options: Mapping[str, Any]) -> None:
    """Returns when all ranks are done; raises what they ended with."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [each for each in logging.root.manager.loggerDict if each.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # ranks say themselves why they end
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else the launcher warns; ranks set their threads themselves
    launch = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
        run_id="flatout", local_addr="127.0.0.1", max_restarts=config.parallel.max_restarts,
        shutdown_timeout=_SAVE_SECONDS,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="flatout-") as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
        try:
            elastic_launch(launch, sys.executable)("-m", "flatout.app.one_rank", name)
        except (ChildFailedError, SignalException) as error:
            raise _ending(folder, getattr(error, "failures", {}), directory) from None


def _ending(folder: Path, failures: Mapping[int, Any], directory: RunDirectory) -> FlatoutError:
    """The error of the rank that said one; where none could, the signal that killed it."""
    if (folder / "error.json").exists():
        message, code = json.loads((folder / "error.json").read_text(encoding="utf-8"))
        return EndedBySomeRank(message, code)
    killed = {rank: -failure.exitcode for rank, failure in failures.items() if failure.exitcode < 0}
    ended = [f"rank {rank} was killed by signal {number}" for rank, number in killed.items()]
    cause = f"{', '.join(ended) or 'a rank failed'}; the same command resumes from the newest checkpoint"
    mark_failed(directory, cause)
    return RunFailed(cause)
