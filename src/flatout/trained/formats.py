"""A trained classifier as a file for others: what is written, and how that file is run again for the proof."""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flatout.errors import ConfigError, FlatoutError
from flatout.tasks.protocol import NamesOutputs
from flatout.trained.opening import TrainedRun

Model = Callable[[NDArray[Any]], NDArray[np.float32]]  # prepared pictures -> probabilities
FILES = {"onnx": "model.onnx", "torch": "model.pt2", "safetensors": "model.safetensors"}
NORMALISES = {"onnx": True, "torch": True, "safetensors": False}
"""Whether the file takes uint8 pixels and normalises them itself."""


class PixelsToChances(nn.Module):
    """uint8 RGB pixels [pictures, 3, height, width] to probabilities: normalise, compute, name."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, outputs: NamesOutputs, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.model = model
        self._outputs = outputs
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self._outputs.probabilities(self.model((pixels.float() / 255 - self.mean) / self.std))


def validated_model(trained: TrainedRun) -> nn.Module:
    """A copy with the weights that training validated, on the CPU and without gradients."""
    learner = trained.learner
    if learner.ema is None:
        model = copy.deepcopy(learner.model)
    else:
        with learner.ema.applied(learner.model):
            model = copy.deepcopy(learner.model)
    return model.cpu().eval().requires_grad_(False)


def write_model(trained: TrainedRun, to: str, folder: Path, shape: tuple[int, int]) -> Path:
    """The file of a format, in `folder`, for pictures of `shape` (height, width). What torch cannot do is one line."""
    path, model = folder / FILES[to], validated_model(trained)
    if to == "safetensors":
        write_weights(path, model, {"classes": json.dumps(trained.classes)})
        return path
    whole = PixelsToChances(model, trained.outputs, trained.view.mean, trained.view.std).eval()
    example = torch.zeros(2, 3, *shape, dtype=torch.uint8)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), _no_log():
            warnings.simplefilter("ignore")  # of torch's own future; what matters is proven
            (_write_onnx if to == "onnx" else _write_program)(whole, example, path)
    except FlatoutError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"{trained.config.model.name} cannot be exported to {to}: {type(error).__name__}: {first}; "
            "use --to safetensors"
        ) from error
    if to == "onnx":
        _describe_onnx(path, {"classes": json.dumps(trained.classes)})
    return path


@contextmanager
def _no_log() -> Iterator[None]:
    """torch's exporter warns of packages that nobody here needs."""
    kept = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(kept)


def write_weights(path: Path, model: nn.Module, metadata: Mapping[str, str]) -> None:
    """Plain names, as load_state_dict takes them."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    save_file(state, path, {"format": "pt", **metadata})


def require_packages(to: str) -> None:
    """Before anything is computed."""
    if to == "onnx":
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise ConfigError(f"--to onnx needs {error.name}; run: pip install 'flatout[export]'") from None


def _write_onnx(whole: nn.Module, example: Tensor, path: Path) -> None:
    torch.onnx.export(
        whole,
        (example,),
        path,
        dynamo=True,
        verbose=False,
        external_data=False,
        input_names=["pixels"],
        output_names=["probabilities"],
        dynamic_shapes={"pixels": {0: torch.export.Dim("pictures")}},
    )


def _describe_onnx(path: Path, values: Mapping[str, str]) -> None:
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, dict(values))
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _write_program(whole: nn.Module, example: Tensor, path: Path) -> None:
    program = torch.export.export(whole, (example,), dynamic_shapes={"pixels": {0: torch.export.Dim("pictures")}})
    torch.export.save(program, path)


def reload_model(path: Path, to: str, trained: TrainedRun) -> Model:
    """The file as somebody else would run it, and nothing of the model in memory."""
    if to == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda pixels: np.asarray(session.run(None, {"pixels": pixels})[0])
    if to == "torch":
        run: Callable[[Tensor], Tensor] = torch.export.load(path).module()
    else:
        fresh = _from_weights(path, trained)
        run = lambda images: trained.outputs.probabilities(fresh(images))  # noqa: E731

    def chances(pixels: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return run(torch.from_numpy(pixels)).numpy()

    return chances


def _from_weights(path: Path, trained: TrainedRun) -> nn.Module:
    from safetensors.torch import load_file

    model = trained.task.build_model()
    model.load_state_dict(load_file(path))
    return model.eval()
