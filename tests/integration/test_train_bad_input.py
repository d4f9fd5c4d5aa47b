"""A user's mistake: exit code 2, one line that says what to do, and nothing changed on disk."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from training import command, make_dataset, snapshot, start, wait_until, write_recipe


def set_to(*assignments: str) -> Callable[[Path], list[str]]:
    return lambda work: ["train", "tiny.yaml", *(word for each in assignments for word in ("--set", each))]


def options(*words: str) -> Callable[[Path], list[str]]:
    return lambda work: ["train", "tiny.yaml", *words]


def with_dataset(change: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    def prepare(work: Path) -> list[str]:
        data = make_dataset(work / "data", 4, 2)
        change(data)
        return ["train", "tiny.yaml", "--set", f"data.path={data}"]

    return prepare


def with_file(name: str, content: bytes, *words: str) -> Callable[[Path], list[str]]:
    def prepare(work: Path) -> list[str]:
        (work / name).write_bytes(content)
        return list(words)

    return prepare


def with_weights(work: Path) -> list[str]:
    save_file({"conv1.weight": torch.zeros(3, 3)}, work / "other.safetensors")
    return ["train", "tiny.yaml", "--warm-start", "other.safetensors"]


MISTAKES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "unknown key": (set_to("train.learning_rate=0.1"), "unknown key train.learning_rate"),
    "misspelt key": (set_to("train.epoch=3"), "did you mean train.epochs?"),
    "set without a value": (set_to("train.epochs"), "--set 'train.epochs' has no value"),
    "set that is not YAML": (set_to("data.classes=[a"), "is not valid YAML"),
    "set of the wrong type": (set_to("train.epochs=many"), "train.epochs is 'many'"),
    "set beyond all limits": (set_to("train.lr=1e308"), "train.lr is '1e308': input should be at most 1e+30"),
    "zeros without end as a recipe": (lambda work: ["train", "/dev/zero"], "it is a pipe or a device"),
    "a recipe that holds itself": (with_file("self.yaml", b"&a {b: *a}", "train", "self.yaml"), "an alias refers to"),
    "set below the limit": (set_to("data.batch_size=0"), "data.batch_size is 0"),
    "set under a value": (set_to("name.first=x"), "name.first cannot be set"),
    "key that nothing uses": (set_to("emulated.base_seconds=1"), "nothing uses it"),
    "more parts than samples": (set_to("train.accumulate=9"), "train.accumulate is 9 but data.batch_size is 8"),
    "unknown view": (set_to("data.view=train-65"), "unknown view 'train-65'; did you mean train-64?"),
    "unknown eval view": (set_to("data.eval_view=nothing"), "unknown view 'nothing'"),
    "unknown model": (set_to("model.name=resnet19"), "did you mean resnet18"),
    "unknown source of models": (set_to("model.name=keras:x"), "models come from 'timm:' or 'torchvision:'"),
    "unknown instance": (set_to("cost.instance=p99.huge"), "p99.huge"),
    "unknown class": (set_to("data.classes=[none-such]"), "'none-such'"),
    "too many classes": (set_to("data.classes=5"), "data.classes is 5 but the dataset has 4"),
    "one class": (set_to("data.classes=1"), "at least 2"),
    "top-5 of four classes": (set_to("checkpoint.metric=top5"), "top5, which says nothing of 4 classes"),
    "batch larger than the dataset": (set_to("data.batch_size=157"), "set data.batch_size to at most 156"),
    "fp16 on a CPU": (set_to("train.precision=fp16"), "use bf16 or fp32"),
    "fp16 on whatever there is": (set_to("train.precision=fp16", "device=auto"), "use bf16 or fp32"),
    "name with a slash": (set_to("name=a/b"), "name is 'a/b'"),
    "name that leads out": (set_to("name=.."), "name is '..'"),
    "no name": (set_to("name=''"), "name is ''"),
    "very long name": (set_to(f"name={'x' * 300}"), "name too long"),
    "missing dataset": (set_to("data.path=no/such/place"), "no/such/place does not exist"),
    "no dataset": (set_to("data.path=''"), "data.path is not set"),
    "file as a dataset": (set_to("data.path=tiny.yaml"), "tiny.yaml is a file of unknown kind"),
    "unknown scheme": (set_to("data.path=ftp://host/data"), "ftp://"),
    "empty class": (with_dataset(lambda data: (data / "train" / "9-empty").mkdir()), "class '9-empty'"),
    "empty folder": (with_dataset(shutil.rmtree), "does not exist"),
    "class only in val": (
        with_dataset(lambda data: shutil.copytree(data / "val" / "0-circle", data / "val" / "9-other")),
        "'9-other' is only in val",
    ),
    "class only in train": (
        with_dataset(lambda data: shutil.rmtree(data / "val" / "0-circle")),
        "'0-circle' is only in train",
    ),
    "pages in place of pictures": (
        with_dataset(lambda data: [each.write_bytes(b"<html>") for each in data.glob("train/*/*")]),
        "none of 16 samples of training, from all over the data, can be decoded",
    ),
    "missing recipe": (lambda work: ["train", "none.yaml"], "no recipe at none.yaml"),
    "folder as a recipe": (lambda work: ["train", "."], "it is a directory; name a file"),
    "recipe that is not YAML": (with_file("bad.yaml", b"name: [", "train", "bad.yaml"), "bad.yaml is not valid YAML"),
    "recipe that is not text": (with_file("bad.yaml", b"\xff\xfe\x00", "train", "bad.yaml"), "bad.yaml"),
    "recipe without keys": (with_file("bad.yaml", b"", "train", "bad.yaml"), "bad.yaml holds no keys"),
    "no recipe given": (lambda work: ["train"], "CONFIG"),
    "unknown option": (options("--sets", "a=b"), "--sets"),
    "file as a run directory": (options("--run", "tiny.yaml"), "tiny.yaml"),
    "run directory under a file": (options("--run", "tiny.yaml/run"), "tiny.yaml/run"),
    "missing weights": (options("--warm-start", "none.safetensors"), "no weights at none.safetensors"),
    "weights that are none": (options("--warm-start", "tiny.yaml"), "tiny.yaml is not a readable safetensors file"),
    "weights of another model": (with_weights, "fits the model in 0 of"),
    "report of nothing": (lambda work: ["report", "runs/none"], "no run in runs/none"),
    "one class of shapes": (
        lambda work: ["data", "make", "shapes", "out", "--classes", "1"],
        "at least 2 classes",
    ),
    "no samples of shapes": (
        lambda work: ["data", "make", "shapes", "out", "--samples-per-class", "0"],
        "1 sample per class",
    ),
    "shapes too small": (lambda work: ["data", "make", "shapes", "out", "--size", "7"], "from 8 to 4096"),
    "classes that are no number": (lambda work: ["data", "make", "shapes", "out", "--classes", "two"], "--classes"),
    "shapes into a file": (lambda work: ["data", "make", "shapes", "tiny.yaml"], "cannot write images to tiny.yaml"),
    "shapes into an archive": (lambda work: ["data", "make", "shapes", "x.tar"], "tar -cf x.tar -C x ."),
    "lr-find backwards": (lambda work: ["lr-find", "tiny.yaml", "--low", "1", "--high", "0.1"], "low 1, high 0.1"),
    "lr-find of an unknown model": (
        lambda work: ["lr-find", "tiny.yaml", "--set", "model.name=resnet19"],
        "did you mean resnet18",
    ),
    "lr-find name with a slash": (lambda work: ["lr-find", "tiny.yaml", "--set", "name=../a"], "name is '../a'"),
    "unknown command": (lambda work: ["trian"], "trian"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_line_and_nothing_changed(work: Path, shapes: Path, mistake: str) -> None:
    write_recipe(work / "tiny.yaml", shapes)
    prepare, said = MISTAKES[mistake]
    arguments = prepare(work)
    before = snapshot(work)
    finished = command(*arguments, cwd=work)
    assert finished.code == 2, finished.err
    assert said.lower() in finished.error_line.lower()
    assert finished.out == ""
    assert snapshot(work) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda(work: Path, shapes: Path) -> None:
    write_recipe(work / "tiny.yaml", shapes)
    before = snapshot(work)
    finished = command("train", "tiny.yaml", "--set", "device=cuda", cwd=work)
    assert finished.code == 2
    assert "device is cuda" in finished.error_line
    assert snapshot(work) == before


def still(work: Path) -> dict[str, str]:
    """All files but those that the first run's own monitors go on writing."""
    return {path: digest for path, digest in snapshot(work).items() if not path.endswith("system.csv")}


