"""The tables of what users get who set nothing, and what issue 17 asks of them. Pure: values in, text out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

DEFAULT, PACK = "default", "pack"
OFF = ("cache off, 1 worker", "cache off, 2 workers")
FIXED = (*OFF, "cache memory, 2 workers", "cache disk, 2 workers")
SCALING_PEERS = ("handtuned", "pillow-draft")
Results = Sequence[dict[str, Any]]
FIGURES: tuple[tuple[str, str, int], ...] = (
    ("epoch0_per_second", "epoch 0, samples/s", 0),
    ("epoch1_per_second", "epoch 1, samples/s", 0),
    ("first_batch_ms", "first batch, ms", 0),
    ("cpu_us_epoch0", "CPU us a sample, epoch 0", 0),
    ("cpu_us_all", "all epochs", 0),
)


@dataclass(frozen=True)
class Demand:
    """One line of "It is done when": the ratio in each round."""

    item: str
    text: str
    asked: float
    ratios: tuple[float, ...]

    @property
    def cells(self) -> list[str]:
        if not self.ratios:
            return [self.item, self.text, f"{self.asked:g}", "not measured", ""]
        middle, low, high = median(self.ratios), min(self.ratios), max(self.ratios)
        met = "yes" if middle >= self.asked else f"**no** ({middle / self.asked:.0%} of it)"
        return [self.item, self.text, f"{self.asked:g}", f"{middle:.2f} ({low:.2f} to {high:.2f})", met]


def by_round(results: Results, task: str, peer: str, figure: Callable[[dict[str, Any]], float]) -> dict[int, float]:
    return {each["round"]: figure(each) for each in results if (each["task"], each["peer"]) == (task, peer)}


def epoch0(result: dict[str, Any]) -> float:
    return float(result["epoch0_per_second"])


def three_epochs(result: dict[str, Any]) -> float:
    """Samples per second over all of it."""
    return 3 * result["epoch_samples"] / result["total_seconds"]


def window(result: dict[str, Any]) -> float:
    return float(result["images_per_second"])


def from_opening(result: dict[str, Any]) -> float:
    return float(result["opening_per_second"])


def ratios(ours: dict[int, float], theirs: Sequence[dict[int, float]]) -> tuple[float, ...]:
    """Ours over the one of theirs whose median is best, within each round that has both."""
    known = [each for each in theirs if each]
    if not known:
        return ()
    best = max(known, key=lambda each: median(each.values()))
    return tuple(ours[number] / best[number] for number in sorted(ours.keys() & best.keys()))


def demands(results: Results) -> Iterator[Demand]:
    uint8 = [each for each in results if each["output"] == "uint8"]
    for task, pixels in (("tiny64", "64 px"), ("rrc224", "224")):
        ours = by_round(uint8, task, DEFAULT, epoch0)
        off = [by_round(uint8, task, name, epoch0) for name in OFF]
        fills = fills_cache(uint8, task)
        asked = 0.65 if fills and task == "rrc224" else 0.9
        chose = "fills a cache" if fills else "fills none"
        yield Demand(
            "1", f"{pixels}: default ({chose}), epoch 0, over the best with the cache off", asked, ratios(ours, off)
        )
        total = by_round(uint8, task, DEFAULT, three_epochs)
        fixed = [by_round(uint8, task, name, three_epochs) for name in FIXED]
        yield Demand("1", f"{pixels}: default, three epochs, over the best fixed setting", 0.95, ratios(total, fixed))
    yield from _item_2(uint8)
    yield from _item_3(uint8)


def _item_2(results: Results) -> Iterator[Demand]:
    """Both from the call that opens the loader; and ours from there over a peer that is open and warm, which no user
    who waits for a first epoch ever sees."""
    best_settings = [each for each in results if each.get("mode") == "window" and each["kind"] == "jpeg"]
    for task, pixels, best, plain in (("rrc224", "224", 2.0, 3.5), ("tiny64", "64 px", 2.5, 9.0)):
        ours = by_round(results, task, DEFAULT, epoch0)
        names = sorted({each["peer"] for each in best_settings if each["task"] == task})
        for theirs, title in ((from_opening, "epoch 0 from opening too"), (window, "already open and warm")):
            item = "2" if theirs is from_opening else "2, stricter"
            peers = [by_round(best_settings, task, name, theirs) for name in names]
            text = f"{pixels}: default, epoch 0 from opening, over the best peer at its best, {title}"
            yield Demand(item, text, best, ratios(ours, peers))
            text = f"{pixels}: default, epoch 0 from opening, over the plain DataLoader of 2 workers, {title}"
            yield Demand(item, text, plain, ratios(ours, [by_round(best_settings, task, "plain", theirs)]))


def _item_3(results: Results) -> Iterator[Demand]:
    folder = by_round(results, "tiny64", OFF[1], three_epochs)
    pack = by_round(results, "tiny64", f"{PACK}, {OFF[1]}", three_epochs)
    yield Demand("3", "64 px: folder over pack, cache off, 2 workers, three epochs", 0.9, ratios(folder, [pack]))
    folder, pack = (by_round(results, "tiny64", f"flatout-{name}", window) for name in ("folder", "pack"))
    yield Demand("3", "64 px: folder over pack, cache off, 2 workers, warm window", 0.9, ratios(folder, [pack]))
    scaled = by_round(results, "large224", "flatout-scaled", window)
    exact = by_round(results, "large224", "flatout-exact", window)
    others = [by_round(results, "large224", name, window) for name in SCALING_PEERS]
    yield Demand("3", "12 megapixels: decode: scaled over exact", 3.0, ratios(scaled, [exact]))
    yield Demand("3", "12 megapixels: decode: scaled over the best peer that scales", 2.0, ratios(scaled, others))


def fills_cache(results: Results, task: str) -> bool:
    """By what the loader said of itself."""
    said = [each["notes"] for each in results if (each["task"], each["peer"]) == (task, DEFAULT)]
    return any("cache: all" in each or "cache: decoded samples in" in each for each in said)


def spread(values: Sequence[float], digits: int = 0) -> str:
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def shipped_rows(results: Results, task: str, max_foreign: float) -> list[list[str]]:
    """flatout's default, its fixed settings, then the peers, fastest first."""
    shipped = [each for each in results if each.get("mode") == "epochs" and each["task"] == task]
    own = (DEFAULT, *FIXED, f"{PACK}, {DEFAULT}", f"{PACK}, {OFF[1]}")
    rates = {each["peer"]: median(by_round(shipped, task, each["peer"], epoch0).values()) for each in shipped}
    order = [name for name in own if name in rates]
    order += sorted((name for name in rates if name not in own), key=lambda name: -rates[name])
    rows = []
    for name in order:
        turns = [each for each in shipped if each["peer"] == name]
        figures = [spread([each[key] for each in turns], digits) for key, _, digits in FIGURES]
        whole = spread([three_epochs(each) for each in turns])
        seconds = spread([each["total_seconds"] for each in turns], 2)
        foreign = max(each["foreign_cpu_share"] for each in turns)
        memory = f"{max(each['peak_rss_bytes'] for each in turns) / 1e6:,.0f}"
        title = f"**flatout, {name}**" if name in own else name
        rows.append(
            [title, f"{len(turns)}", f"{turns[0]['epoch_samples']:,}", *figures[:2], whole, seconds, *figures[2:], memory,
             f"{foreign:.0%}" + (" (!)" if foreign > max_foreign else ""), turns[-1].get("notes", "")]
        )  # fmt: skip
    return rows


SHIPPED_HEADER = [
    "loader", "turns", "samples of an epoch", *(title for _, title, _ in FIGURES[:2]), "three epochs, samples/s", "three epochs, s",
    *(title for _, title, _ in FIGURES[2:]), "peak RSS MB, main process", "CPU taken by others, worst", "said",
]  # fmt: skip
DEMANDS_HEADER = ["item", "what", "asked, at least", "measured, by round", "met"]
