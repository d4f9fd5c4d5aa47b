"""Producer processes on this machine, replaced when they die."""

import math
import os
import socket
import subprocess
import sys
import threading
import time

from flatout.errors import ServiceUnavailable
from flatout.machine.budgets import usable_cores
from flatout.machine.parents import child_environment
from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.protocol.messages import Done, Equip, Failed, Joined
from flatout.service.protocol.wire import Wire
from flatout.service.transport.stores import StoreAccess

_MOST_PROCESSES = 4
"""Threads of one process share the GIL for what Python does for a batch, but each process lists the dataset itself."""
_QUICK_DEATH_SECONDS, _MOST_QUICK_DEATHS = 5.0, 5  # so many in a row, and the process is not started again


class LocalProducers:
    """Processes with `threads` threads in all. Each has a thread here that receives its answers and restarts it."""

    def __init__(self, coordinator: Coordinator, threads: int, access: StoreAccess) -> None:
        processes = min(threads, usable_cores(), _MOST_PROCESSES)
        self._coordinator = coordinator
        ca = None if access.tls_ca is None else str(access.tls_ca)
        self._equip = Equip(store=access.address, token=access.token, store_password=access.password, tls_ca=ca)
        self._threads = math.ceil(threads / max(1, processes))
        self._closing = threading.Event()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._watchers = [
            threading.Thread(target=self._watch, args=(number,), name=f"flatout-producers-{number}", daemon=True)
            for number in range(processes)
        ]

    def start(self) -> None:
        """Called before jobs are admitted: one that asks while a process starts must not be told that there is none."""
        for number, watcher in enumerate(self._watchers):
            self._coordinator.say(_name(number, 1), Joined(slots=0))
            watcher.start()

    def pids(self) -> list[int]:
        return [process.pid for process in self._running.values()]

    def close(self) -> None:
        self._closing.set()
        for process in list(self._running.values()):
            process.kill()
        for watcher in self._watchers:
            watcher.join(timeout=10)

    def _watch(self, number: int) -> None:
        quick_deaths, lives = 0, 1
        while not self._closing.is_set() and quick_deaths < _MOST_QUICK_DEATHS:
            began = time.monotonic()
            reason = self._live_once(number, _name(number, lives))
            lives += 1
            self._coordinator.say(_name(number, lives), Joined(slots=0))  # before the detach: jobs go on waiting
            self._coordinator.detach(_name(number, lives - 1), reason)
            lived = time.monotonic() - began
            quick_deaths = quick_deaths + 1 if lived < _QUICK_DEATH_SECONDS else 0
        self._coordinator.detach(_name(number, lives), "it dies as soon as it is started")

    def _live_once(self, number: int, name: str) -> str:
        """Run the process until it ends; the reason."""
        ours, theirs = socket.socketpair()
        module, fd = "flatout.service.producers.producer", theirs.fileno()
        command = [sys.executable, "-m", module, str(fd), str(self._threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **child_environment()}
        process = subprocess.Popen(command, pass_fds=(fd,), stdin=subprocess.DEVNULL, env=environment)
        self._running[number] = process
        theirs.close()
        if self._closing.is_set():  # close() has not seen it
            process.kill()
        wire = Wire(ours)
        try:
            wire.send(self._equip)
            self._coordinator.attach(name, wire.send, lambda reason: process.kill())
            while True:
                answers = [each for each in wire.receive_all() if isinstance(each, Joined | Done | Failed)]
                self._coordinator.say(name, *answers)
        except ServiceUnavailable as error:
            process.kill()
            return f"{error} (exit status {process.wait()})"
        finally:
            wire.close()
            self._running.pop(number, None)


def _name(number: int, life: int) -> str:
    return f"producer-{number}.{life}"
