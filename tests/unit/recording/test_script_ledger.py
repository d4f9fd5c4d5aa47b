"""Hooks in torch against a real loop, in this process: what becomes of each second, and that results do not change."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_loop import data, events, recorded
from torch import Tensor, nn
from torch.utils.data import DataLoader

from flatout.recording.gradients import _value_at_hand
from flatout.recording.ledger import ScriptLedger
from flatout.timeline.reading import AttemptStart, read_attempts, read_spans


def train(model: nn.Module, epochs: int = 2, validate: bool = False, accumulate: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(epochs):
        model.train()
        for number, (x, y) in enumerate(data()):
            nn.functional.cross_entropy(model(x), y).backward()
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        if validate:
            model.eval()
            with torch.no_grad():
                for x, _ in data(8):
                    model(x)


def test_a_plain_loop_has_all_its_parts_and_steps(tmp_path: Path) -> None:
    with recorded(tmp_path) as ledger:
        train(nn.Linear(4, 2), validate=True)
    steps = events(tmp_path, "step")
    assert [(each["epoch"], each["batch_index"], each["samples"]) for each in steps] == [
        (epoch, index, 4) for epoch in range(2) for index in range(4)
    ]
    assert all(each["loss"] >= 0 and each["learning_rate"] == 0.01 for each in steps)
    (attempt,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    for part in ("data_wait", "forward", "backward", "optimizer", "validation", "other"):
        assert attempt.parts[part] > 0, part
    assert sum(attempt.parts.values()) == pytest.approx(attempt.wall_seconds, abs=1e-4)
    assert attempt.parts["unattributed"] < 1e-3
    assert ledger.active


def test_validation_counts_for_no_step_and_its_own_code_belongs_to_it(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with recorded(tmp_path):
        train(model, epochs=1)
        with torch.no_grad():
            for x, _ in data(8):
                model(x)
                time.sleep(0.03)
        time.sleep(0.05)
        train(model, epochs=1)
    (attempt,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    assert attempt.parts["validation"] >= 0.06
    assert attempt.parts["other"] >= 0.05
    stepping = sum(each["step_seconds"] for each in events(tmp_path, "step"))
    assert stepping <= attempt.wall_seconds - attempt.parts["validation"] + 1e-3


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    with recorded(tmp_path):
        train(nn.Linear(4, 2), epochs=1, accumulate=2)
    assert [(each["samples"], each["microbatches"]) for each in events(tmp_path, "step")] == [(8, 2)] * 2


def test_a_teacher_without_gradients_is_no_validation(tmp_path: Path) -> None:
    model, teacher = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        train(model, epochs=1)
        for x, _ in data():
            with torch.no_grad():
                wanted = teacher(x)
            (model(x) - wanted).pow(2).mean().backward()
            optimizer.step()
    (attempt,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    assert attempt.parts["validation"] < 0.5 * attempt.parts["forward"]


def test_recorded_and_bare_weights_and_random_state_are_equal(tmp_path: Path) -> None:
    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        train(model, validate=True)
        return model[0].weight.detach().clone(), torch.get_rng_state()

    bare = run()
    with recorded(tmp_path):
        under = run()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(bare, under, strict=True))


def test_an_error_of_ours_ends_the_ledger_and_not_the_loop(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with recorded(tmp_path) as ledger:
        train(model, epochs=1)
        ledger.loaders = None  # type: ignore[assignment]
        train(model, epochs=1)
        assert not ledger.active
    assert events(tmp_path, "missing") == [
        "the ledger ended after step 4: loader_use: TypeError: argument of type 'NoneType' is not iterable"
    ]


def test_hooks_are_taken_out_again(tmp_path: Path) -> None:
    before = (nn.Module.__call__, torch.autograd.backward, torch.save, DataLoader.__iter__)
    with recorded(tmp_path):
        assert nn.Module.__call__ is not before[0]
    assert (nn.Module.__call__, torch.autograd.backward, torch.save, DataLoader.__iter__) == before


def test_without_a_loader_samples_come_from_the_model_and_saves_are_checkpoints(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for _ in range(3):
            model(torch.ones(6, 4)).mean().backward()
            optimizer.step()
            torch.save(model.state_dict(), tmp_path / "weights.pt")
    assert [each["samples"] for each in events(tmp_path, "step")] == [6] * 3
    (attempt,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    assert attempt.parts["checkpoint"] > 0


def test_two_loaders_side_by_side_both_feed_training(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for (labelled, _), (unlabelled, _) in zip(data(4), data(8), strict=False):
            (model(labelled).mean() + model(unlabelled).mean()).backward()
            optimizer.step()
    assert [each["samples"] for each in events(tmp_path, "step")] == [12, 12]
    (attempt,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    assert attempt.parts["validation"] == 0


def test_a_batch_taken_ahead_belongs_to_the_step_that_uses_it(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        batches = iter(data(4))
        ahead = next(batches, None)
        while ahead is not None:
            (x, _), ahead = ahead, next(batches, None)
            model(x).mean().backward()
            optimizer.step()
    assert [each["samples"] for each in events(tmp_path, "step")] == [4] * 4


def test_validation_before_the_first_step_is_no_part_of_it_and_not_the_training_loader(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with recorded(tmp_path):
        with torch.no_grad():
            for x, _ in data(8):
                model(x)
        train(model, epochs=1)
    steps = events(tmp_path, "step")
    assert steps[0]["step_seconds"] > 0
    assert [each["samples"] for each in steps] == [4] * 4
    assert events(tmp_path, "trained") == [1]


def test_a_closure_is_the_script_s_and_a_step_that_raised_leaves_nothing_open(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    doing: list[str] = []
    with recorded(tmp_path) as ledger:

        def closure() -> Tensor:
            doing.append(ledger.recorder.current)
            loss = model(torch.ones(2, 4)).mean()
            loss.backward()
            return loss

        def failing() -> Tensor:
            raise ValueError("out of memory")

        optimizer.step(closure)
        with pytest.raises(ValueError, match="out of memory"):
            optimizer.step(failing)
        optimizer.step(closure)
        assert (doing, ledger.recorder.depth) == (["other", "other"], 1)


class OwnCollate:
    """Pads in Python, as scripts do."""

    def __call__(self, samples: list[Any]) -> Tensor:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return torch.stack([x for x, _ in samples])


def test_a_collate_function_of_the_scripts_own_is_its_own_code(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for x in DataLoader(data().dataset, 4, collate_fn=OwnCollate()):
            model(x).mean().backward()
            optimizer.step()
    seconds: dict[str, float] = {}
    for row in read_spans(tmp_path / "spans/rank0.jsonl"):
        if not isinstance(row, AttemptStart) and row.lane == "loader":
            seconds[row.name] = seconds.get(row.name, 0.0) + row.seconds
    assert seconds["augment"] >= 0.06
    assert "collate" not in seconds


def test_compiled_modules_are_traced_in_one_graph_under_the_hooks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    plain = model(torch.ones(3, 4))
    with recorded(tmp_path) as ledger:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(3, 4)), plain)
        assert ledger.recorder.depth == 1


def test_a_loss_that_is_no_plain_tensor_of_the_cpu_is_not_read() -> None:
    class Shared(Tensor):
        def item(self) -> float:
            raise AssertionError("this waits for other ranks")

    assert _value_at_hand(torch.tensor(2.5)) == 2.5
    assert _value_at_hand((torch.tensor(2.5),)) == 2.5
    assert _value_at_hand(torch.tensor(2.5).as_subclass(Shared)) is None
    assert _value_at_hand(torch.empty((), device="meta")) is None
    assert _value_at_hand(torch.ones(2)) is None


def test_steps_whose_loss_is_no_number_are_told(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for _ in range(2):
            (model(torch.ones(6, 4)).mean() * float("nan")).backward()
            optimizer.step()
    assert [each["loss"] != each["loss"] for each in events(tmp_path, "step")] == [True, True]


def test_a_script_that_changes_its_weights_itself_steps_with_every_backward_pass(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with recorded(tmp_path):
        for _ in range(60):
            model(torch.ones(6, 4)).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    assert [each["samples"] for each in events(tmp_path, "step")] == [6 * 50] + [6] * 10


def test_accumulating_long_before_the_first_step_is_no_change_by_hand(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for number in range(80):
            model(torch.ones(2, 4)).mean().backward()
            if number % 40 == 39:
                optimizer.step()
    assert [each["samples"] for each in events(tmp_path, "step")] == [80, 80]


def test_a_batch_that_goes_to_another_device_is_a_copy_and_a_change_of_type_is_none(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for x, _ in data():
            x.to("meta", non_blocking=True)
            model(x.to(torch.float32)).mean().backward()
            optimizer.step()
    rows = [row for row in read_spans(tmp_path / "spans/rank0.jsonl") if not isinstance(row, AttemptStart)]
    assert sum(row.name == "copy" for row in rows) == 4
    (attempt,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    assert sum(attempt.parts.values()) == pytest.approx(attempt.wall_seconds, abs=1e-4)
    assert attempt.parts["unattributed"] < 1e-3


def test_acting_without_a_loader_is_no_validation_and_evaluating_is(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(1, 4))
            model(torch.ones(6, 4)).mean().backward()
            optimizer.step()
    (acted,) = read_attempts(tmp_path / "spans/rank0.jsonl")
    assert acted.parts["validation"] == 0
    with recorded(tmp_path / "evaluated"):
        model(torch.ones(6, 4)).mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.ones(1, 4))
    (evaluated,) = read_attempts(tmp_path / "evaluated/spans/rank0.jsonl")
    assert evaluated.parts["validation"] > 0


def test_samples_without_a_loader_are_the_models_and_not_the_loss_functions(tmp_path: Path) -> None:
    model, criterion = nn.Linear(4, 2), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path):
        for _ in range(2):
            criterion(model(torch.ones(3, 5, 4)).reshape(15, 2), torch.zeros(15, dtype=torch.long)).backward()
            optimizer.step()
    assert [each["samples"] for each in events(tmp_path, "step")] == [3, 3]


def test_what_a_steady_training_does_is_known_at_every_moment(tmp_path: Path) -> None:
    told: list[str] = []

    class Telling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            told.append(ledger.part())
            return super().forward(x)

    model = Telling(4, 2)
    with recorded(tmp_path) as ledger:
        train(model, epochs=20)
        told.append(ledger.part())
        with torch.no_grad():
            for x, _ in data(8):
                time.sleep(0.06)
                told.append(ledger.part())
                model(x)
    assert set(told[:80]) == {"forward"}
    assert (told[80], set(told[81:])) == ("other", {"validation"})
    assert [each["samples"] for each in events(tmp_path, "step")] == [4] * 80


def test_another_thread_understands_what_was_seen_while_the_training_thread_is_busy(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recorded(tmp_path) as ledger:
        for _ in range(43):
            model(torch.ones(4, 4)).mean().backward()
            optimizer.step()
        other = threading.Thread(target=ledger.catch_up)
        other.start()
        other.join()
        assert (ledger.book.done, ledger.recorder.current, ledger.active) == (43, "other", True)


def test_an_error_of_ours_in_a_steady_training_ends_the_ledger_at_its_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with recorded(tmp_path) as ledger:
        train(model, epochs=10)
        ledger.catch_up()
        ledger._seen_training = None  # type: ignore[assignment]
        model(torch.ones(4, 4)).mean().backward()
        ledger.catch_up()
        train(model, epochs=10)
        assert not ledger.active
    (missing,) = events(tmp_path, "missing")
    assert missing.startswith("the ledger ended after step 40: begin_call: TypeError")
    assert len(events(tmp_path, "step")) == 40


def test_a_handler_of_a_signal_that_trains_in_the_middle_of_the_ledger_waits_for_nothing(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        model(torch.ones(4, 4)).mean().backward()
        optimizer.step()

    def interrupted(ledger: ScriptLedger, at: float) -> None:
        step()
        ledger.catch_up()

    with recorded(tmp_path) as ledger:
        step()
        ledger.saw(interrupted)
        step()
        assert ledger.active
    assert [each["samples"] for each in events(tmp_path, "step")] == [4] * 3


def test_a_wait_for_a_core_is_of_the_stretch_between_two_hooks_in_which_it_was(tmp_path: Path) -> None:
    waited = [0.0]

    class Delayed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.02)
            waited[0] += 0.01
            return super().forward(x)

    model = Delayed(4, 2)
    with recorded(tmp_path) as ledger:
        assert ledger.recorder.core_wait is not None
        ledger.recorder.core_wait.seconds = lambda: waited[0]  # type: ignore[method-assign]
        train(model, epochs=8)
    rows = [row for row in read_spans(tmp_path / "spans/rank0.jsonl") if not isinstance(row, AttemptStart)]
    seen = {row.name: sum(each.core_wait for each in rows if each.name == row.name) for row in rows if row.core_wait}
    assert seen == {"forward": pytest.approx(0.32)}
