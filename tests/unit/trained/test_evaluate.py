"""`flatout.evaluate` and `flatout.load`: what training said, and what a user can ask."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import flatout
from flatout.errors import CheckpointCorrupt, ConfigError, DataError, FlatoutError, RunDirectoryError
from flatout.reports.evaluation import evaluation_html
from flatout.trained.several_looks import LOOKS, SeveralLooks
from training import snapshot


def test_it_says_what_training_said_to_the_last_digit(learned: Path) -> None:
    before = snapshot(learned)
    with (learned / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    for which, row in (
        ("last", rows[-1]),
        ("best", max(rows, key=lambda each: (float(each["top1"]), int(each["step"])))),
    ):
        found = flatout.evaluate(learned, checkpoint=which)
        assert found["step"] == int(row["step"])
        assert {name: repr(value) for name, value in found["metrics"].items()} == {
            name: row[name] for name in ("top1", "top5", "val_loss")
        }
        assert found["as_training_said"] is True
        assert found["averaged_weights"] is True
    assert snapshot(learned) == before  # who looks at a run changes nothing in it


def test_several_looks_have_figures_of_their_own(learned: Path) -> None:
    plain, found = flatout.evaluate(learned), flatout.evaluate(learned, tta=True)
    assert found["metrics"] == plain["metrics"]
    assert found["confusion_matrix"] == plain["confusion_matrix"]
    assert (plain["several_looks"], found["several_looks"].keys()) == ({}, {"flip", "ten crops"})
    both_ways, crops = (found["several_looks"][name] for name in ("flip", "ten crops"))
    assert both_ways.keys() == crops.keys() == plain["metrics"].keys()
    assert len({values["val_loss"] for values in (plain["metrics"], both_ways, crops)}) == 3
    assert "top-1, flip" in evaluation_html(found)


def test_looks_are_averaged_as_chances() -> None:
    class Brightness(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            left = images[:, 0, :, 0].mean(1)
            return torch.stack([left, -left], 1)

    images = torch.zeros(1, 3, 16, 16)
    images[..., :8] = 2.0
    mean = (torch.tensor([2.0, -2.0]).softmax(0) + torch.tensor([0.0, 0.0]).softmax(0)) / 2
    assert torch.allclose(SeveralLooks(Brightness(), LOOKS["flip"])(images)[0].exp(), mean)
    assert [tuple(each.shape) for each in LOOKS["ten crops"](images)] == [(1, 3, 16, 16)] * 10
    middle, other = list(LOOKS["ten crops"](images))[:2]
    assert torch.equal(middle, images)
    assert torch.equal(other, images.flip(3))


def test_classes_and_matrix_add_up(learned: Path) -> None:
    found = flatout.evaluate(learned)
    matrix = np.array(found["confusion_matrix"])
    assert matrix.sum() == found["samples"] == 36
    assert np.isclose(np.diag(matrix).sum() / 36, found["metrics"]["top1"])
    assert [each["samples"] for each in found["classes"]] == [6] * 6
    assert found["worst"] == sorted(found["worst"], key=lambda each: each["probability"])
    assert found["worst"][0]["thumbnail"].startswith("data:image/jpeg;base64,")
    page = evaluation_html({**found, "run": "<script>alert(1)</script>"})
    assert "<script>" not in page
    assert found["worst"][0]["name"] in page


def test_other_data_is_matched_by_the_names_of_its_classes(learned: Path, tmp_path: Path) -> None:
    val = learned.parent / "shapes" / "val"
    classes = sorted(each.name for each in val.iterdir())
    for name in classes[2:4]:  # two of six, which a dataset of its own would number 0 and 1
        shutil.copytree(val / name, tmp_path / "other" / name)
    found = flatout.evaluate(learned, data=tmp_path / "other")
    own = flatout.evaluate(learned)
    assert found["samples"] == 12  # all of it, since it has no validation split
    assert found["training_said"] is None
    assert [row for row in found["confusion_matrix"] if sum(row)] == own["confusion_matrix"][2:4]
    shutil.copytree(val / classes[0], tmp_path / "other" / "unicorn")
    with pytest.raises(DataError, match="class 'unicorn' that the run does not know"):
        flatout.evaluate(learned, data=tmp_path / "other")


def test_every_way_to_give_a_picture_gives_the_same_answer(learned: Path) -> None:
    model = flatout.load(learned)
    worst = flatout.evaluate(learned)["worst"][0]
    path = learned.parent / "shapes" / worst["name"]
    image = Image.open(path)
    pixels = np.asarray(image.convert("RGB"))
    answers = [model.predict(each)[0] for each in (path, str(path), image, pixels, pixels[None])]
    for each in answers:
        assert (each.name, model.classes[each.label]) == (worst["predicted"], worst["predicted"])
        assert each.probability == pytest.approx(worst["predicted_probability"], abs=1e-6)
        assert each.probabilities.sum() == pytest.approx(1, abs=1e-5)
    several = model.predict([path, pixels, image])
    assert [each.label for each in several] == [answers[0].label] * 3
    prepared = next(
        iter(flatout.open_batches(learned.parent / "shapes", model.view, 36, split="val", shuffle=False).epoch(0))
    )
    assert len(model.predict(prepared.images)) == 36


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.zeros((4, 4), np.uint8), r"uint8 \(4, 4\)"),
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
        ("nowhere.jpg", "no such file"),
        ([7], "a picture is a int"),
        ([], "no pictures"),
        (torch.zeros(1, 3, 4, 4), "it must be uint8"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_said_in_one_line(learned: Path, bad: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        flatout.load(learned).predict(bad)  # type: ignore[arg-type]


def test_what_cannot_be_evaluated_is_refused(learned: Path, tmp_path: Path) -> None:
    cases: list[tuple[type[FlatoutError], str, dict[str, object]]] = [
        (RunDirectoryError, "no run in", {"run": tmp_path}),
        (ConfigError, "no weights at", {"run": learned, "checkpoint": "nowhere.safetensors"}),
        (ConfigError, "unknown view 'odd'", {"run": learned, "view": "odd"}),
        (ConfigError, "there is no folder", {"run": learned, "out": tmp_path / "no" / "page.html"}),
        (ConfigError, "it is a folder; name a file in it", {"run": learned, "out": tmp_path}),
    ]
    for kind, said, arguments in cases:
        with pytest.raises(kind, match=said):
            flatout.evaluate(**arguments)  # type: ignore[arg-type]


def test_a_damaged_or_missing_checkpoint_is_said_and_left_alone(learned: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(learned, run, symlinks=True)
    newest = sorted((run / "checkpoints").glob("step-*.safetensors"))[-1]
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(bytes(data))
    with pytest.raises(CheckpointCorrupt, match="does not match its digest"):
        flatout.evaluate(run, checkpoint="last")
    assert newest.exists()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunDirectoryError, match="has no checkpoint yet"):
        flatout.load(run)


def test_an_emulated_run_has_learned_nothing(learned: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(learned, run, symlinks=True)
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("device: cpu", "device: emulated"))
    with pytest.raises(ConfigError, match="emulated device: its weights never learned"):
        flatout.load(run)


def test_the_package_lists_its_public_names_without_torch() -> None:
    import subprocess
    import sys

    code = "import flatout, sys; assert 'torch' not in sys.modules; print(*dir(flatout))"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"load", "evaluate", "train", "open_batches", "explain", "normalize", "Run", "__version__"} <= set(listed)
    assert all(hasattr(flatout, name) for name in listed)
