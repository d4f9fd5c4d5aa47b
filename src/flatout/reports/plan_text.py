"""A plan, a fit and the scores of plans on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatout.reports.page import printable
from flatout.units import format_bytes, format_usd

_SHOWN = 25


def plan_text(plan: Mapping[str, Any], everything: bool = False) -> RenderableType:
    """The best first, then the frontier and the cheapest options that fit."""
    named = set(plan["frontier"])
    options = [each for each in plan["options"] if everything or each["fits"]]
    chosen = [each for each in options if name_of(each) in named]
    shown = chosen + [each for each in options if name_of(each) not in named]
    shown = shown if everything else shown[:_SHOWN]
    parts: list[RenderableType] = [_best(plan), Text(), _table(shown, named)]
    if len(shown) < len(plan["options"]):
        parts.append(Text(f"{len(plan['options']) - len(shown)} more options: --all or --json shows them", style="dim"))
    for word in ("cheapest", "fastest"):
        best = plan["best"][word]
        if best is not None and best["changes"]:
            parts += [Text(), Text(f"{word}, {name_of(best)}:", style="bold"), *map(_change, best["changes"])]
    parts += [Text(), Text(f"data: {printable(plan['data_basis'])}", style="dim")]
    parts += [Text(f"note: {printable(note)}", style="dim") for note in plan["notes"]]
    parts.append(Text(f"plan {plan['plan']}: flatout plan --score compares it with the run that follows", style="dim"))
    return Group(*parts)


def name_of(option: Mapping[str, Any]) -> str:
    return f"{option['machine']} (spot)" if option["spot"] else str(option["machine"])


def _best(plan: Mapping[str, Any]) -> Text:
    text = Text()
    priced = any(each["fits"] and each["usd"] is not None for each in plan["options"])
    for word, missing in (
        ("cheapest", "nothing that fits is done in time" if priced else "nothing that fits has a price"),
        ("fastest", "nothing that fits costs so little"),
    ):
        best = plan["best"][word]
        text.append(f"{word}: ", style="bold")
        if best is None:
            text.append(f"{missing}\n", style="yellow")
            continue
        usd = "no price" if best["usd"] is None else interval_text(best["usd"], format_usd)
        text.append(
            f"{name_of(best)} ({best['gpus']} x {best['gpu']}): {interval_text(best['hours'], hours_text)}, {usd}; "
        )
        text.append(f"{best['limit']} limits; {best['basis']}\n")
    return text


def _table(options: Sequence[Mapping[str, Any]], named: set[str]) -> Table:
    names = ("machine", "card", "fits", "samples/s", "device could", "limit", "hours", "cost", "basis")
    table = Table(*names, title="machines (interval below each value; * on the frontier)", title_justify="left")
    for each in options:
        mark = "* " if name_of(each) in named else ""
        fits = f"{format_bytes(each['peak_bytes'])}\nbatch up to {each['largest_batch']}"
        table.add_row(
            f"{mark}{name_of(each)}\n{each['cloud']}",
            f"{each['gpus']} x {each['gpu']}",
            fits if each["fits"] else f"no: {format_bytes(each['peak_bytes'])}",
            _stacked(each["samples_per_second"], count_text),
            _stacked(each["device_samples_per_second"], count_text),
            each["limit"] + (f"\nwaits {each['waiting_share']:.0%}" if each["waiting_share"] > 0.05 else ""),
            _stacked(each["hours"], hours_text),
            "no price" if each["usd"] is None else _stacked(each["usd"], format_usd),
            each["basis"],
        )
    return table


def _change(change: Mapping[str, Any]) -> Text:
    gain = "" if change["gain"] is None else f" ({change['gain']:.2f}x)"
    word = "set" if change["applied"] else "consider"
    return Text(f"  {word} {change['key']}={change['value']}{gain}: {change['why']}")


def fit_text(found: Mapping[str, Any]) -> RenderableType:
    """Parts at the recipe's own batch, then what each card takes."""
    parts = Table(
        "part", "bytes", title=f"{found['model']}, batch {found['batch']}, {found['precision']}", title_justify="left"
    )
    for name, value in found["parts"].items():
        parts.add_row(name, format_bytes(value))
    kinds = list(found["cards"][0]["largest_batch"]) if found["cards"] else []
    cards = Table("card", "memory", "as it is", *kinds[1:], title="largest batch", title_justify="left")
    for card in found["cards"]:
        sizes = ["-" if size is None else str(size) for size in card["largest_batch"].values()]
        mark = "" if card["fits"] else " (does not fit)"
        cards.add_row(f"{card['gpu']}{mark}", format_bytes(card["memory_bytes"]), *sizes)
    notes = [Text(f"note: {printable(note)}", style="dim") for note in found["notes"]]
    return Group(parts, cards, Text(f"basis: {found['basis']}", style="dim"), *notes)


def scores_text(scores: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not scores:
        return Text("no plan has a run that followed it yet")
    names = ("plan", "machine", "run", "samples/s planned", "measured", "error", "in interval")
    table = Table(*names, title="plans and the runs that followed", title_justify="left")
    for each in scores:
        table.add_row(
            each["plan"],
            each["machine"],
            each["run"],
            count_text(each["planned"]),
            count_text(each["measured"]),
            f"{100 * each['error']:+.1f} %",
            "yes" if each["inside"] else "no",
        )
    return table


def interval_text(interval: Mapping[str, float], form: Any) -> str:
    return f"{form(interval['value'])} ({form(interval['low'])} to {form(interval['high'])})"


def _stacked(interval: Mapping[str, float], form: Any) -> str:
    return f"{form(interval['value'])}\n{form(interval['low'])} to {form(interval['high'])}"


def hours_text(value: float) -> str:
    return f"{value:.1f} h" if value >= 1 else f"{60 * value:.0f} min"


def count_text(value: float) -> str:
    return f"{value:,.0f}"
