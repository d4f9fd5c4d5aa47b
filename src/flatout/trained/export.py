"""Take a trained model away: written beside, proven on the validation set by what was written alone, then renamed."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flatout.config.loading import dump_config
from flatout.data.loading.loader import choose_workers, open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.normalize import normalize
from flatout.data.pixels.views import View
from flatout.data.source.dataset import Split
from flatout.errors import ConfigError, DataError, ExportRefused, NoSpace, StorageError
from flatout.runs.directory import write_json, write_text
from flatout.trained.formats import FILES, NORMALISES, Model, reload_model, validated_model, write_model
from flatout.trained.opening import TrainedRun, validation_plan

MOST_OFF = 1e-3  # of a probability
_TIE = 1e-5  # two classes as probable as that are a tie: float arithmetic in another order may break it either way
RULES, PREPROCESS, CLASSES, CARD, PROOF = (
    "preprocessing.json",
    "preprocess.py",
    "classes.json",
    "README.md",
    "proof.json",
)
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Proof:
    """What the written files said of the validation set beside the run's own model."""

    samples: int
    right: int | None  # by the run's own model; None where samples have more or less than one class
    exported_right: int | None
    most_off: float  # the largest difference of a probability
    top1: float | None


def rules_of(view: View, in_model: bool, shape: tuple[int, int]) -> dict[str, Any]:
    """preprocessing.json: everything between the bytes of a file and the model, for a view that draws nothing."""
    height, width = shape
    return {
        "decode": "RGB, upright by EXIF, alpha dropped, 16 bits to their upper 8",
        "crop": {"kind": "none"} if view.crop == "raw" else {"kind": "centre-square", "fraction": view.fraction},
        "resize": {"width": width, "height": height, "filter": "bilinear", "antialias": True},
        "channels": "RGB",
        "layout": "NCHW",
        "dtype": "uint8" if in_model else "float32",
        "normalise": {
            "in_model": in_model,
            "mean": list(view.mean),
            "std": list(view.std),
            "pixels_are_divided_by": 255,
        },
    }


