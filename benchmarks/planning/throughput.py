"""Fit the speed model, ship its coefficients, and score it on cards it has not seen.

.venv/bin/python benchmarks/planning/throughput.py fit                     writes src/flatout/planning/coefficients.json
.venv/bin/python benchmarks/planning/throughput.py score [--out FILE.md]   leave-one-card-out
… --rows FILE [FILE]    tables with the columns of throughput.csv, held-back rows too; traces come from trace_models.py
… score --shipped       no fit: the shipped coefficients as `flatout plan` uses them, on the given rows
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from contradictions import doubts, trusted
from fitting import Fit, fit, leave_one_card_out, left_out
from ranking import ranking
from rows import SHARED, Row, read_rows
from trace_models import load_traces
from zoo import TEXT

from flatout.planning.estimate import Basis, load_coefficients
from flatout.planning.speed import NAMES

SHIPPED = Path(__file__).resolve().parents[2] / "src" / "flatout" / "planning" / "coefficients.json"
COVERED = 0.9
"""The share of measurements that an interval is made for."""
CHOSEN_LOOKING = 1.2
"""What is shipped is this much wider: the classes of kernels were chosen while looking at these errors."""
Scored = list[tuple[Row, float]]


def errors(scored: Scored) -> np.ndarray:
    """Absolute relative error of samples per second."""
    return np.array([abs(row.step_seconds / seconds - 1) for row, seconds in scored])


def log_errors(scored: Scored) -> np.ndarray:
    return np.array([abs(np.log(seconds / row.step_seconds)) for row, seconds in scored])


def kept_generation(rows: Sequence[Row], row: Row) -> bool:
    return any(o.card.architecture == row.card.architecture and o.card.name != row.card.name for o in rows)


def spread(scored: Scored) -> float:
    return float(np.quantile(log_errors(scored), COVERED))


def of_today(scored: Scored) -> Scored:
    """Without the suites whose hosts of 2019 set the pace: no interval of a plan is about them."""
    return [each for each in scored if not each[0].suite.startswith(("batch12", "zeus"))]


def ship(rows: Sequence[Row], dated: str) -> None:
    """Offsets of suites and of text models stay here: what is shipped speaks of an average of the suites since 2022."""
    fitted = fit(rows)
    recent = [
        fitted.offsets.get(f"suite:{name}", 0.0)
        for name in ("lambda ngc22.09-22.10:amp", "timm:amp", "lambda ngc22.09-22.10:tf32")
    ]
    kept = {
        key: value for key, value in fitted.offsets.items() if not key.startswith(("suite:", "era:")) and "@" not in key
    }
    values = {
        "dated": dated,
        "source": "benchmarks/planning/throughput.py over published training speeds; see benchmarks/results",
        "rows": len(trusted(rows)),
        "coefficients": {name: float(f"{value:.5g}") for name, value in zip(NAMES, fitted.coefficients, strict=True)},
        "software": round(float(np.mean(recent)), 4),
        "offsets": {key: round(float(value), 4) for key, value in kept.items()},
        "spread": shipped_spread(rows, list(zip(rows, fitted.seconds(rows), strict=True))),
    }
    SHIPPED.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")
    print(json.dumps({key: values[key] for key in ("rows", "coefficients", "software", "spread")}, indent=1))


def shipped_spread(rows: Sequence[Row], own: Scored) -> dict[str, float]:
    """By basis, and what a model adds that nobody published a speed of."""
    others = [each for each in leave_one_card_out(rows) if kept_generation(rows, each[0])]
    generations = left_out(rows, lambda row: row.card.architecture)
    images = [row for row in rows if row.model not in TEXT]  # text models are traced from descriptions
    found = {
        Basis.MEASURED: spread(of_today(own)),
        Basis.NEIGHBOURS: spread(of_today(others)),
        Basis.ROOFLINE: spread(of_today(generations)),
    }
    found["unknown model"] = spread(of_today(left_out(images, lambda row: row.model))) - found[Basis.MEASURED]
    return {str(name): round(CHOSEN_LOOKING * value, 3) for name, value in found.items()}


def with_interval(scored: Scored) -> list[tuple[Row, float, float]]:
    """Each with the spread that the other cards' errors give: no interval is made from what it is then tried on."""
    return [
        (
            row,
            seconds,
            spread([each for each in scored if each[0].card.name != row.card.name and each[0].group == row.group]),
        )
        for row, seconds in scored
    ]


def trivial(rows: Sequence[Row], by: str) -> Scored:
    """A public RTX 3090 or A100 row of the same model, precision and layout, scaled by one figure of the card."""
    found = []
    for row in rows:
        like = [
            other for other in rows
            if other.card.name != row.card.name and (other.card.name == "RTX 3090" or other.card.name.startswith("A100"))
            and (other.model, other.group, other.channels_last) == (row.model, row.group, row.channels_last)
        ]  # fmt: skip
        if like:
            best = min(like, key=lambda other: (other.suite != row.suite, other.card.name != "RTX 3090", -other.batch))
            ratio = _figure(row, by) / _figure(best, by)
            found.append((row, row.batch / (best.samples_per_second * ratio)))
    return found