def test_a_second_process_on_the_same_run_directory(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, device="emulated", emulated={"base_seconds": 600.0})
    run = work / "runs" / "tiny"
    first = start("train", config, cwd=work)
    try:
        wait_until(lambda: (run / "summary.json").exists() or not first.running, "the first run to begin")
        before = still(work)
        for extra in ([], ["--fresh"]):
            second = command("train", config, *extra, cwd=work)
            assert second.code == 2
            assert f"runs/tiny is in use by process {first.pid}" in second.error_line
        assert still(work) == before
        assert first.running
    finally:
        first.kill()


def test_a_name_is_only_a_name(work: Path, shapes: Path) -> None:
    """No shell is ever involved."""
    config = write_recipe(work / "tiny.yaml", shapes, name=";touch x", train__max_steps=1)
    finished = command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    assert (work / "runs" / ";touch x" / "summary.json").is_file()
    assert not list(work.rglob("x"))
    assert ";touch x" in command("runs", cwd=work).out
    assert command("report", "runs/;touch x", cwd=work).code == 0


@pytest.mark.parametrize(
    "name", ["<b>[red]x[bold]", "  spaced name ", "ünï¢ode ✓", "a\nb", "-rf", "$(touch y)`touch y`"]
)
def test_odd_names_are_shown_as_they_are(work: Path, shapes: Path, name: str) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, name=name, train__max_steps=1)
    assert command("train", config, cwd=work).code == 0
    assert [path.name for path in (work / "runs").iterdir()] == [name]
    listed = command("runs", cwd=work)
    assert listed.code == 0
    assert name.split()[0] in listed.out
    assert command("report", f"runs/{name}", cwd=work).code == 0
    assert not list(work.rglob("y"))