def require_exportable(view: View) -> None:
    """A picture must become the same pixels every time, by rules that can be written down."""
    if view.transform:
        raise ConfigError(f"view {view.name!r} has a transform of your own, which cannot be exported; use --view")
    if view.random:
        raise ConfigError(f"view {view.name!r} changes pictures at random, so no export can equal it; use --view")
    if view.decode == "scaled":
        raise ConfigError(f"view {view.name!r} has decode: scaled, which only flatout has; use --view of an exact one")


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` that gets its name when the block ends well, and is removed otherwise."""
    if out.exists():
        raise ConfigError(f"{out} is there already; remove it, or choose another --out DIR")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.absolute().parent}; make it first")
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir()
        yield beside
        os.replace(beside, out)
    except OSError as error:
        raise NoSpace(f"cannot write {out}: {error.strerror or error}; nothing was exported") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def export_classifier(trained: TrainedRun, to: str, folder: Path, advance: Advance) -> Proof:
    """Write model, classes and rules into `folder` and prove them there; raises ExportRefused where they differ."""
    require_exportable(trained.view)
    plan = validation_plan(trained)
    if plan is None:
        raise DataError(f"{trained.config.data.path} has no validation set to prove the export on; use --data PATH")
    shape = _shape(plan, trained)
    write_model(trained, to, folder, shape)
    write_json(folder / RULES, rules_of(trained.view, NORMALISES[to], shape))
    write_json(folder / CLASSES, list(trained.classes))
    write_text(folder / PREPROCESS, (Path(__file__).parent / PREPROCESS).read_text("utf-8"))
    if to == "safetensors":
        write_text(folder / "config.yaml", dump_config(trained.config))
    proof = prove(trained, to, folder, plan, advance)
    write_json(folder / PROOF, asdict(proof))
    return proof


def _shape(plan: BatchPlan, trained: TrainedRun) -> tuple[int, int]:
    with closing(open_loader(plan, trained.config.data, 0, look_ahead=False)) as loader:
        _, _, height, width = loader.recipe.shape(0)
    return height, width


@dataclass
class _Tally:
    """Of the proof so far."""

    one_class_each: bool
    seen: int = 0
    right: int = 0
    exported_right: int = 0
    ties: int = 0
    most_off: float = 0.0

    def proof(self, to: str) -> Proof:
        if not self.seen:
            raise DataError("no sample of the validation set can be decoded, so nothing can be proven")
        if not self.one_class_each:
            return Proof(self.seen, None, None, self.most_off, None)
        if abs(self.right - self.exported_right) > self.ties:
            raise ExportRefused(
                f"the {to} export has top-1 {self.exported_right / self.seen:.4f} where the run's own model has "
                f"{self.right / self.seen:.4f}; nothing was written"
            )
        return Proof(self.seen, self.right, self.exported_right, self.most_off, self.right / self.seen)


def prove(trained: TrainedRun, to: str, folder: Path, plan: BatchPlan, advance: Advance) -> Proof:
    """Every sample twice: by flatout, and by nothing but the files in `folder`."""
    exported, preprocess = reload_model(folder / FILES[to], to, trained), _module(folder / PREPROCESS)
    rules, classes = preprocess.read_rules(folder / RULES), json.loads((folder / CLASSES).read_text("utf-8"))
    own, tally, config = _own_model(trained), _Tally(trained.one_class_each), trained.config.data
    workers = choose_workers(config.workers, "cpu", plan)
    with closing(open_loader(plan, config, workers, look_ahead=False, epochs=1)) as loader:
        for batch in loader.epoch(0):
            ids, labels = batch.sample_ids.numpy(), batch.labels.numpy()
            if not len(ids):
                continue
            wanted = own(batch.images.numpy())
            found = _checked(exported(_pictures(plan.split, ids, preprocess, rules)), wanted.shape, to)
            tally.ties += _compare(wanted, found, ids, plan.split, to)
            tally.most_off = max(tally.most_off, float(np.abs(wanted - found).max()))
            if tally.one_class_each:
                tally.right += int((wanted.argmax(1) == labels).sum())
                said = [classes[k] for k in found.argmax(1).tolist()]
                tally.exported_right += sum(a == trained.classes[k] for a, k in zip(said, labels.tolist(), strict=True))
            tally.seen += len(ids)
            advance(tally.seen, len(plan.split))
    return tally.proof(to)


def _own_model(trained: TrainedRun) -> Model:
    """The run's model as flatout itself uses it: eager, its own normalisation."""
    import torch

    model = validated_model(trained)

    def chances(pixels: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits = model(normalize(torch.from_numpy(pixels), trained.view))
            out: NDArray[np.float32] = trained.outputs.probabilities(logits).numpy()
        return out

    return chances


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("flatout_exported_preprocess", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pictures(split: Split, ids: NDArray[np.int64], preprocess: ModuleType, rules: dict[str, Any]) -> NDArray[Any]:
    shapes, pictures = split.shapes(ids), []
    for slot, data in enumerate(split.read(ids)):
        if isinstance(data, StorageError):
            raise data
        picture: Any = bytes(data)
        if shapes is not None and shapes[slot][0]:
            picture = Image.fromarray(np.frombuffer(data, np.uint8).reshape(*shapes[slot], 3))
        pictures.append(preprocess.prepare(picture, rules))
    return np.stack(pictures)


def _checked(found: NDArray[np.float32], shape: tuple[int, ...], to: str) -> NDArray[np.float32]:
    if found.shape != shape:
        raise ExportRefused(f"the {to} export gives {found.shape} where the model gives {shape}; nothing was written")
    return found


def _compare(
    wanted: NDArray[np.float32], found: NDArray[np.float32], ids: NDArray[np.int64], split: Split, to: str
) -> int:
    """How many predictions differ by a tie; refuses every other difference."""
    off = np.abs(wanted - found).max(1)
    two = np.sort(wanted, 1)[:, -2:]
    others, tied = wanted.argmax(1) != found.argmax(1), two[:, 1] - two[:, 0] <= _TIE
    differs = others & ~tied
    wrong = np.flatnonzero(differs | ~(off <= MOST_OFF))
    if len(wrong):
        first = int(wrong[0])
        what = "another class" if differs[first] else f"a probability that is off by {off[first]:.2g}"
        raise ExportRefused(
            f"the {to} export says {what} for {split.name(int(ids[first]))} ({len(wrong)} of {len(ids)} in its batch; "
            f"at most {MOST_OFF:g} is allowed); nothing was written"
        )
    return int((others & tied).sum())
