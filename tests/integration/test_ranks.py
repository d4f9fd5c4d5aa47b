"""Several ranks on one machine (gloo): the same batches, the same model, the same validation as one process."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.amp.grad_scaler import GradScaler

from flatout.config.schema import TrainConfig
from flatout.engine import checkpoint, optimizers
from flatout.engine.optimizers import optimizer_for, optimizer_tensors
from flatout.engine.sharded_tensors import gather_full, part
from flatout.runs.tables import read_table
from ranks import places, run_ranks, start_ranks
from training import (
    SAMPLES,
    assert_ledger,
    command,
    forked,
    installed_command,
    make_dataset,
    row_count,
    start,
    summary,
    trained,
    wait_until,
    write_recipe,
)

GLOBAL = {"data__batch_size": 256, "data__global_batch": 50}  # 50, 50, 50, 6: of the last, one of four ranks has none
DDP = {"parallel__mode": "ddp", "parallel__preflight": False}


def ranks_of(count: int) -> dict[str, Any]:
    return {} if count == 1 else {**DDP, "parallel__devices": count, "parallel__sync_batchnorm": True}


def weights(run: Path) -> torch.Tensor:
    """All trained parameters of the newest checkpoint, as one vector."""
    found, _ = checkpoint.load_newest(run / "checkpoints")
    assert found is not None
    named = {
        name: value for name, value in found.tensors.items() if name.startswith("model/") and "running" not in name
    }
    return torch.cat([value.reshape(-1).double() for value in named.values()])


@pytest.fixture(scope="module")
def one_bad_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = make_dataset(tmp_path_factory.mktemp("bad") / "shapes")
    next(iter(sorted((data / "train").rglob("*.*")))).write_bytes(b"not an image")
    return data


def test_any_number_of_ranks_trains_the_same_model(work: Path, one_bad_sample: Path) -> None:
    """Unequal slices, ranks without a sample, and a sample that only one rank finds unusable."""
    for count in (1, 2, 4):
        options = {**GLOBAL, **ranks_of(count), "train__epochs": 1}
        config = write_recipe(work / f"{count}.yaml", one_bad_sample, name=str(count), **options)
        ended = run_ranks(count, "train", config, cwd=work) if count > 1 else [command("train", config, cwd=work)]
        assert [each.code for each in ended] == [0] * count, [each.err for each in ended]
        assert all(not each.out and not each.err for each in ended[1:]), "only rank 0 speaks"
    one = work / "runs" / "1"
    for count in (2, 4):
        run = work / "runs" / str(count)
        assert [row[:5] for row in trained(run)] == [row[:5] for row in trained(one)]
        losses = [[float(row[5]) for row in trained(each)] for each in (one, run)]
        assert losses[1] == pytest.approx(losses[0], abs=1e-4)
        expected, found = weights(one), weights(run)
        assert (found - expected).norm() < 1e-3 * expected.norm()  # one ReLU that rounds to the other side is 1e-4
        assert read_table(run / "quarantine.csv") == read_table(one / "quarantine.csv")
        assert summary(run)["samples_seen"] == summary(one)["samples_seen"] == SAMPLES - 1
        assert summary(run)["world_size"] == summary(run)["device"]["count"] == count
        assert summary(run)["time"]["parts"]["communication"] > 0
        assert {path.name for path in (run / "spans").iterdir()} == {f"rank{rank}.jsonl" for rank in range(count)}


def _evaluated(place: dict[str, str], config: str, result: str) -> None:
    os.environ.update(place)
    from flatout.config.loading import load_config
    from flatout.data.loading.loader import open_loader
    from flatout.engine.learner import build_learner
    from flatout.engine.loop import Job, Progress, evaluate
    from flatout.engine.parallel.joining import own_place, process_group
    from flatout.timeline import Recorder
    from flatout.training.setup import prepare_setup

    loaded = load_config(config).config
    torch.set_num_threads(1)
    with process_group(loaded, own_place(loaded)) as ranks:
        setup = prepare_setup(loaded, ranks)
        assert setup.opened.val_plan is not None
        learner = build_learner(setup.task, loaded, setup.device)
        ranks.begin(learner, Recorder(None), end=print)
        source = open_loader(setup.opened.val_plan, loaded.data, 0, False)
        job = Job(
            loaded, setup.task, learner, source, source, Recorder(None), Progress(), save=lambda progress: None,
            stop_reason=lambda: None, total_steps=1, peak_rate=0.1, ranks=ranks,
        )  # fmt: skip
        Path(f"{result}.{ranks.rank}").write_text(json.dumps(evaluate(job)))


def test_validation_is_the_same_to_the_bit_on_any_number_of_ranks(work: Path, shapes: Path) -> None:
    """Sharded without duplicates; with 20 samples in batches of 3, no number of ranks divides the 7 batches."""
    found = []
    for count in (1, 2, 4):
        options = {} if count == 1 else {**DDP, "parallel__devices": count}
        config = write_recipe(work / f"{count}.yaml", shapes, validate__batch_size=3, **options)
        result = work / f"result{count}"
        processes = [forked(_evaluated, place, str(config), str(result)) for place in places(count)]
        entered = [each.__enter__() for each in processes]
        for process in entered:
            process.join(300)
            assert process.exitcode == 0
        for each in processes:
            each.__exit__(None, None, None)
        found += [Path(f"{result}.{rank}").read_text() for rank in range(count)]
    assert len(set(found)) == 1, found


FAILING_RANK = """
import sys, threading
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
from flatout import cli, errors
from flatout.cli import main

