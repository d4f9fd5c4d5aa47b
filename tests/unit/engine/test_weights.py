"""Weights from files, other names, other classes; what does not fit is refused and changes nothing."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from flatout.engine.checkpoint import save
from flatout.engine.weights import load_weights
from flatout.errors import CheckpointCorrupt, ConfigError
from flatout.tasks.classification.resnet import resnet

ANIMALS, FRUIT, THREE = ("ant", "bee", "cat", "dog"), ("apple", "fig", "kiwi", "lime"), ("ant", "bee", "cat")


def small(classes: int = 4, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return resnet("resnet18", classes, "small", 0.125)


def equal(one: Mapping[str, Tensor], two: Mapping[str, Tensor], but: str = "-") -> bool:
    return all(torch.equal(one[name], two[name]) for name in one if not name.startswith(but))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.module.", "module._orig_mod."])
def test_names_lose_what_wrappers_put_before_them(tmp_path: Path, prefix: str) -> None:
    given, model = small(seed=1), small(seed=2)
    named = {f"{prefix}{name}": value for name, value in given.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": named}, tmp_path / "weights.pth")
    report = load_weights(model, str(tmp_path / "weights.pth"), ANIMALS)
    assert equal(model.state_dict(), given.state_dict())
    assert (report.new_head, report.unused) == ((), ())


def test_a_model_whose_own_names_begin_like_a_wrappers(tmp_path: Path) -> None:
    given, model = (nn.ModuleDict({"model": small(seed=seed)}) for seed in (1, 2))
    save_file(given.state_dict(), tmp_path / "weights.safetensors")
    load_weights(model, str(tmp_path / "weights.safetensors"), ANIMALS)
    assert equal(model.state_dict(), given.state_dict())


def test_another_number_of_classes_starts_a_new_head_and_says_so(tmp_path: Path) -> None:
    given, model = small(9, seed=1), small(4, seed=2)
    first = model.fc.weight.clone()
    torch.save({**given.state_dict(), "extra": torch.zeros(1)}, tmp_path / "w.pt")
    report = load_weights(model, str(tmp_path / "w.pt"), ANIMALS)
    assert equal(model.state_dict(), given.state_dict(), but="fc.")
    assert torch.equal(model.fc.weight, first)
    assert report.new_head == ("fc.weight", "fc.bias")
    assert "w.pt has 9 classes and the data 4" in report.notes[1]
    assert report.unused == ("extra",)


def checkpoint_of(folder: Path, model: nn.Module, classes: tuple[str, ...], **more: Tensor) -> Path:
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    return save(folder / "checkpoints", 7, {**tensors, **more}, {"classes": list(classes), "metric": 0.5})


def test_other_classes_of_the_same_number_start_a_new_head(tmp_path: Path) -> None:
    given = small(seed=1)
    checkpoint_of(tmp_path, given, ANIMALS)
    for classes, new in ((ANIMALS, ()), (FRUIT, ("fc.weight", "fc.bias"))):
        model = small(seed=2)
        assert load_weights(model, f"run:{tmp_path}", classes).new_head == new
        assert equal(model.state_dict(), given.state_dict(), but="fc.")


def test_averaged_weights_of_a_checkpoint_are_the_ones_that_were_validated(tmp_path: Path) -> None:
    given, average = small(seed=1), small(seed=3)
    averages = {f"ema/average/{name}": value.detach() for name, value in average.named_parameters()}
    checkpoint_of(tmp_path, given, ANIMALS, **averages)
    model = small(seed=2)
    report = load_weights(model, f"run:{tmp_path}", ANIMALS)
    assert all(torch.equal(mine, other) for mine, other in zip(model.parameters(), average.parameters(), strict=True))
    assert "its averaged ones" in report.notes[0]


def test_files_from_before_batch_norm_counted(tmp_path: Path) -> None:
    given, model = small(seed=1), small(seed=2)
    old = {name: value for name, value in given.state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.pth")
    load_weights(model, str(tmp_path / "old.pth"), ANIMALS)
    assert equal(model.state_dict(), given.state_dict())


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("run by a pickle",))


def test_what_is_no_weights_is_refused_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small(seed=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save({"state_dict": small().state_dict(), "more": Trap()}, tmp_path / "trap.pth")
    torch.save({"a": 1}, tmp_path / "none.pth")
    torch.save(resnet("resnet18", 4, "standard", 0.125).state_dict(), tmp_path / "stem.pth")
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "nowhere.pth")
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name, said in {
        "trap.pth": r"holds more than tensors.*python -c .*weights_only=False",
        "none.pth": "holds a, and no weights; save a state_dict",
        "stem.pth": r"'conv1.weight' is \[8, 3, 3, 3\] in the model and the file has \[8, 3, 7, 7\].*model.stem",
        "nowhere.pth": r"fits the model in 0 of \d+ tensors: .* does not have it, but has 'bias'",
        "text.pth": "text.pth (holds more than tensors|is not a readable torch file)",
        "text.safetensors": "not a readable safetensors file",
        "empty.pt": "is not a readable torch file",
        "gone.pth": "no weights at",
        "": "is|are a folder; write run:",
    }.items():
        with pytest.raises(ConfigError, match=said) as refused:
            load_weights(model, str(tmp_path / name), ANIMALS)
        assert "\n" not in str(refused.value)
    for source, said in (("run:nowhere", "no run at nowhere"), (f"run:{tmp_path}", "no run at")):
        with pytest.raises(ConfigError, match=said):
            load_weights(model, source, ANIMALS)
    assert equal(model.state_dict(), before)
    assert "run by a pickle" not in capsys.readouterr().out


def test_a_checkpoint_that_was_damaged_is_not_used(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, small(), ANIMALS)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointCorrupt, match="does not match its digest"):
        load_weights(small(), str(path), ANIMALS)


@pytest.mark.parametrize("publisher", ["timm", "torchvision"])
def test_published_weights_come_from_the_package(monkeypatch: pytest.MonkeyPatch, publisher: str) -> None:
    given = resnet("resnet18", 1000, "standard", 1.0)
    asked: list[object] = []

    def create_model(name: str, **options: object) -> nn.Module:
        asked.append((name, options))
        return given

    module = "timm" if publisher == "timm" else "torchvision.models"
    fake = SimpleNamespace(create_model=create_model, get_model=create_model)
    monkeypatch.setitem(sys.modules, publisher, fake)
    monkeypatch.setitem(sys.modules, module, fake)
    model = resnet("resnet18", 3, "standard", 1.0)
    report = load_weights(model, publisher, THREE, "resnet18")
    assert equal(model.state_dict(), given.state_dict(), but="fc.")
    assert report.new_head == ("fc.weight", "fc.bias")
    assert asked == [("resnet18", {"pretrained": True} if publisher == "timm" else {"weights": "DEFAULT"})]
    with pytest.raises(ConfigError, match="for which it has no weights"):
        load_weights(model, publisher, THREE, "./net.py:Net")
