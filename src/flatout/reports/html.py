"""A run as one self-contained page: what came of it, where the time and money went, and everything to check it by."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from markupsafe import Markup

from flatout.analysis.answers import answers, is_emulated, network_points
from flatout.analysis.details import Details
from flatout.config.tasks import best_metric
from flatout.reports.curves import curve_charts, network_chart, resource_charts
from flatout.reports.page import (
    folded,
    join_markup,
    navigation,
    note,
    page,
    pairs,
    paragraph,
    pill,
    preformatted,
    section,
    shown,
    table,
    tiles,
)
from flatout.reports.timeline_view import epoch_bars, estimate_table, ledger_bar, timeline
from flatout.units import format_bytes, format_seconds, format_share, format_usd

_STATUS = {"completed": "good", "running": "", "stopped": "warn"}
_VERDICTS = {"trained": "good", "still improving": "warn", "too early": "", "unknown": ""}
_MOST_QUARANTINED = 200


def report_page(details: Details) -> str:
    """Needs nothing but what is in `details`: every run gives a page, whatever became of it."""
    present = [each for each in report_sections(details) if each[2]]
    body = Markup("<header>{}{}{}</header>\n<main>{}\n{}</main>\n<footer>{}</footer>").format(
        _headline(details),
        join_markup(_notes(details)),
        navigation((anchor, name) for anchor, name, _ in present),
        _tiles(details),
        join_markup(content for _, _, content in present),
        _footer(details),
    )
    return page(f"{details.run.name}: {details.run.status}", body)


def report_sections(details: Details) -> list[tuple[str, str, Markup]]:
    """Anchor, short name and content of every section; one without content is empty. The live page shows them, too."""
    content = [
        ("time", "Time", "Where the time went", _time(details)),
        ("answers", "Answers", "Answers", [pairs(answers(details))]),
        ("curves", "Curves", "Curves", _curves(details)),
        ("epochs", "Epochs", "Epochs", [epoch_bars(details), estimate_table(details)]),
        ("timeline", "Timeline", "Timeline", [timeline(details.activity)]),
        ("machine", "Machine", "The machine", _machine(details)),
        ("cost", "Cost", "Cost", _cost(details)),
        ("findings", "Findings", "Findings", finding_sections(details.findings)),
        ("files", "Files", "Files and data", _files(details)),
        ("setup", "Configuration", "Configuration and environment", _setup(details)),
    ]
    return [(anchor, name, section(title, *parts, anchor=anchor)) for anchor, name, title, parts in content]


def _headline(details: Details) -> Markup:
    run, verdict = details.run, details.convergence["verdict"]
    pills = [pill(run.status, _STATUS.get(run.status, "bad"))]
    pills += [pill("emulated device", "warn")] if is_emulated(details) else []
    pills += [pill(verdict, _VERDICTS.get(verdict, "bad"))] if verdict != "unknown" else []
    return Markup("<h1>{}</h1>{}{}").format(
        shown(run.name), join_markup(pills), paragraph(f"{_capital(details.convergence['why'])}.", "lead")
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _notes(details: Details) -> list[Markup]:
    """What a reader must not miss."""
    notes, cause = [], details.run.summary.get("cause")
    if is_emulated(details):
        notes.append(
            note(
                "The device is emulated: compute was replaced by a calibrated wait. Accuracy means nothing; "
                "times of data, network and records are real."
            )
        )
    if cause:
        notes.append(note(_capital(cause), "warn" if details.run.status == "stopped" else "bad"))
    notes += [note(_capital(alarm), "bad") for alarm in details.convergence.get("alarms") or []]
    notes += [note(_capital(details.diagnosis))] if details.diagnosis else []
    return notes


def _tiles(details: Details) -> Markup:
    summary, parts = details.run.summary, (details.run.summary.get("time") or {}).get("parts") or {}
    wall = (summary.get("time") or {}).get("wall_seconds")
    found, speed = summary.get("accuracy") or {}, summary.get("throughput") or {}
    metric = best_metric(details.run.config)
    value = found.get(metric.name)
    rate = speed.get("samples_per_second")
    emulated = "emulated" if is_emulated(details) else ""
    total = (summary.get("cost") or {}).get("total_usd")
    step = (speed.get("step_seconds") or {}).get("p50")
    return tiles(
        [
            (metric.title, None if value is None else metric.write(value), emulated or _best(found)),
            ("wall clock", format_seconds(wall), f"{len(details.run.steps):,} steps"),
            ("samples/s", None if rate is None else f"{rate:,.0f}", emulated or f"median step {format_seconds(step)}"),
            ("waiting for data", format_share(parts.get("data_wait"), wall), "of the wall clock"),
            (*_device_use(summary), emulated or str((summary.get("device") or {}).get("name") or "")),
            ("cost", format_usd(total), "" if total is not None else "no price set"),
        ]
    )


def _device_use(summary: dict[str, Any]) -> tuple[str, str | None]:
    """What the driver of a GPU reads; elsewhere the share of the wall clock that training computed."""
    use = summary.get("device_use") or {}
    utilization, busy = use.get("utilization_mean"), use.get("busy_fraction")
    if utilization is None and busy is not None:
        return "device busy", f"{100 * busy:.0f} %"
    return "device utilisation", None if utilization is None else f"{100 * utilization:.0f} %"


def _best(found: dict[str, Any]) -> str:
    return "" if found.get("best_epoch") is None else f"best in epoch {found['best_epoch'] + 1}"


def _time(details: Details) -> list[Markup]:
    time = details.run.summary.get("time") or {}
    return [ledger_bar(time.get("wall_seconds"), time.get("parts") or {})]


def _curves(details: Details) -> list[Markup]:
    if not details.run.steps and not details.run.epochs:
        return [paragraph("No step has been recorded.", "dim")]
    how = "Point at a curve, or focus it and use the arrow keys, to read values; names switch series."
    return [paragraph(how, "dim"), curve_charts(details)]


def _machine(details: Details) -> list[Markup]:
    if not details.system:
        return [paragraph("The machine's use was not recorded (no system.csv).", "dim")]
    return [resource_charts(details.system), network_chart(details, network_points(details))]


def _cost(details: Details) -> list[Markup]:
    found = details.run.summary.get("cost") or {}
    lines = found.get("lines") or []
    missing = [note(each) for each in found.get("unpriced") or []]
    if found.get("total_usd") is None and not lines:
        return [*(missing or [paragraph("No price is set: name cost.instance or cost.usd_per_hour.", "dim")])]
    rows = [
        [
            line["name"],
            f"{line['quantity']:,.6g}",
            line["unit"],
            f"${line['unit_price_usd']:.6g}",
            format_usd(line["usd"]),
        ]
        for line in lines
    ]
    rows.append(["total", "", "", "", format_usd(found.get("total_usd"))])
    dated = paragraph(f"Prices as of {found.get('prices_dated') or 'n/a'}.", "dim")
    return [table(["item", "quantity", "unit", "price", "cost"], rows, total=True), dated, *missing]


def finding_sections(findings: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """What `flatout explain` found, one heading each."""
    return [
        join_markup([Markup("<h3>{}</h3>").format(shown(each.get("title") or each.get("id"))), pairs(_finding(each))])
        for each in findings
    ]


def _finding(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Evidence, fix and what it buys, in words; what another version wrote differently as it stands."""
    fix, gain, usd = found.get("fix"), found.get("gain"), found.get("usd")
    if found.get("evidence") is not None:
        yield "seen", _words(found["evidence"])
    if isinstance(fix, dict) and isinstance(fix.get("text"), str) and isinstance(fix.get("changes") or {}, dict):
        sets = [
            Markup("<code>--set {}={}</code>").format(*map(shown, each)) for each in (fix.get("changes") or {}).items()
        ]
        yield "fix", Markup(" ").join([shown(fix["text"]), *sets])
    elif fix is not None:
        yield "fix", _words(fix)
    if isinstance(gain, dict) and all(isinstance(gain.get(name), float | int) for name in ("factor", "low", "high")):
        yield "buys", "the run {factor:.2f} times as fast ({low:.2f} to {high:.2f})".format(**gain)
    elif gain is not None:
        yield "buys", _words(gain)
    if usd is not None:
        yield "saves", format_usd(usd) if isinstance(usd, float | int) else _words(usd)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items() if each is not None)
    if isinstance(value, list):
        return "; ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else "n/a" if value is None else str(value)


