"""Holding a verdict against the truth, and the table of all of them: pure, so that kept runs can be judged again."""

import json
import statistics
import time
from pathlib import Path
from typing import Any

from causes import Cause

from dated_results import current_commit, describe_machine

WORTH = 1.05  # times as fast without a cause: less is no cause
AS_STRONG = 0.8  # of the seconds of the strongest: which of two is named does not matter
PROMISED = 1.10  # a gain that may not be promised for what is not there
NOISE = 1.10  # a run with a fix may take so much longer by chance
BUSY_CORES = 0.3  # of other work on this machine: what is measured beside it is marked


def judged(row: dict[str, Any], causes: list[Cause]) -> dict[str, Any]:
    """`truth` are the causes that count as right: the strongest, and what is nearly as strong. None that is worth a word
    is a clean bill, or its name."""
    by_name = {cause.name: cause for cause in causes}
    saved = {name: row["seconds"] - seconds for name, seconds in row["without"].items()}
    strong = {name: each for name, each in saved.items() if row["seconds"] >= WORTH * row["without"][name]}
    deciding = [cause.name for cause in causes if cause.decides]
    truth = deciding or [name for name in strong if strong[name] >= AS_STRONG * max(strong.values())]
    said = _without_ambient(row, causes)
    named = [name for name in truth if _names(by_name[name], said)]
    right = bool(named) if truth else said["healthy"] or any(_names(cause, said) for cause in causes)
    there = {word for cause in causes for word in cause.words}
    false = [
        finding["id"]
        for finding in said["findings"]
        if finding["cause"]
        and finding["cause"] not in there
        and (finding["gain"] or {"factor": 1.0})["factor"] > PROMISED
    ]
    return {"truth": truth, "saved_seconds": saved, "right": right, "false_causes": false}


def _without_ambient(row: dict[str, Any], causes: list[Cause]) -> dict[str, Any]:
    """On a machine that others used meanwhile they are a cause that nobody injected, and a verdict that names them is
    right: what is judged is the verdict on the rest."""
    if not row["busy"] or any("neighbour" in cause.name for cause in causes):
        return row
    rest = [each for each in row["findings"] if each["id"] != "busy-host" or "quota" in each["title"]]
    leading = next(
        (f for f in rest if f["cause"] and (f["gain"] is None or f["saved_seconds"] >= 0.05 * row["seconds"])), None
    )
    if leading is None:
        return {**row, "findings": rest, "cause": "compute", "healthy": True, "verdict": ""}
    told = {"cause": leading["cause"], "verdict": f"{leading['title']}; {leading['fix']['text']}"}
    return {**row, "findings": rest, "healthy": False, **told}


def _names(cause: Cause, row: dict[str, Any]) -> bool:
    return row["cause"] in cause.words and cause.says.lower() in row["verdict"].lower()


def fix_row(
    name: str, changes: dict[str, Any], gain: dict[str, float] | None, before: float, after: float
) -> dict[str, Any]:
    """What a fix promised, if it did, and what it did."""
    achieved = before / after if after else 0.0
    return {"finding": name, "changes": changes, "promised": gain, "achieved": achieved,
            "inside": gain is None or gain["low"] <= achieved <= gain["high"], "slower": achieved < 1 / NOISE}  # fmt: skip


def report(rows: list[dict[str, Any]], out: Path, command: str, asked: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{time.strftime('%Y-%m-%d')}-verdicts-generated"
    stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    quiet = [row for row in rows if not row["busy"]]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    lines = [f"# Verdicts on generated scenarios, {time.strftime('%Y-%m-%d')}", "",
             f"`{command}`: {len(rows)} of the {asked} seeds asked for; judged by flatout at {current_commit()}, run at {commits}.", "",
             f"{describe_machine()}. {len(rows) - len(quiet)} of {len(rows)} ran beside other work that took more than {BUSY_CORES} cores: "
             "they are in the second line only, and judged by what explain says besides that other work.", ""]  # fmt: skip
    for title, some in (("on a quiet machine", quiet), ("all", rows)):
        lines += [f"- {title}: {_figures(some)}" if some else f"- {title}: none"]
    lines += ["", "| seed | job | injected | truth | named | | seconds | without | promised and achieved | verdict |", "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    lines += [_line(row) for row in sorted(rows, key=lambda row: row["seed"])]
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[6:9]), f"\nwritten: {stem}.md", flush=True)


def _line(row: dict[str, Any]) -> str:
    mark = ("right" if row["right"] else "**wrong**") + (" (busy)" if row["busy"] else "")
    mark += f"; not there: {', '.join(row['false_causes'])}" if row["false_causes"] else ""
    without = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["without"].items())
    fixed = ", ".join(f"{each['finding']} {_promise(each)}: {each['achieved']:.2f}" for each in row["fixes"])
    injected = "; ".join(f"{n} ({s})" for n, s in zip(row["causes"], row["strengths"], strict=True))
    injected = injected or f"nothing ({row['variation']})"
    return (
        f"| {row['seed']} | {row['job']} | {injected} | {', '.join(row['truth']) or '-'} "
        f"| {row['cause']} | {mark} | {row['seconds']:.1f} | {without} | {fixed} | {row['verdict']} |"
    )


def _promise(fix: dict[str, Any]) -> str:
    gain = fix["promised"]
    return f"{gain['factor']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})" if gain else "together"


def _figures(rows: list[dict[str, Any]]) -> str:
    healthy = [row for row in rows if not row["causes"]]
    fixes = [each for row in rows for each in row["fixes"]]
    promises = [each for each in fixes if each["promised"]]
    told = [
        f"{sum(row['right'] for row in rows)} of {len(rows)} verdicts are right",
        f"{sum(row['healthy'] for row in healthy)} of {len(healthy)} healthy runs get a clean bill",
        f"{sum(bool(row['false_causes']) for row in rows)} promise more than {100 * (PROMISED - 1):.0f} % for a cause that is not there",
        f"{sum(each['inside'] for each in promises)} of {len(promises)} promised gains are inside their interval",
        f"{sum(each['slower'] for each in fixes)} of {len(fixes)} fixes made the run slower by more than {100 * (NOISE - 1):.0f} %",
    ]
    if promises:
        ratio = statistics.median(each["achieved"] / each["promised"]["factor"] for each in promises)
        told.append(f"median of achieved over promised {ratio:.2f}")
    return "; ".join(told) + "."
