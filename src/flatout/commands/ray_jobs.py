"""Training runs on a Ray cluster whose machines see the same folders under the same paths (NFS, EFS, FSx)."""

import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from flatout.commands.training_processes import LocalJob
from flatout.errors import ConfigError
from flatout.service.protocol.extras import connect_to_ray


class RayCluster:
    """Starts runs on the machines of a cluster, each where its cores and cards are free. `local` as address starts a
    cluster of this machine alone. `shared` is a file that all of them must see."""

    def __init__(self, address: str, shared: Path, cores_per_job: int, cards_per_job: Callable[[int], int]) -> None:
        """`cards_per_job` says how many cards a run takes of so many that a machine has."""
        self._ray = connect_to_ray(None if address == "local" else address)
        self._shared = shared.resolve()
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._cores = cores_per_job
        self._cards = cards_per_job(max(int(each.get("GPU", 0)) for each in machines))
        self.jobs = sum(_jobs_on(each, self._cores, self._cards) for each in machines)
        if not self.jobs:
            largest = ", ".join(f"{each.get('CPU', 0):g} cores and {each.get('GPU', 0):g} cards" for each in machines)
            self.close()
            raise ConfigError(
                f"a run takes {self._cores} core(s) and {self._cards} card(s) of one machine; those of the Ray cluster "
                f"have {largest}"
            )

    def launch(self, arguments: list[str], environment: Mapping[str, str]) -> "RayJob":
        actor = self._ray.remote(_OnNode).options(
            num_cpus=self._cores, num_gpus=self._cards, max_concurrency=2, name=f"flatout {arguments[-1]}"
        )
        return RayJob(self._ray, actor.remote(), (os.getcwd(), str(self._shared), arguments, dict(environment)))

    def close(self) -> None:
        with suppress(Exception):  # a cluster that is gone already
            self._ray.shutdown()


class RayJob:
    """One run on some machine of the cluster; a StartedJob of TrainingProcesses."""

    def __init__(self, ray: ModuleType, actor: Any, call: tuple[Any, ...]) -> None:
        self._ray, self._actor = ray, actor
        self._ended = actor.run.remote(*call)

    def wait(self, say: Callable[[str], None]) -> tuple[int, str]:
        """Its lines stay on its machine, in log.txt of the run; `say` gets none."""
        try:
            return tuple(self._ray.get(self._ended))
        except self._ray.exceptions.RayError as error:
            return 1, f"its machine of the Ray cluster is gone, or Ray failed: {str(error).splitlines()[0]}"
        finally:
            self._ray.kill(self._actor)  # frees its cores and cards

    def stop(self, number: int) -> None:
        """By SIGTERM, whatever the signal: Ray's workers ignore Ctrl-C, and so does what they start."""
        self._actor.stop.remote()


class _OnNode:
    """What runs on the machine. Ray ends this process with the sweep's; the run notices, and saves a checkpoint."""

    def __init__(self) -> None:
        self._job: LocalJob | None = None
        self._stopped = False

    def run(self, folder: str, shared: str, arguments: list[str], environment: dict[str, str]) -> tuple[int, str]:
        if not os.path.isdir(folder) or not os.path.isfile(shared):
            where = f"{socket.gethostname()} does not see {folder if not os.path.isdir(folder) else shared}"
            return 1, f"{where}; all machines of the Ray cluster need the same folders under the same paths"
        if self._stopped:
            return 1, "stopped before it began"
        os.chdir(folder)
        self._job = LocalJob(arguments, environment)
        if self._stopped:  # meanwhile
            self._job.stop(signal.SIGTERM)
        return self._job.wait(lambda _: None)

    def stop(self) -> None:
        self._stopped = True
        if self._job is not None:
            self._job.stop(signal.SIGTERM)


def _jobs_on(resources: Mapping[str, float], cores: int, cards: int) -> int:
    """Runs that fit on a machine at the same time."""
    by_cards = resources.get("GPU", 0) // cards if cards else float("inf")
    return int(min(resources.get("CPU", 0) // cores, by_cards))
