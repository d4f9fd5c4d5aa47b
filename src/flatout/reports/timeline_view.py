"""Where the time went, as pictures: the ledger, epoch by epoch, over the run, and a few steps in every lane."""

from collections.abc import Mapping

from markupsafe import Markup

from flatout.analysis.activity import Activity, CloseLook
from flatout.analysis.details import Details
from flatout.analysis.epoch_ledger import DIFFERENCES, explain_difference, part_order
from flatout.reports.charts import Series, area_chart, line_chart
from flatout.reports.curves import time_axis
from flatout.reports.page import join_markup, paragraph, table
from flatout.reports.strips import Block, stacked, strips
from flatout.units import format_seconds, format_share

_MOST_ROWS = 40
_MOST_LANES = 16
_LANE_STYLES = {"fetch": "s1", "decode": "s2", "augment": "s3", "collate": "s4"}


def ledger_bar(wall: float | None, parts: Mapping[str, float | None]) -> Markup:
    """The whole run as one bar, with the share of every part."""
    known = {name: seconds for name, seconds in parts.items() if seconds}
    if not wall or not known:
        return paragraph("No time is recorded yet.", "dim")
    keys = [
        (name, name.replace("_", " "), f"{format_share(seconds, wall)} · {format_seconds(seconds)}")
        for name, seconds in sorted(known.items(), key=lambda each: -each[1])
        if seconds >= 0.0005 * wall
    ]
    row = ("wall clock", stacked(known, wall, format_seconds), format_seconds(wall))
    return strips("The wall clock of the main thread", [row], (0, wall), kind="ledger", keys=keys)


def epoch_bars(details: Details) -> Markup:
    """Start-up, then every epoch; long runs in groups of epochs, each the mean of its group."""
    ledger = details.activity.ledger
    rows = [("start-up", ledger.startup)] if ledger.startup else []
    epochs = sorted(ledger.epochs)
    size = -(-len(epochs) // _MOST_ROWS) or 1
    for first in range(0, len(epochs), size):
        group = epochs[first : first + size]
        name = f"epoch {group[0] + 1}" if len(group) == 1 else f"epochs {group[0] + 1}–{group[-1] + 1}"
        rows.append((name, _mean([ledger.epochs[epoch] for epoch in group])))
    if not epochs:
        return Markup("")
    longest = max(sum(parts.values()) for _, parts in rows)
    order = sorted({name for _, parts in rows for name in parts if parts[name] > 0}, key=part_order)
    bars = [
        (
            name,
            stacked({n: parts.get(n, 0.0) for n in order}, sum(parts.values()), format_seconds),
            format_seconds(sum(parts.values())),
        )
        for name, parts in rows
    ]
    note = "" if size == 1 else f"mean of every {size} epochs"
    return strips("Epoch by epoch", bars, (0, longest), " s", note, keys=[(n, n.replace("_", " "), "") for n in order])


def _mean(ledgers: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for parts in ledgers for name in parts)
    return {name: sum(parts.get(name, 0.0) for parts in ledgers) / len(ledgers) for name in names}


def estimate_table(details: Details) -> Markup:
    """N/B x the time of a batch against what epochs took, with the difference in parts."""
    accounts = details.accounts[:_MOST_ROWS]
    text = explain_difference(details.accounts)
    if text is None:
        return Markup("")
    header = [
        "epoch",
        "batches N/B",
        "per batch",
        "estimate",
        "data wait",
        "first step",
        "uneven steps",
        "validation",
        "checkpoint",
        "between steps",
        "= actual",
    ]
    rows = [
        [
            a.epoch + 1,
            f"{a.batches:.2f}",
            format_seconds(a.batch_seconds),
            f"{a.estimate:.2f} s",
            *(f"{getattr(a, name):+.2f}" for name in DIFFERENCES),
            f"{a.actual:.2f} s{' (restarted)' if a.restarted else ''}",
        ]
        for a in accounts
    ]
    note = "The time of a batch is the median step without its wait for data. All differences are in seconds."
    more = f" The first {_MOST_ROWS} of {len(details.accounts)} epochs." if len(details.accounts) > _MOST_ROWS else ""
    return join_markup(
        [
            paragraph(f"Mean epoch: {text}."),
            table(header, rows, "Estimate against actual"),
            paragraph(note + more, "dim"),
        ]
    )


def timeline(activity: Activity) -> Markup:
    """The run over time, then close looks."""
    overview = activity.overview
    if not overview.sums:
        return Markup("")
    unit, scale = time_axis(overview.end)
    width = overview.bin_seconds
    bins = overview.main_thread()
    note = f"each stretch is {format_seconds(width)}"
    if len(activity.attempts) > 1:
        starts = ", ".join(format_seconds(at) for _, at in activity.attempts[1:9])
        note += f"; started again after {starts}"
    charts = [area_chart("The main thread over the run", bins, (0, len(bins) * width / scale), unit, note)]
    lanes = [
        Series(name, [((n + 0.5) * width / scale, 100 * share) for n, share in enumerate(shares)])
        for name, shares in list(overview.lanes().items())[:8]
    ]
    charts.append(line_chart("How busy parallel lanes were", lanes, unit, " %", from_zero=True, height=130))
    values = [
        Series(name, [(at / scale, v) for at, v in points]) for name, points in list(overview.values().items())[:8]
    ]
    charts.append(line_chart("Queues", values, unit, from_zero=True, height=110))
    return join_markup([*charts, *map(_close_look, activity.looks)])


def _close_look(look: CloseLook) -> Markup:
    low, high = look.extent()
    lanes: dict[str, list[Block]] = {"main thread": []}
    styles = dict(_LANE_STYLES)
    for row in look.rows:
        style = row.name if not row.lane else styles.setdefault(row.name, f"s{len(styles) % 8}")
        start, end = max(low, row.start), min(high, row.start + row.seconds)
        title = f"{row.name.replace('_', ' ')}, step {row.step}: {format_seconds(row.seconds)}"
        lanes.setdefault(row.lane or "main thread", []).append(Block(start, end - start, style, title))
    lanes["main thread"].sort(key=lambda block: -block.length)  # what is inside another is drawn over it
    rows = [(name, blocks, "") for name, blocks in list(lanes.items())[:_MOST_LANES]]
    named = {block.style: block.title.split(",")[0] for _, blocks, _ in rows for block in blocks}
    keys = [(style, named[style], "") for style in sorted(named, key=part_order)]
    scale = 1e3 if high - low < 2 else 1
    scaled = [
        (name, [Block((b.start - low) * scale, b.length * scale, b.style, b.title) for b in blocks], figure)
        for name, blocks, figure in rows
    ]
    which = (
        f"steps {look.first_step}–{look.last_step}" if look.last_step > look.first_step else f"step {look.first_step}"
    )
    return strips(
        f"A close look: {look.title}",
        scaled,
        (0, (high - low) * scale),
        " ms" if scale > 1 else " s",
        which,
        keys=keys,
    )
