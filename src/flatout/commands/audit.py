"""Look at a dataset: list it, examine every sample, say what is wrong, write the page. Needs no torch."""

import base64
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from flatout.data.audit.examination import Contents, examine, open_contents
from flatout.data.audit.findings import AuditFinding, describe, judge
from flatout.data.pixels.decode import Undecodable, decode_image
from flatout.data.source.readers import read_source
from flatout.errors import DataError, StorageError
from flatout.machine.budgets import usable_cores
from flatout.reports.audit_page import audit_text, write_audit_page
from flatout.training.display import Display

_THUMBNAILS, _SIDE = 60, 96
_SIDE_BY_SIDE = 4  # pictures of one example
_PICTURED = ("label-conflict", "leak", "duplicates", "mode-", "exif-", "wrong-")


def audit_data(path: str, html: Path | None = None, limit: int | None = None, quiet: bool = True) -> dict[str, Any]:
    """The result as plain values; with `html` a page as well. `limit` looks at that many samples of each class."""
    if html is not None and not html.absolute().parent.is_dir():  # found out now, not after an hour
        raise DataError(f"cannot write {html}: there is no folder {html.absolute().parent}; make it first")
    with Display(quiet) as display:
        display.begin("listing", 0, 0)
        started = time.perf_counter()
        contents = open_contents(path)
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
        write_audit_page(html, {**result, "thumbnails": _thumbnails(contents, findings)})
    return result


def print_audit(result: dict[str, Any]) -> None:
    Console(highlight=False).print(audit_text(result))


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
                ids = np.array([sample_id])
                picture = _thumbnail(read_source(split.locate(ids)[0]), split.shapes(ids))
                if picture is not None:
                    found[name] = picture
    return found


def _thumbnail(data: bytes | memoryview | StorageError, shapes: np.ndarray[Any, Any] | None) -> str | None:
    if isinstance(data, StorageError):
        return None
    try:
        if shapes is not None and shapes[0][0]:
            image = Image.fromarray(np.frombuffer(data, np.uint8).reshape(*shapes[0], 3))
        else:
            image = decode_image(data)
    except Undecodable:
        return None
    image.thumbnail((_SIDE, _SIDE))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
