"""`make matrix`: every pair of features, two at a time, into one table. `--only NAME` tries the pairs of one feature,
and changes only their rows of a table that is there already."""

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.features import BY_NAME, FEATURES, PAIRS, impossible
from matrix.pairs import Bench, Outcome
from servers.s3 import S3Server

SIGNS = {"right": "=", "refused": "no", "impossible": "·", "WRONG": "**WRONG**"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a feature; given twice, that pair")
    parser.add_argument("--out", type=Path, help="where the table goes")
    options = parser.parse_args()
    wanted = [pair for pair in PAIRS if not options.only or len(set(options.only) & set(pair)) == len(options.only)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flatout-matrix-") as name:
        (Path(name) / "s3" / "matrix").mkdir(parents=True)
        with S3Server(Path(name) / "s3") as server, ThreadPoolExecutor(2) as threads:
            bench = Bench(Path(name) / "bench", server)

            def judge(pair: tuple[str, str]) -> Outcome:
                outcome = bench.judge(*(BY_NAME[each] for each in pair))
                print(f"{pair[0]} x {pair[1]}: {outcome.verdict}: {outcome.detail}", flush=True)
                return outcome

            outcomes = dict(zip(wanted, threads.map(judge, wanted), strict=True))
    print(f"{len(outcomes)} pairs in {time.monotonic() - began:.0f} s")
    if options.out is not None:
        outcomes = {**(known(options.out) if options.only else {}), **outcomes}
        options.out.write_text(table(outcomes).replace(f"{Path(__file__).parents[2]}/", ""), encoding="utf-8")
    sys.exit(1 if any(outcome.verdict == "WRONG" for outcome in outcomes.values()) else 0)


def known(path: Path) -> dict[tuple[str, str], Outcome]:
    """What an earlier table says, in the order of the pairs."""
    rows = re.findall(r"^\| (.+?) x (.+?) \| (\w+) \| (.*) \|$", path.read_text(encoding="utf-8"), re.MULTILINE)
    found = {(one, two): Outcome(verdict, detail) for one, two, verdict, detail in rows}
    reasons = {pair: impossible(*(BY_NAME[name] for name in pair)) for pair in PAIRS}
    found |= {pair: Outcome("impossible", reason) for pair, reason in reasons.items() if reason is not None}
    return {pair: found[pair] for pair in PAIRS if pair in found}


def table(outcomes: dict[tuple[str, str], Outcome]) -> str:
    counts = Counter(outcome.verdict for outcome in outcomes.values())
    names = [feature.name for feature in FEATURES]
    lines = [
        "# Pairs of features",
        "",
        f"`make matrix`, {date.today().isoformat()}: {len(outcomes)} pairs of {len(names)} features, each trained for real.",
        f"{counts['right']} are right (`=`), {counts['refused']} are refused before the first step in one line (`no`),",
        f"{counts['impossible']} nobody can ask for (`·`), {counts['WRONG']} are wrong. How each is judged: `tests/matrix/`.",
        "",
        "| |" + "|".join(str(number) for number in range(1, len(names))) + "|",
        "|---" * len(names) + "|",
    ]
    for at, name in enumerate(names[1:], 1):
        cells = [SIGNS[outcomes[other, name].verdict] if (other, name) in outcomes else "" for other in names[:at]]
        lines.append(f"| {at + 1} {name} |" + "|".join(cells) + "|" * (len(names) - at))
    lines += ["", "1 is " + names[0] + ".", "", "| pair | | what was found |", "|---|---|---|"]
    for (one, two), outcome in outcomes.items():
        if outcome.verdict != "impossible":
            lines.append(f"| {one} x {two} | {outcome.verdict} | {outcome.detail.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
