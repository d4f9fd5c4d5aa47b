"""How long a page is left alone after a look, and that a wait ends when the server does."""

import asyncio
import os
import threading

import pytest

from flatout.commands import dashboard
from flatout.commands.dashboard import pause_seconds
from flatout.web.streams import Streams


@pytest.mark.parametrize(("load", "share"), [(0.5, 4), (4.0, 1)])
def test_a_look_is_paid_back_by_the_machine_or_by_one_core_where_all_are_busy(
    load: float, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert pause_seconds(0.004) == pytest.approx(6.0 / share)


def test_the_end_is_noticed_in_the_midst_of_a_wait_and_before_it() -> None:
    streams = Streams()

    async def wait() -> None:
        threading.Timer(0.01, streams.end).start()
        await asyncio.wait_for(streams.wait_for_end(), 60)
        await asyncio.wait_for(streams.wait_for_end(3600), 60)

    asyncio.run(wait())
    ended = Streams()
    ended.end()
    asyncio.run(asyncio.wait_for(ended.wait_for_end(), 60))
