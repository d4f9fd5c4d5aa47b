"""The published measurements as the fit and the scores need them."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import zoo
from trace_models import trace_key

from flatout.planning.cards import Card, load_cards
from flatout.planning.speed import Columns, columns_of
from flatout.planning.work import Line, TracedWork

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gpu"
_SUITES = {"lambdal": "lambda", "huggingface": "timm", "ml-energy": "zeus", "NVIDIA": "nvidia", "ryujaehun": "batch12"}


@dataclass(frozen=True)
class Row:
    """One card's measured speed of one model."""

    card: Card
    model: str
    precision: str
    channels_last: bool | None
    batch: float
    samples_per_second: float
    suite: str
    note: str
    columns: Columns

    @property
    def group(self) -> str:
        """AMP and fp32 apart: 16-bit arithmetic, or 32."""
        return "amp" if self.precision in ("amp", "fp16") else "fp32"

    @property
    def arithmetic(self) -> str:
        return "amp" if self.precision in ("amp", "fp16") else self.precision

    @property
    def era(self) -> str:
        """The software, as far as the card narrows it down: no container before CUDA 11 runs on Ampere or later."""
        before = self.card.architecture in ("Pascal", "Volta", "Turing")
        return f"{self.suite}, CUDA 10" if before and "ngc20.01" in self.suite else self.suite

    @property
    def step_seconds(self) -> float:
        return self.batch / self.samples_per_second


def read_rows(path: Path, traces: dict[str, TracedWork], gpus: str = "1") -> tuple[list[Row], list[str]]:
    """One-card rows, and what was left out and why. Samples are the traced model's: sequences, not tokens."""
    rows, left_out = [], []
    cards = load_cards()
    for values in csv.DictReader(path.open(encoding="utf-8")):
        if values["gpus"] != gpus:
            continue
        work, named = traces.get(trace_key(values)), f"{values['gpu']} {trace_key(values)}"
        if work is None:
            left_out.append(f"{named}: no trace")
        elif not values["batch_per_gpu"]:
            left_out.append(f"{named}: batch not stated")
        else:
            rows.append(_row(values, work, cards[values["gpu"]]))
    return rows, left_out


def _row(values: dict[str, str], work: TracedWork, card: Card) -> Row:
    model, batch = values["model"], float(values["batch_per_gpu"])
    each = zoo.samples_per_row(model, int(values["tokens"] or 0))
    if model == "transformer_big":  # its batch is in tokens too
        batch /= each
    layout = {"nhwc": True, "nchw": False, "unknown": False}.get(values["layout"])
    suite = next((name for start, name in _SUITES.items() if values["source"].startswith(start)), "seed")
    software = values["software"].split(" ")[0] if suite in ("lambda", "batch12") else ""
    if suite == "batch12" or "gradient accumulation" in values["note"]:  # no optimizer, or one step for many parts
        work = replace(work, kernels=tuple(kernels for kernels in work.kernels if kernels.kind != "optimizer"))
    elif suite in ("timm", "zeus", "lambda") and model not in zoo.TEXT:
        work = unfused(work)
    columns = columns_of(work, batch, card, values["precision"], layout, old_host=suite in ("batch12", "zeus"))
    speed = float(values["samples_per_second"]) / each
    suite = f"{suite} {software}".strip()
    return Row(card, model, values["precision"], layout, batch, speed, suite, values["note"], columns)


def unfused(work: TracedWork) -> TracedWork:
    """The optimizer as torch ran it before 2023: four kernels for each tensor of weights, and twice the traffic."""
    products, norms = ("conv", "grouped", "odd_grouped", "depthwise", "matmul"), ("norm",)
    forward = [each for each in work.kernels if each.phase == "forward"]
    tensors = sum(each.count for each in forward if each.kind in products)
    tensors += 2 * sum(each.count for each in forward if each.kind in norms)
    kernels = []
    for each in work.kernels:
        if each.kind == "optimizer":
            moved = Line(2 * each.bytes.fixed / (4 * tensors), 0.0)
            each = replace(each, count=4 * tensors, bytes=moved)
        kernels.append(each)
    return replace(work, kernels=tuple(kernels))