def fail(standalone_mode):
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30))
    begun = threading.Barrier(5)
    def watch(client):
        begun.wait()
        while True:
            client.check(["beat"])
    for _ in range(4):
        client = TCPStore("127.0.0.1", store.port, None, False)
        threading.Thread(target=watch, args=(client,), daemon=True).start()
    begun.wait()
    raise getattr(errors, sys.argv[1], ZeroDivisionError)("it failed")

cli.register, main.app = lambda: None, fail
main.run()
"""


@pytest.mark.parametrize(("error", "code"), [("RunFailed", 1), ("ConfigError", 2), ("a bug", 1)])
def test_a_rank_that_fails_while_it_watches_the_others_keeps_its_exit_code(error: str, code: int) -> None:
    """A thread that is inside torch's store when the interpreter ends takes the process with it, by SIGABRT."""
    environment = {**os.environ, "WORLD_SIZE": "2"}
    failed = subprocess.run(
        [sys.executable, "-c", FAILING_RANK, error], env=environment, capture_output=True, text=True, check=False
    )
    assert failed.returncode == code, failed.stderr
    assert failed.stderr.splitlines()[-1].endswith("it failed")


def test_a_crash_of_compiled_code_names_the_python_line() -> None:
    script = "import os\nfrom flatout import cli\nfrom flatout.cli import main\ndef crash(standalone_mode):\n    os.abort()\n"
    script += "cli.register, main.app = lambda: None, crash\nmain.run()"
    crashed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert crashed.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in crashed.stderr
    assert "in crash" in crashed.stderr


def _stepped(place: dict[str, str], result: str) -> None:
    """Every optimizer as on CUDA, on a model that is sharded over the ranks; in the middle one rank's part overflows."""
    from flatout.engine.parallel.sharding import shard  # slow to import

    os.environ.update(place)
    optimizers._can_fuse = lambda model: True
    rank, count = int(place.get("RANK", 0)), int(place.get("WORLD_SIZE", 1))
    if count > 1:
        torch.distributed.init_process_group("gloo")
    found = {}
    for name in ("sgd", "adamw", "lamb"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)  # of two ranks one has two rows, the other one
        if count > 1:
            shard(model, "cpu", count)
        optimizer = optimizer_for(model, TrainConfig(optimizer=name, lr=0.02, weight_decay=0.1))
        scaler = GradScaler("cpu", init_scale=2.0)
        for step in range(4):
            loss = model(torch.randn(8, 4)).square().mean()
            scaler.scale(loss).backward()
            if step == 1 and rank == 0:
                part(model.weight.grad)[0, 0] = float("inf")
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        state = {**model.state_dict(), **optimizer_tensors(model, optimizer)}
        found |= {f"{name}/{key}": gather_full(value).clone() for key, value in state.items()}
    save_file(found, f"{result}.{rank}")