def _files(details: Details) -> list[Markup]:
    sizes = [[name, format_bytes(size) if size else "link"] for name, size in details.checkpoints]
    content = [paragraph(Markup("Run directory: <code>{}</code>").format(shown(details.run.directory)))]
    content += [table(["checkpoint", "size"], sizes)]
    if details.classes:
        content += [folded(f"{len(details.classes):,} classes", table(["label", "class"], enumerate(details.classes)))]
    if details.quarantine:
        bad = [[row.get("name"), row.get("split"), row.get("reason")] for row in details.quarantine[:_MOST_QUARANTINED]]
        count = len(details.quarantine)
        more = f" (the first {_MOST_QUARANTINED})" if count > _MOST_QUARANTINED else ""
        content += [folded(f"{count:,} samples in quarantine{more}", table(["sample", "split", "reason"], bad))]
    return content


def _setup(details: Details) -> list[Markup]:
    run = details.run
    facts = [
        (name.replace("_", " "), _fact(name, value)) for name, value in run.environment.items() if value is not None
    ]
    by = run.summary.get("data_fingerprint_by")
    facts += [
        (f"data fingerprint{f' by {by}' if by else ''}", str(run.summary.get("data_fingerprint") or "n/a")),
        ("config digest", str(run.summary.get("config_digest") or "n/a")),
    ]
    config = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True) if run.config else ""
    return [pairs(facts), folded("config.yaml", preformatted(config)) if config else Markup("")]


def _fact(name: str, value: Any) -> str:
    is_size = name.endswith("_bytes") and isinstance(value, int)
    return format_bytes(value) if is_size else _words(value)


def _footer(details: Details) -> Markup:
    version = details.run.environment.get("flatout")
    written = f" by flatout {version}" if version else ""
    return paragraph(f"Recorded{written}; figures come from the files of the run alone. n/a: not measured.")
