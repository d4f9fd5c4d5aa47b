"""`make chaos`: every test that docs/faults.md names, and a table of what each row's tests said."""

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"


@dataclass(frozen=True)
class Row:
    number: str
    fault: str
    words: str  # of its last cell where it names no test
    tests: tuple[str, ...]


def read_page(page: Path) -> list[Row]:
    rows = []
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"S?\d+", cells[0]):
            named = tuple(re.findall(r"`([^`]+\.py::[^`]+)`", cells[3]))
            rows.append(Row(cells[0], cells[1], "" if named else cells[3], named))
    return rows


def row_result(row: Row, results: Mapping[str, set[str]]) -> str:
    """In a word; `results` has, for each test, how its cases ended."""
    if not row.tests:
        return row.words
    ended = [results.get(name, set()) for name in row.tests]
    if any("failed" in each for each in ended):
        return "FAILED"
    if not all(ended):
        return "NOT RUN"
    return "passed" if all(each == {"passed"} for each in ended) else "skipped in part"


def read_results(path: Path) -> dict[str, set[str]]:
    """From pytest's XML, by file and function."""
    results: dict[str, set[str]] = defaultdict(set)
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/") + ".py"
        name = case.get("name", "").split("[")[0]
        bad, skipped = (any(each.tag in tags for each in case) for tags in (("failure", "error"), ("skipped",)))
        results[f"{file}::{name}"].add("failed" if bad else "skipped" if skipped else "passed")
    return results


def main() -> None:
    rows = read_page(PAGE)
    names = sorted({f"tests/{name}" for row in rows for name in row.tests})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *sys.argv[1:], *names]
        code = subprocess.run(command, cwd=TESTS.parent, check=False).returncode
        results = read_results(report)
    for row in rows:
        sys.stdout.write(f"{row.number:>4}  {row_result(row, results):16}  {row.fault}\n")
    said = [row_result(row, results) for row in rows]
    sys.stdout.write(f"{said.count('passed')} of {len(rows)} rows passed, {said.count('not yet')} not yet\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