def test_sharded_optimizers_step_as_whole_ones(work: Path) -> None:
    states = []
    for count in (1, 2):
        processes = [forked(_stepped, place, str(work / f"state{count}")) for place in places(count)]
        entered = [each.__enter__() for each in processes]
        for process in entered:
            process.join(300)
            assert process.exitcode == 0
        for each in processes:
            each.__exit__(None, None, None)
        states += [load_file(work / f"state{count}.{rank}") for rank in range(count)]
    assert all(each["lamb/step/weight"] == 3 for each in states)
    for other in states[1:]:
        for name, value in states[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_resumes_on_another_number_of_ranks_with_the_same_batches(work: Path, shapes: Path) -> None:
    run = work / "runs" / "tiny"

    def config(count: int, **changes: Any) -> Path:
        return write_recipe(work / "tiny.yaml", shapes, train__epochs=3, **{**GLOBAL, **ranks_of(count), **changes})

    running = start_ranks(4, "train", config(4, data__global_batch=16), cwd=work)
    wait_until(lambda: row_count(run) >= 13 or not running[0].running, "the middle of the second epoch")
    running[2].send(signal.SIGTERM)  # a spot notice on one machine stops all of them
    assert [each.wait().code for each in running] == [130] * 4
    assert summary(run)["status"] == "stopped"
    stopped = len(trained(run))
    assert checkpoint.list_saved(run / "checkpoints")[-1].step == stopped, "no step is lost"
    refused = run_ranks(2, "train", config(2, data__global_batch=None, data__batch_size=16), cwd=work)
    assert [each.code for each in refused] == [2, 2]
    assert "global_batch changed from 16 to 32 in the middle" in refused[0].error_line
    assert refused[1].err == ""
    ended = run_ranks(2, "train", config(2, data__global_batch=16), cwd=work)
    assert [each.code for each in ended] == [0, 0], ended[0].err
    assert_ledger(run, batch_size=16, epochs=3)
    assert summary(run)["world_size"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"parallel__compress": "powersgd", "parallel__powersgd_start_step": 4, "parallel__powersgd_rank": 2},
        {"parallel__local_steps": 4, "parallel__outer_lr": 0.7, "parallel__outer_momentum": 0.9},
    ],
    ids=["powersgd", "local-steps"],
)
def test_what_each_rank_keeps_for_itself_survives_a_kill(work: Path, shapes: Path, options: dict[str, Any]) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, **DDP, parallel__devices=2, model__width=0.25, **options)
    whole, killed = work / "whole", work / "killed"
    assert [each.code for each in run_ranks(2, "train", config, "--run", whole, cwd=work)] == [0, 0]
    running = start_ranks(2, "train", config, "--run", killed, cwd=work)
    wait_until(lambda: row_count(killed) >= 11 or not running[0].running, "the second checkpoint")
    for each in running:  # all of them before anybody is waited for: a rank whose peer is gone ends by itself
        each.send(signal.SIGKILL)
    assert [each.wait().code for each in running] == [-signal.SIGKILL] * 2
    ended = run_ranks(2, "train", config, "--run", killed, cwd=work)
    assert [each.code for each in ended] == [0, 0], ended[0].err
    assert trained(killed) == trained(whole)
    for rank in range(2):  # their own state, and through it the weights they share
        own = [checkpoint.load(each / "checkpoints" / f"rank{rank}" / "last.safetensors") for each in (whole, killed)]
        assert own[0].state["state_digest"] == own[1].state["state_digest"]
    assert summary(killed)["state_digest"] == summary(whole)["state_digest"]
    shutil.rmtree(whole / "checkpoints" / "rank1")
    config = write_recipe(
        work / "tiny.yaml", shapes, **DDP, parallel__devices=2, model__width=0.25, train__epochs=3, **options
    )
    again = run_ranks(2, "train", config, "--run", whole, cwd=work)
    assert "is not there for every rank: it starts anew" in again[0].err


def test_other_ways_to_exchange_gradients_train_the_same(work: Path, shapes: Path) -> None:
    """16 bits on the wire change little, sharded weights (FSDP) nothing beyond rounding."""
    losses = {}
    for name, chosen in {
        "plain": {}, "fp16": {"parallel__compress": "fp16"}, "bf16": {"parallel__compress": "bf16"},
        "fsdp": {"parallel__mode": "fsdp"},
    }.items():  # fmt: skip
        options = {**DDP, "parallel__devices": 2, "train__max_steps": 5, "train__lr": 0.01, **chosen}
        config = write_recipe(work / "tiny.yaml", shapes, **options)
        ended = run_ranks(2, "train", config, "--run", work / name, cwd=work)
        assert [each.code for each in ended] == [0, 0], ended[0].err
        losses[name] = [float(row[5]) for row in trained(work / name)]
    plain = losses["plain"]
    assert losses["fsdp"] == pytest.approx(plain, abs=1e-4)
    for name in ("fp16", "bf16"):
        assert losses[name] != plain
        assert losses[name] == pytest.approx(plain, abs=0.05)


