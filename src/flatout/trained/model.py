"""Ask a trained classifier about pictures: files through the loader, arrays and PIL images by the same path."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from os import PathLike, fspath
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from flatout.config.schema import DataConfig
from flatout.data.loading.loader import choose_workers, open_loader, with_raw_shape
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.pixels.normalize import normalize
from flatout.data.source.dataset import Split
from flatout.data.source.pictures import Pixels, picture_split
from flatout.errors import ConfigError, DataError, RunDirectoryError
from flatout.runs import Run
from flatout.trained.opening import BEST, TrainedRun, open_trained

Picture = str | PathLike[str] | Image.Image | NDArray[np.uint8]
_BATCH = 64


@dataclass(frozen=True)
class Predicted:
    """What the model says of one picture."""

    name: str  # of the class with the highest probability
    label: int  # its number, the position in `classes`
    probability: float
    probabilities: NDArray[np.float32]  # of all classes, in their order


@dataclass(frozen=True)
class Classified:
    """One picture of a stream: probabilities, or the reason why it could not be read."""

    name: str
    probabilities: NDArray[np.float32] | None
    error: str | None = None


class TrainedModel:
    """A classifier with its classes and its view. Made by `flatout.load`."""

    def __init__(self, trained: TrainedRun) -> None:
        self._outputs = trained.outputs
        self.classes = trained.classes
        self.view = trained.view
        self.checkpoint = trained.weights.path
        self._trained = trained
        self._learner = trained.learner

    @property
    def module(self) -> torch.nn.Module:
        """The torch module; takes normalised float images [batch, 3, height, width] and returns logits."""
        return self._learner.model

    def predict(self, images: Picture | Tensor | Iterable[Picture]) -> list[Predicted]:
        """One prediction for each picture, in their order.

        Pictures are paths, PIL images or uint8 arrays [height, width, 3] (several: [pictures, height, width, 3]); they
        are cropped and resized as validation does. A uint8 tensor [pictures, 3, height, width] holds pixels that a
        flatout loader prepared: it is not cropped again. A picture that cannot be decoded raises a DataError.
        """
        if isinstance(images, Tensor):
            chances = [self._of_pixels(part) for part in torch.split(_checked_pixels(images), _BATCH)]
        else:
            chances = [self._of_pixels(part) for part in self._prepared(_as_list(images))]
        return [self._named(row) for part in chances for row in part]

    def stream(self, split: Split, workers: int | str = "auto") -> Iterator[Classified]:
        """Pictures of a split in their order, prepared ahead by the loader's workers."""
        config = DataConfig(path=".", workers=workers, max_quarantine_share=1.0, cache="off", stage="off")
        kind = self._learner.device.kind
        plan = BatchPlan(split, self.view, 0, min(len(split), self._batch_size), shuffle=False)
        chosen = choose_workers(workers, kind, plan)
        with closing(open_loader(plan, config, chosen, look_ahead=False, device_kind=kind, epochs=1)) as loader:
            for batch in loader.epoch(0):
                rows = iter(self._of_pixels(batch.images) if len(batch.sample_ids) else ())
                failed = {each.sample_id: each for each in batch.failures}
                for sample in sorted([*batch.sample_ids.tolist(), *failed]):
                    if sample in failed:
                        yield Classified(split.name(sample), None, failed[sample].reason)
                    else:
                        yield Classified(split.name(sample), next(rows))

    @property
    def _batch_size(self) -> int:
        config = self._trained.config
        return config.validate_.batch_size or config.data.batch_size

    def _prepared(self, pictures: Sequence[str | Pixels]) -> Iterator[Tensor]:
        """Files and arrays apart: only of a file can a view decode less than all (decode: scaled)."""
        if not pictures:
            picture_split(pictures)  # says so
        for are_files, group in groupby(pictures, lambda each: isinstance(each, str)):
            view = self.view if are_files else replace(self.view, decode="exact")
            plan = with_raw_shape(BatchPlan(picture_split(list(group)), view, 0, _BATCH, shuffle=False))
            for index in range(plan.batches_per_epoch):
                prepared = prepare(plan, 0, index, np.empty(plan.shape(0), np.uint8))
                for each in prepared.failures:
                    raise DataError(f"{each.name} cannot be used: {each.reason}")
                yield torch.from_numpy(prepared.images)

    def _of_pixels(self, pixels: Tensor) -> NDArray[np.float32]:
        """Probabilities, [pictures, classes], with the arithmetic of the run's validation."""
        learner = self._learner
        on_device = pixels.to(learner.device.torch, non_blocking=True)
        images = normalize(on_device, self.view, channels_last=self._trained.config.train.channels_last)
        with learner.evaluating(), learner.precision.autocast():
            chances: NDArray[np.float32] = self._outputs.probabilities(learner.compute(images).float()).cpu().numpy()
        return chances

    def _named(self, row: NDArray[np.float32]) -> Predicted:
        label = int(row.argmax())
        return Predicted(self.classes[label], label, float(row[label]), row)


def load(run: str | Path | Run, checkpoint: str | Path = BEST, device: str | None = None) -> TrainedModel:
    """The classifier of a run, with the weights of its best checkpoint, of the `last` one, or of a file.

    Raises a RunDirectoryError where there is no run or no checkpoint, a ConfigError where it is no classifier.
    """
    folder = run.directory if isinstance(run, Run) else Path(run)
    trained = open_trained(folder, str(checkpoint), device=device)
    if not trained.config.spec.has_images:
        raise ConfigError(f"{folder} was trained for {trained.config.task}; flatout translate uses it")
    if not trained.classes:
        raise RunDirectoryError(f"{folder} does not name its classes, so its outputs have no names")
    return TrainedModel(trained)


def _checked_pixels(pixels: Tensor) -> Tensor:
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3:
        raise DataError(
            f"the tensor is {str(pixels.dtype).removeprefix('torch.')} {tuple(pixels.shape)}; "
            "it must be uint8 [pictures, 3, height, width]"
        )
    return pixels


def _as_list(images: Picture | Iterable[Picture]) -> list[str | Pixels]:
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | PathLike | Image.Image):
        return [_as_picture(images)]
    return [_as_picture(each) for each in images]


def _as_picture(image: Picture) -> str | Pixels:
    if isinstance(image, str | PathLike):
        return fspath(image)
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    if not isinstance(image, np.ndarray):
        raise DataError(f"a picture is a {type(image).__name__}; it must be a path, a PIL image or a uint8 array")
    return image
