"""Counts what would make the host wait for a GPU, on a machine that has none.

The tensors that a run would keep on its device are named (weights, buffers, inputs), and whatever is computed from them
is on the device too. All of them are plain CPU tensors here. Reading one is a wait on CUDA, so it is counted; reading
what the host has for itself, such as an optimizer's count of steps, is not.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

# operators whose result, or the size of it, the host waits for
READING = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique_dim", "_unique",
    "_unique2", "unique_consecutive", "bincount", "argwhere", "nonzero_numpy",
}  # fmt: skip
# methods that a CPU tensor answers without any operator
TO_HOST = {"tolist", "numpy", "__array__", "cpu"}


class HostReads(TorchDispatchMode):
    """`reads` has a line for each wait: the operator, and our code that asked. `doubles` has what Apple's GPUs lack."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.doubles: list[str] = []
        self._storages: dict[int, StorageWeakRef] = {}
        self._python = _PythonCalls(self)

    def __enter__(self) -> "HostReads":
        super().__enter__()
        self._python.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._python.__exit__(*error)
        super().__exit__(*error)

    def place(self, values: Iterable[Any]) -> None:
        """These tensors, or what holds them, are on the device from now on."""
        for value in values:
            for each in tree_leaves(vars(value) if hasattr(value, "__dataclass_fields__") else value):
                if isinstance(each, Tensor):
                    each = getattr(each, "_local_tensor", each)  # of a sharded one, this rank's part
                    reference = StorageWeakRef(each.untyped_storage())
                    self._storages[reference.cdata] = reference

    def on_device(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        known = self._storages.get(value.untyped_storage()._cdata)
        return known is not None and not known.expired()

    def note(self, what: str) -> None:
        ours = [call for call in traceback.extract_stack() if "/flatout/" in call.filename]
        self.reads.append(f"{what} in {ours[-1].filename}:{ours[-1].lineno}" if ours else what)

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # sharded tensors work on their parts, and that is seen here
        given = [each for each in tree_leaves((arguments, options)) if self.on_device(each)]
        if given and _reads(operator, arguments):
            self.note(operator.__name__)
        result = operator(*arguments, **options)
        if given:
            made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
            if any(each.dtype == torch.float64 for each in made):
                self.doubles.append(operator.__name__)
            self.place([*made, *_written(operator, arguments)])
        return result


class _PythonCalls(TorchFunctionMode):
    def __init__(self, counted: HostReads) -> None:
        super().__init__()
        self._counted = counted

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        name, options = getattr(function, "__name__", ""), options or {}
        leaves = name in TO_HOST or (name == "to" and "cpu" in (*arguments[1:2], options.get("device")))
        if not (leaves and self._counted.on_device(arguments[0])):
            return function(*arguments, **options)
        self._counted.note(name)
        with _disable_current_modes():  # else the copy would count as computed on the device
            copy = arguments[0].detach().clone()
        return copy if name in ("cpu", "to") else function(copy, *arguments[1:], **options)


def _written(operator: Any, arguments: Any) -> list[Any]:
    """What an operator changes in place: not always among its results."""
    described = zip(operator._schema.arguments, arguments, strict=False)
    return [value for argument, value in described if argument.alias_info is not None and argument.alias_info.is_write]


def _reads(operator: Any, arguments: Any) -> bool:
    name = operator.__name__.split(".")[0]
    if name in ("index", "index_put", "index_put_"):  # by a mask: how many it picks decides the result's size
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in arguments[1])
    if name == "repeat_interleave":
        return operator.__name__ == "repeat_interleave.Tensor"
    return name in READING


@contextmanager
def counted(*device_tensors: Iterable[Tensor]) -> Iterator[HostReads]:
    with HostReads() as reads:
        for each in device_tensors:
            reads.place(each)
        yield reads