@pytest.mark.parametrize("chosen", [{"optimizer": "adamw", "beta2": 0.95}, {"optimizer": "sgd", "momentum": 0.8}])
def test_every_mode_trains_with_the_same_optimizer(work: Path, shapes: Path, chosen: dict[str, Any]) -> None:
    settings = {f"train__{name}": value for name, value in {"max_steps": 2, "weight_decay": 0.03, **chosen}.items()}
    seen = {}
    for mode, ranks in {"single": 1, "ddp": 2, "fsdp": 2}.items():
        several = {} if ranks == 1 else {**DDP, "parallel__mode": mode, "parallel__devices": ranks}
        config = write_recipe(work / "tiny.yaml", shapes, **several, **settings)
        ended = run_ranks(ranks, "train", config, "--run", work / mode, cwd=work)
        assert [each.code for each in ended] == [0] * ranks, ended[0].err
        seen[mode] = summary(work / mode)["optimizer"]
    decayed, others = seen["single"]["groups"]
    assert seen["single"]["name"] == chosen["optimizer"]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.03, 0.0)
    assert decayed["betas"][1] == 0.95 if "beta2" in chosen else decayed["momentum"] == 0.8
    assert seen["fsdp"] == seen["ddp"] == seen["single"]


def test_the_command_starts_its_ranks_again_and_passes_on_their_error(work: Path, shapes: Path) -> None:
    """Without torchrun: flatout train is the agent of its ranks."""
    options = {**DDP, "parallel__devices": 2, "parallel__max_restarts": 1}
    config, run = write_recipe(work / "tiny.yaml", shapes, **options), work / "runs" / "tiny"
    running = start("train", config, "--json", "--fresh", cwd=work)
    wait_until(lambda: row_count(run) >= 5 or not running.running, "some steps")
    next(each for each in running.children() if "one_rank" in " ".join(each.cmdline())).kill()
    finished = running.wait()
    assert finished.code == 0, finished.err
    ended = json.loads(finished.out)
    assert (ended["status"], ended["world_size"], ended["attempts"]) == ("completed", 2, 2)
    assert_ledger(run, batch_size=16)
    wrong = installed_command("train", config, "--set", "data.batch_size=100", "--run", work / "wrong", cwd=work)
    assert wrong.code == 2
    assert "at most 78" in wrong.error_line
    assert not (work / "wrong").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parallel__mode": "single"}, "2 ranks were started but parallel.mode is single"),
        ({**DDP, "parallel__devices": 4}, "parallel.devices is 4 (4 here) but 2 rank(s) were started"),
        ({**DDP, "parallel__devices": 2, "parallel__nodes": 2}, "4 ranks, but 2 were started"),
        ({**DDP, "parallel__devices": 2, "parallel__interface": "eth77"}, "parallel.interface is 'eth77'"),
    ],
)
def test_a_world_that_is_not_the_configured_one_is_refused(
    work: Path, shapes: Path, options: dict[str, Any], said: str
) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, **options)
    ended = run_ranks(2, "train", config, cwd=work)
    assert [each.code for each in ended] == [2, 2]
    assert said in ended[0].error_line
    assert not (work / "runs").exists()


@pytest.mark.parametrize(("changes", "every"), [({}, 1), ({"local_steps": 4}, 4), ({"compress": "fp16"}, 1)])
def test_emulated_ranks_exchange_the_bytes_of_the_model(
    work: Path, shapes: Path, changes: dict[str, Any], every: int
) -> None:
    """Nothing is computed, and the wire carries what it would: several steps after the first, too."""
    emulated = {"device": "emulated", "emulated": {"base_seconds": 0.05}, "train__max_steps": 8, "model__width": 0.5}
    parallel = {"mode": "ddp", "devices": 2, **changes}
    config = write_recipe(work / "tiny.yaml", shapes, parallel=parallel, checkpoint__every_steps=None, **emulated)
    ended = run_ranks(2, "train", config, cwd=work)
    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    found, _ = checkpoint.load_newest(work / "runs/tiny/checkpoints")
    assert found is not None
    gradients = sum(
        value.nbytes for name, value in found.tensors.items() if name.startswith("optimizer/momentum_buffer/")
    )
    sent = sum(int(row["bytes_sent"]) for row in read_table(work / "runs/tiny/steps.csv")[1:])  # of both ranks
    assert sent >= 7 // every * gradients / (2 if changes.get("compress") else 1)
