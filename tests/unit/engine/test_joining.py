"""Which GPU a rank takes, and how ranks meet on them; torch.cuda is a fake of the few questions that are asked."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flatout.config.loading import load_config
from flatout.engine.parallel import group
from flatout.engine.parallel.group import Group, require_own_card
from flatout.engine.parallel.joining import check_world, own_card
from flatout.engine.parallel.place import RankPlace
from flatout.errors import ConfigError, RunFailed


def place(rank: int = 0, local_world_size: int = 4) -> RankPlace:
    return RankPlace(rank, 4, rank % local_world_size, local_world_size, "127.0.0.1", 1)


def see_cards(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Fake GPU")


def four(devices: Any) -> Any:
    return load_config({"device": "cuda", "parallel": {"mode": "ddp", "devices": devices}}).config


@pytest.mark.parametrize("devices", [4, "all"])
@pytest.mark.parametrize(("visible", "cards"), [(1, [0, 0, 0, 0]), (4, [0, 1, 2, 3])])
def test_a_task_that_sees_one_gpu_takes_it(
    devices: Any, visible: int, cards: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    see_cards(monkeypatch, visible)
    check_world(four(devices), place())
    assert [own_card(place(rank)).index for rank in range(4)] == cards


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    see_cards(monkeypatch, 2)
    with pytest.raises(ConfigError, match=r"4 ranks share this machine but it has 2 GPU\(s\)"):
        check_world(four(4), place())


def test_ranks_that_see_the_same_only_gpu_are_refused_by_its_uuid() -> None:
    store = dist.HashStore()
    for rank, uuid in enumerate("abcd"):
        store.set(f"card/{rank}", f"{uuid} {place().host}")
    require_own_card(store, place(3), "d")
    for rank in (3, 1):  # who has its own ends too, instead of waiting for the others
        with pytest.raises(ConfigError, match=r"ranks 0, 3 would share one GPU \(a of "):
            require_own_card(store, place(rank), "ab"[rank % 3])


def test_nccl_is_told_its_gpu_and_the_deadline_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(group, "TCPStore", lambda *_: dist.HashStore())
    monkeypatch.setattr(group, "require_own_card", lambda store, place, uuid: told.update(uuid=uuid))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: told.update(options, backend=backend))
    monkeypatch.setattr(dist, "new_group", lambda **options: SimpleNamespace(**options))
    own = torch.device("cuda", 1)
    control = Group(place(1), "nccl", 42.0, (own, "uuid")).control
    assert (told["backend"], told["device_id"], told["uuid"]) == ("nccl", own, "uuid")
    assert told["timeout"].total_seconds() == control.timeout.total_seconds() == 42.0

    def fail(*_: Any, **__: Any) -> None:
        raise dist.DistBackendError("NCCL error in: init.cc\nmore")

    monkeypatch.setattr(dist, "init_process_group", fail)
    with pytest.raises(RunFailed, match=r"cannot meet over nccl: NCCL error in: init\.cc; NCCL_DEBUG"):
        Group(place(1), "nccl", 42.0, (own, "uuid"))
