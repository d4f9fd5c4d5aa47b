"""From the measurements of a run to its Markdown page. Pure: values in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from shipped_report import DEMANDS_HEADER, SHIPPED_HEADER, demands, shipped_rows

TITLES = {
    "rrc224": "500x375 photos, random resized crop to 224 + flip",
    "tiny64": "64x64 Tiny-ImageNet, flip + crop of the image padded by 4",
    "large224": "4000x3000 photos, random resized crop to 224 + flip",
}


@dataclass(frozen=True)
class Row:
    """One loader on one task with one output, over all rounds that worked."""

    peer: str
    kind: str
    rates: tuple[float, ...]
    opening_rates: tuple[float, ...]
    first_batch_ms: float
    cpu_ms_per_image: float
    peak_bytes: int
    unreclaimable_bytes: int
    foreign_cpu_share: float

    @property
    def rate(self) -> float:
        return median(self.rates)


def rows_of(results: Sequence[dict[str, Any]], task: str, output: str) -> list[Row]:
    """Fastest first."""
    chosen = [
        result for result in results if (result["mode"], result["task"], result["output"]) == ("window", task, output)
    ]
    rows = []
    for peer in sorted({result["peer"] for result in chosen}):
        own = [result for result in chosen if result["peer"] == peer]
        rows.append(
            Row(
                peer,
                own[0]["kind"],
                tuple(result["images_per_second"] for result in own),
                tuple(result["opening_per_second"] for result in own),
                median(result["opening_first_batch_ms"] for result in own),
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


def rates_table(rows: Sequence[Row], max_foreign: float) -> str:
    plain = next((row.rate for row in rows if row.peer == "plain"), None)
    best_jpeg = max((row.rate for row in rows if row.kind == "jpeg"), default=None)
    lines = [
        [
            f"**{row.peer}**" if row.kind.startswith("flatout") else row.peer,
            row.kind.removeprefix("flatout "),
            f"{median(row.opening_rates):,.0f} ({min(row.opening_rates):,.0f} to {max(row.opening_rates):,.0f})",
            f"{row.first_batch_ms:,.0f}",
            f"{row.rate:,.0f}",
            f"{min(row.rates):,.0f}-{max(row.rates):,.0f} ({len(row.rates)})",
            ratio(row.rate, plain),
            ratio(row.rate, best_jpeg),
            f"{row.cpu_ms_per_image:.3g}",
            f"{row.peak_bytes / 1e9:.2f}",
            f"{row.unreclaimable_bytes / 1e9:.2f}",
            f"{row.foreign_cpu_share:.0%}" + (" (!)" if row.foreign_cpu_share > max_foreign else ""),
        ]
        for row in rows
    ]
    header = ["loader", "reads", "epoch 0 from opening, samples/s", "first batch, ms", "warm, samples/s"]
    header += ["min-max (turns)", "warm, x plain", "warm, x best JPEG peer", "warm, CPU ms/image"]
    return markdown_table([*header, "peak memory GB", "of it not mapped files", "CPU taken by others, worst"], lines)


def storage_table(results: Sequence[dict[str, Any]]) -> str:
    seen = {(result["peer"], result["task"]): result for result in results}
    lines = [
        [peer, task, f"{seen[peer, task]['bytes_per_image']:,}", f"{seen[peer, task]['convert_seconds']:.0f}"]
        for peer, task in sorted(seen)
        if seen[peer, task]["convert_seconds"] and seen[peer, task]["mode"] == "window"
    ]
    return markdown_table(["loader", "task", "bytes per image", "conversion seconds (whole set)"], lines)


def versions_table(results: Sequence[dict[str, Any]]) -> str:
    seen = {result["peer"]: [result["peer"], result["version"], result["layout"]] for result in results}
    return markdown_table(["loader", "versions", "layout of a batch"], [seen[peer] for peer in sorted(seen)])


def failures_list(failures: Sequence[dict[str, Any]]) -> str:
    seen = {(each["peer"], each["task"], each["output"]): each["reason"] for each in failures}
    return "\n".join(f"- {peer}, {task} {output}: {reason}" for (peer, task, output), reason in sorted(seen.items()))


def introduction(run: dict[str, Any]) -> list[str]:
    few = ", ".join(f"{samples:,} of {TITLES[task].split(',')[0]}" for task, samples in run["few_samples"].items())
    repeated = sum(bool(result.get("repeated")) for result in run["results"])
    return [
        f"# Image loaders, {run['date']}",
        f"`{run['command']}`, flatout at {run['commit']}, {run['minutes']:.0f} minutes.",
        f"{run['machine']}. {run['rounds']} interleaved rounds in shuffled order, a fresh process for every turn, batches "
        f"of {run['batch']}, files in the page cache. Figures are medians over the rounds (least to most).",
        "**As shipped** is three epochs from the call that opens the loader, imports apart: nothing set but the batch size, "
        "or what the loader's own documentation sets (cited in `benchmarks/loaders/peers/`). flatout reads the whole "
        f"dataset; the peers, most of which are slow, {few}, so their total compares as samples/s.",
        f"**At their best** is with {run['workers']} workers or threads and whatever else suits the loader: the samples of a "
        "whole epoch, counted from the call that opens it (imports apart; listing, starting workers and a first compilation "
        f"are in it), then {run['seconds']:g} s of the warm loader. flatout and the peers that verdicts rest on have a turn "
        f"in every round, the others one in all. 12-megapixel photos: {run['large']['photos']} of them, batches of "
        f"{run['large']['batch']}.",
        "Memory at their best is the proportional set size of the process tree (which counts mapped data files), read "
        f"before and after the window. A turn in which other processes took over {run['max_foreign']:.0%} of the "
        f"cores is repeated once and the quieter one counts ({repeated} were); (!) marks rows where that did not help: "
        "there, CPU time compares better. `gather` copies ready-made images: a ceiling, not a peer.",
    ]


def markdown(run: dict[str, Any]) -> str:
    results, max_foreign = run["results"], run["max_foreign"]
    parts = introduction(run)
    for task, title in TITLES.items():
        if rows := shipped_rows(results, task, max_foreign):
            parts += [f"## As shipped: {title}, uint8", markdown_table(SHIPPED_HEADER, rows)]
    for task, title in TITLES.items():
        for output in ("float32", "uint8"):
            rows = rows_of(results, task, output)
            if rows:
                parts += [f"## At their best: {title}, {output}", rates_table(rows, max_foreign)]
    parts += ["## What issue 17 asks", markdown_table(DEMANDS_HEADER, [each.cells for each in demands(results)])]
    parts += ["## Storage", storage_table(results), "## Versions", versions_table(results)]
    parts += ["## Failed", failures_list(run["failures"]) or "None."]
    return "\n\n".join(parts) + "\n"
