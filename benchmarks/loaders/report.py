"""From the measurements of a run to its Markdown page. Pure: values in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

TITLES = {
    "rrc224": "500x375 photos, random resized crop to 224 + flip",
    "tiny64": "64x64 Tiny-ImageNet, flip + crop of the image padded by 4",
}
NOISY_SHARE = 0.1  # of the machine's cores, used by others during a window


@dataclass(frozen=True)
class Row:
    """One loader on one task with one output, over all rounds that worked."""

    peer: str
    kind: str
    rates: tuple[float, ...]
    cpu_ms_per_image: float
    peak_bytes: int
    unreclaimable_bytes: int
    foreign_cpu_share: float

    @property
    def rate(self) -> float:
        return median(self.rates)


def rows_of(results: Sequence[dict[str, Any]], task: str, output: str) -> list[Row]:
    """Fastest first."""
    chosen = [result for result in results if (result["task"], result["output"]) == (task, output)]
    rows = []
    for peer in sorted({result["peer"] for result in chosen}):
        own = [result for result in chosen if result["peer"] == peer]
        rows.append(
            Row(
                peer,
                own[0]["kind"],
                tuple(result["images_per_second"] for result in own),
                median(result["cpu_ms_per_image"] for result in own),
                max(result["peak_rss_bytes"] for result in own),
                max(result["peak_unreclaimable_bytes"] for result in own),
                max(result["foreign_cpu_share"] for result in own),
            )
        )
    return sorted(rows, key=lambda row: -row.rate)


def ratio(rate: float, base: float | None) -> str:
    return f"{rate / base:.2f}" if base else "n/a"


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *lines])


def rates_table(rows: Sequence[Row]) -> str:
    plain = next((row.rate for row in rows if row.peer == "plain"), None)
    best_jpeg = max((row.rate for row in rows if row.kind == "jpeg"), default=None)
    lines = [
        [
            f"**{row.peer}**" if row.kind.startswith("flatout") else row.peer,
            row.kind.removeprefix("flatout "),
            f"{row.rate:,.0f}",
            f"{min(row.rates):,.0f}-{max(row.rates):,.0f} ({len(row.rates)})",
            ratio(row.rate, plain),
            ratio(row.rate, best_jpeg),
            f"{row.cpu_ms_per_image:.3g}",
            f"{row.peak_bytes / 1e9:.2f}",
            f"{row.unreclaimable_bytes / 1e9:.2f}",
            f"{row.foreign_cpu_share:.0%}" + (" (!)" if row.foreign_cpu_share > NOISY_SHARE else ""),
        ]
        for row in rows
    ]
    header = ["loader", "reads", "images/s, median", "min-max (rounds)", "x plain", "x best JPEG peer", "CPU ms/image"]
    return markdown_table([*header, "peak memory GB", "of it not mapped files", "CPU taken by others, worst"], lines)


def storage_table(results: Sequence[dict[str, Any]]) -> str:
    seen = {(result["peer"], result["task"]): result for result in results}
    lines = [
        [peer, task, f"{seen[peer, task]['bytes_per_image']:,}", f"{seen[peer, task]['convert_seconds']:.0f}"]
        for peer, task in sorted(seen)
        if seen[peer, task]["convert_seconds"]
    ]
    return markdown_table(["loader", "task", "bytes per image", "conversion seconds (whole set)"], lines)


def versions_table(results: Sequence[dict[str, Any]]) -> str:
    seen = {result["peer"]: [result["peer"], result["version"], result["layout"]] for result in results}
    return markdown_table(["loader", "versions", "layout of a batch"], [seen[peer] for peer in sorted(seen)])


def failures_list(failures: Sequence[dict[str, Any]]) -> str:
    seen = {(each["peer"], each["task"], each["output"]): each["reason"] for each in failures}
    return "\n".join(f"- {peer}, {task} {output}: {reason}" for (peer, task, output), reason in sorted(seen.items()))


def markdown(run: dict[str, Any]) -> str:
    results = run["results"]
    parts = [
        f"# Image loaders, {run['date']}",
        f"`{run['command']}`, flatout at {run['commit']}.",
        f"{run['machine']}. {run['rounds']} interleaved rounds in shuffled order, {run['seconds']:g} s each after a "
        f"warm-up, batches of {run['batch']}, {run['workers']} workers or threads, files in the page cache.",
        "Memory is the proportional set size of the process tree (which counts mapped data files), sampled in the "
        f"warm-up and after the window. (!) marks a row where other processes took over {NOISY_SHARE:.0%} of the cores "
        "in at least one round: there, CPU ms/image compares better than images/s. `gather` copies ready-made images "
        "and neither decodes nor augments: a ceiling, not a peer.",
    ]
    for task, title in TITLES.items():
        for output in ("float32", "uint8"):
            rows = rows_of(results, task, output)
            if rows:
                parts += [f"## {title}, {output}", rates_table(rows)]
    parts += ["## Storage", storage_table(results), "## Versions", versions_table(results)]
    parts += ["## Failed", failures_list(run["failures"]) or "None."]
    return "\n\n".join(parts) + "\n"
