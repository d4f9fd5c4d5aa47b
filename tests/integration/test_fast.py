"""`flatout train --fast` as a whole: what it chose goes on to the bit after kill -9, and ranks see the same batches."""

import json
from pathlib import Path

import yaml

from flatout.engine.devices import choose_device
from training import assert_ledger, assert_same_training, command, recipe, row_count, start, summary, wait_until

EPOCHS, GLOBAL_BATCH = 4, 16
KERNELS = "fused" if choose_device("cpu").facts.fuses else "torch"


def fast_recipe(work: Path, shapes: Path) -> Path:
    """In bf16 and with fused layers, as --fast chooses where a machine has units for them (and batches are larger)."""
    values = recipe(
        shapes, train__epochs=EPOCHS, train__precision="bf16", train__kernels="fused", data__global_batch=GLOBAL_BATCH
    )
    del values["data"]["batch_size"]
    values["views"]["small"] |= {"size": 32}
    path = work / "fast.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_it_goes_on_to_the_bit_after_a_kill(work: Path, shapes: Path) -> None:
    config, run, whole = fast_recipe(work, shapes), work / "killed", work / "whole"
    finished = command("train", config, "--fast", "--run", whole, cwd=work)
    assert finished.code == 0, finished.err
    resolved = json.loads((whole / "resolved.json").read_text())
    decided = resolved["attempts"][0]["decided"]
    on = decided["speedups"]["value"]
    assert decided["train"]["kernels"]["value"] == KERNELS
    assert {"train.schedule", "views.small.sizes"} <= set(on)
    killed = start("train", config, "--fast", "--run", run, cwd=work)
    wait_until(lambda: row_count(run) >= 5, "five steps")
    killed.kill()
    finished = command("train", config, "--fast", "--run", run, cwd=work)
    assert finished.code == 0, finished.err
    assert_same_training(run, whole)
    assert_ledger(run, batch_size=GLOBAL_BATCH, epochs=EPOCHS)


def test_two_ranks_train_on_the_same_batches(work: Path, shapes: Path) -> None:
    options = ("--set", "parallel.mode=ddp", "--set", "parallel.devices=2", "--set", "parallel.preflight=false")
    finished = command("train", fast_recipe(work, shapes), "--fast", "--run", work / "two", *options, cwd=work)
    assert finished.code == 0, finished.err
    assert summary(work / "two")["world_size"] == 2
    assert_ledger(work / "two", batch_size=GLOBAL_BATCH, epochs=EPOCHS)
