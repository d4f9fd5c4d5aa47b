"""Look at a dataset: list it, examine every sample, say what is wrong, write the page. Needs no torch."""

import time
from pathlib import Path
from typing import Any

from flatout.commands.output_files import require_place
from flatout.commands.thumbnails import thumbnail
from flatout.data.audit.examination import Contents, examine, open_contents
from flatout.data.audit.findings import AuditFinding, describe, judge
from flatout.machine.budgets import usable_cores
from flatout.reports.audit_page import audit_html
from flatout.reports.audit_page import audit_text as audit_text
from flatout.runs.directory import write_text
from flatout.training.display import Display

_THUMBNAILS = 60
_SIDE_BY_SIDE = 4  # pictures of one example
_PICTURED = ("label-conflict", "leak", "duplicates", "mode-", "exif-", "wrong-")


def audit_data(
    path: str,
    html: Path | None = None,
    limit: int | None = None,
    quiet: bool = True,
    layout: str = "detect",
    label_column: str | None = None,
) -> dict[str, Any]:
    """The result as plain values; with `html` a page as well. `limit` looks at that many samples of each class."""
    if html is not None:
        require_place(html)
    with Display(quiet) as display:
        display.begin("listing", 0, 0)
        started = time.perf_counter()
        contents = open_contents(path, layout, label_column)
        list_seconds = time.perf_counter() - started
        threads = min(16, usable_cores())
        started = time.perf_counter()

        def progress(done: int, total: int) -> None:
            if done == 0:
                display.begin("looking at samples", 0, total)
            rate = done / max(time.perf_counter() - started, 1e-9)
            display.advance("looking at samples", done, total, f"{rate:.0f} images/s")

        examined = examine(contents, limit, threads, progress)
        findings = judge(contents, examined)
    result = describe(contents, examined, findings)
    result["limit"] = limit
    result["seconds"] |= {"list": list_seconds, "threads": threads}
    result["html"] = None if html is None else str(html)
    if html is not None:
        write_text(html, audit_html({**result, "thumbnails": _thumbnails(contents, findings)}))
    return result


def _thumbnails(contents: Contents, findings: list[AuditFinding]) -> dict[str, str]:
    """Name -> data URI of what the findings show, every finding's first examples first."""
    pictured = [finding for finding in findings if finding.id.startswith(_PICTURED)]
    wanted: dict[str, None] = {}
    for number in range(max((len(finding.examples) for finding in pictured), default=0)):
        for finding in pictured:
            if number < len(finding.examples):
                wanted |= dict.fromkeys(finding.examples[number].names[:_SIDE_BY_SIDE])
    chosen = set(list(wanted)[:_THUMBNAILS])
    found = {}
    for split in contents.splits.values():
        for sample_id, name in enumerate(split.names):
            if name in chosen:
                picture = thumbnail(split, sample_id)
                if picture is not None:
                    found[name] = picture
    return found
