"""Trace the models of a table of measurements into traces.json.gz: what fitting and scoring read.

Most of them are timm's, which is not a dependency: run this in an environment of its own that has torch and timm,
with PYTHONPATH=src. Traces that are there already are kept.

  PYTHONPATH=src TIMM_VENV/bin/python benchmarks/planning/trace_models.py --rows ../shared/data/gpu/throughput.csv
"""

import argparse
import csv
import gzip
import json
import time
from pathlib import Path
from typing import Any

import zoo

from flatout.planning.tracing import CannotTrace, trace
from flatout.planning.work import TracedWork

STORE = Path(__file__).with_name("traces.json.gz")
PRECISIONS = {"fp32": "fp32", "tf32": "fp32", "amp": "fp16", "fp16": "half"}


def trace_key(row: dict[str, str]) -> str:
    return "|".join([row["model"], row["pixels"] or "0", row["tokens"] or "0", PRECISIONS[row["precision"]]])


def load_traces(path: Path = STORE) -> dict[str, TracedWork]:
    return {key: TracedWork.from_dict(values) for key, values in _stored(path).items() if "kernels" in values}


def _stored(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}


def save(path: Path, stored: dict[str, Any]) -> None:
    """The same bytes for the same traces: no time of writing in the archive."""
    path.write_bytes(gzip.compress(json.dumps(dict(sorted(stored.items())), separators=(",", ":")).encode(), mtime=0))


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def trace_all(keys: list[str], stored: dict[str, Any], out: Path) -> None:
    for number, key in enumerate(keys):
        model, pixels, tokens, precision = key.split("|")
        began = time.monotonic()
        try:
            work = trace(zoo.step_for(model, int(pixels), int(tokens), precision), (32, 256))
            stored[key] = rounded(work.to_dict())
            said = f"{work.flops(256) / 256 / 1e9:.1f} GFLOP a sample, {len(work.kernels)} shapes"
        except CannotTrace as error:
            stored[key] = {"cannot": str(error)}
            said = f"cannot be traced: {error}"
        print(f"{number + 1}/{len(keys)} {key}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
        if number % 20 == 19:
            save(out, stored)
    save(out, stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="tables with the columns of throughput.csv")
    parser.add_argument("--timm", nargs="*", default=[], metavar="PATTERN", help="further timm models, at 16-bit AMP")
    parser.add_argument("--out", type=Path, default=STORE)
    parser.add_argument("--again", nargs="*", metavar="MODEL", help="trace these once more, or all where none is named")
    arguments = parser.parse_args()
    keys = [trace_key(row) for path in arguments.rows for row in csv.DictReader(path.open())]
    keys += timm_keys(arguments.timm)
    again = arguments.again
    stored = {
        key: each
        for key, each in _stored(arguments.out).items()
        if "kernels" in each and not (again == [] or (again and key.partition("|")[0] in again))
    }
    trace_all([key for key in dict.fromkeys(keys) if key not in stored], stored, arguments.out)


def timm_keys(patterns: list[str]) -> list[str]:
    """At the side their weights were trained for."""
    if not patterns:
        return []
    import timm

    found = [name for pattern in patterns for name in timm.list_models(pattern)]
    sizes = {name: timm.get_pretrained_cfg(name, allow_unregistered=True) for name in found}
    return [f"{name}|{(cfg.input_size if cfg else (3, 224, 224))[-1]}|0|fp16" for name, cfg in sizes.items()]


if __name__ == "__main__":
    main()