def _figure(row: Row, by: str) -> float:
    return row.card.memory_gb_s if by == "bandwidth" else row.card.fp16_tensor_tflops or row.card.fp32_tflops


def line(name: str, scored: Scored) -> str:
    found = errors(scored)
    return (
        f"| {name} | {len(found)} | {100 * np.median(found):.1f} % | {100 * found.mean():.1f} % |" if len(found) else ""
    )


def report(rows: Sequence[Row], scored: Scored, left_out: Sequence[str], command: str) -> str:
    kept = [each for each in scored if kept_generation(rows, each[0])]
    out = ["# Training speed of cards that the fit has not seen", "", f"`{command}`", ""]
    out += [
        f"{len(rows)} one-card rows of {len({r.card.name for r in rows})} cards, {len({r.model for r in rows})} models. For each card the "
        "coefficients are fitted on all others; a row's error is that of samples per second.", "",
    ]  # fmt: skip
    out += ["| rows | count | median | mean |", "|---|---|---|---|"]
    for group in ("amp", "fp32"):
        out.append(line(f"**{group}, generation remains in the fit**", [e for e in kept if e[0].group == group]))
        out.append(line(f"{group}, all", [e for e in scored if e[0].group == group]))
        modern = of_today([e for e in kept if e[0].group == group])
        out.append(line(f"{group}, generation remains, without suites bound by hosts of 2019", modern))
        for by in ("bandwidth", "TFLOPS"):
            pairs = [e for e in trivial(rows, by) if e[0].group == group and kept_generation(rows, e[0])]
            out.append(line(f"{group}, trivial: by {by}", pairs))
            named = {id(row) for row, _ in pairs}
            out.append(
                line(f"{group}, ours on those rows", [e for e in kept if e[0].group == group and id(e[0]) in named])
            )
    out += ["", "By suite (generation remains):", "", "| suite | count | median | mean |", "|---|---|---|---|"]
    out += [line(suite, [e for e in kept if e[0].suite == suite]) for suite in sorted({r.suite for r in rows})]
    out += ["", "By card:", "", "| card | count | median | mean |", "|---|---|---|---|"]
    out += [line(name, [e for e in scored if e[0].card.name == name]) for name in sorted({r.card.name for r in rows})]
    intervals = with_interval(kept)
    inside = [abs(np.log(seconds / row.step_seconds)) <= wide for row, seconds, wide in intervals]
    out += ["", f"Inside the interval (made for {COVERED:.0%}, from the other cards' errors): "]
    for group in ("amp", "fp32"):
        hits = [hit for hit, (row, _, _) in zip(inside, intervals, strict=True) if row.group == group]
        wide = [each[2] for each in intervals if each[0].group == group]
        out[-1] += (
            f"{group} {100 * np.mean(hits):.0f} % of {len(hits)} at a mean of -{100 * (1 - np.exp(-np.mean(wide))):.0f} % / +{100 * (np.exp(np.mean(wide)) - 1):.0f} %; "
        )
    out += ranking(rows, scored)
    out += [
        "",
        "Furthest off:",
        "",
        "| error | card | model | precision | batch | suite |",
        "|---|---|---|---|---|---|",
    ]
    worst = sorted(scored, key=lambda e: -abs(np.log(e[1] / e[0].step_seconds)))[:20]
    out += [
        f"| {100 * (r.step_seconds / s - 1):+.0f} % | {r.card.name} | {r.model} | {r.precision} | {r.batch:.0f} | {r.suite} |"
        for r, s in worst
    ]
    reasons = defaultdict(int)
    for text in left_out:
        reasons[text.rpartition(": ")[2]] += 1
    out += ["", "Left out: " + (", ".join(f"{count} rows ({why})" for why, count in reasons.items()) or "none") + "."]
    out += ["", "Scored, but in no fit that sees both cards: " + ("; ".join(doubts(rows)) or "none") + "."]
    return "\n".join(out) + "\n"


def shipped_fit() -> Fit:
    told = load_coefficients()
    return Fit(told.vector, dict(told.offsets))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fit", "score"])
    parser.add_argument("--rows", type=Path, nargs="*", default=[SHARED / "throughput.csv"])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--dated", default="2026-11")
    parser.add_argument("--shipped", action="store_true")
    arguments = parser.parse_args()
    traces, rows, left_out = load_traces(), [], []
    for path in arguments.rows:
        found, missing = read_rows(path, traces)
        rows += found
        left_out += missing
    if arguments.what == "fit":
        ship(rows, arguments.dated)
        return
    shipped = arguments.shipped
    scored = list(zip(rows, shipped_fit().seconds(rows), strict=True)) if shipped else leave_one_card_out(rows)
    text = report(
        rows,
        scored,
        left_out,
        "python benchmarks/planning/throughput.py score" + (" --shipped" if shipped else ""),
    )
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
