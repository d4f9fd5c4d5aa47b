"""Loops without loss.backward(), loaders that are built anew, and threads that wait for others."""

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_loop import data, events, recorded
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from flatout.recording.lines import LineSampler
from flatout.timeline.reading import read_attempts


def test_gradients_of_torch_func_make_steps_where_nothing_else_does(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, weights, (x,)), y)

    with recorded(tmp_path):
        for _ in range(15):
            for x, y in data():
                slopes = grad(loss_of)(weights, x, y)
                weights = {name: each - 0.01 * slopes[name] for name, each in weights.items()}
    assert [each["samples"] for each in events(tmp_path, "step")] == [4 * 50] + [4] * 10
    (attempt,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    assert attempt.parts["backward"] > 0
    assert attempt.parts["validation"] == 0


def test_a_gradient_penalty_is_a_part_of_its_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for x, _ in data():
            x.requires_grad_()
            loss: Any = model(x).pow(2).mean()
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            penalised = loss + slope.pow(2).mean()
            penalised.backward()
            optimizer.step()
    told = events(tmp_path, "step")
    assert [(each["samples"], each["microbatches"]) for each in told] == [(4, 1)] * 4
    assert all(each["loss"] is not None for each in told)


def test_a_loader_that_is_built_anew_for_every_pass_is_told_from_one_that_is_kept(tmp_path: Path) -> None:
    samples = TensorDataset(torch.ones(16, 4), torch.zeros(16, dtype=torch.long))

    def rebuilt(name: str, loaders: Iterator[DataLoader[tuple[Tensor, ...]]]) -> list[bool]:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with recorded(tmp_path / name):
            for loader in loaders:
                for x, y in loader:
                    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return [each["rebuilt"] for each in events(tmp_path / name, "loader")]

    kept = DataLoader(samples, 4)
    assert rebuilt("anew", (DataLoader(samples, 4) for _ in range(4)))[-1]
    assert not rebuilt("kept", (kept for _ in range(4)))[-1]


class _Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(8, 4))


@pytest.mark.parametrize(("dataset", "iterable"), [(_Stream(), True), (TensorDataset(torch.ones(8, 4)), False)])
def test_an_iterable_dataset_is_told(
    tmp_path: Path, dataset: "torch.utils.data.Dataset[Tensor]", iterable: bool
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for batch in DataLoader(dataset, 4):
            model(batch if iterable else batch[0]).mean().backward()
            optimizer.step()
    assert events(tmp_path, "loader")[-1]["iterable"] is iterable


def test_a_line_that_waits_comes_with_what_others_do_meanwhile() -> None:
    items: queue.Queue[int] = queue.Queue()
    sampler = LineSampler(threading.get_ident(), lambda: "other")

    looked = threading.Event()

    def prepare() -> None:
        while not looked.is_set():
            time.sleep(0.001)
        items.put(1)

    def look() -> None:
        for _ in range(100_000):  # until this test's own thread is inside of get()
            sampler._sample()
            if {row[0] for row in sampler.counts()} >= {"other_waits", "beside"}:
                break
        looked.set()

    threads = [threading.Thread(target=each) for each in (prepare, look)]
    for thread in threads:
        thread.start()
    items.get()
    for thread in threads:
        thread.join()
    seen = {(row[0], row[3]) for row in sampler.counts()}
    assert ("beside", "prepare") in seen
    assert ("other_waits", "test_a_line_that_waits_comes_with_what_others_do_meanwhile") in seen


def test_the_loss_of_a_step_with_a_closure_is_the_one_where_it_begins(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer: Any = torch.optim.LBFGS(model.parameters(), 0.01, max_iter=4)
    first: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(6, 4)).pow(2).mean()
        loss.backward()
        values.append(loss.item())
        return loss

    with recorded(tmp_path):
        for _ in range(3):
            values: list[float] = []
            optimizer.step(closure)
            assert len(values) > 1
            first.append(values[0])
    assert [each["loss"] for each in events(tmp_path, "step")] == first


def test_a_thread_that_trains_is_waited_for_from_its_first_step_on(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        for x, _ in data():
            model(x).mean().backward()
            optimizer.step()

    with recorded(tmp_path):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert events(tmp_path, "step")[-1]["data_wait_seconds"] > 0
    assert len(events(tmp_path, "trained")) == 1


def test_a_loss_that_a_grad_scaler_scales_is_told_as_the_scripts_own(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    losses = []
    with recorded(tmp_path):
        for _ in range(3):
            loss = model(torch.ones(6, 4)).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    assert [each["loss"] for each in events(tmp_path, "step")] == losses
