"""Measure every image loader in one interleaved run, flatout's beside its peers, and write a dated result.

Two kinds of rows: "as shipped" (three epochs from the call that opens the loader, first epoch and first batch apart: what
a user gets who sets nothing, flatout's fixed settings beside it) and "best" (at the setting that suits the loader best
here: the first epoch from the call that opens it, then images per second of the warm loader). `setup_peers.sh DIR` makes
the peers' environments; data and conversions to a peer's own format are made before the first round. A peer that fails is
a line in the result, not the end of the run. A turn in which other processes took more than --max-foreign of the cores is
measured once more, and the quieter one counts. flatout and the peers that could be the best one have a turn in every
round, the others one turn in all: so everything fits into --most-minutes, and what does not is listed as left out.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from contract import busy_cpu_seconds, train_files
from large_photos import make_folder
from make_photos import make_photos
from report import markdown
from unpack_tiny import TAR, unpack_tiny

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from dated_results import ROOT, current_commit, describe_machine, own_command  # noqa: E402 - beside this folder

DATA_OF_TASK = {"rrc224": "photos", "tiny64": "tiny", "large224": "large"}
SHIPPED_SAMPLES = {"rrc224": 768, "tiny64": 2560}
"""Of an epoch of a peer as shipped: most of them are slow. flatout's own epochs are the whole dataset."""
LARGE_PHOTOS, LARGE_BATCH = 48, 8
BOTH = ("rrc224", "tiny64")
EVERY_ROUND = ("plain", "handtuned", "pillow-draft", "dali", "ffcv-jpeg")
"""Peers that verdicts rest on; the others are slower by far, and have one turn."""
CONVERT_TIMEOUT_SECONDS = 1800
START_TIMEOUT_SECONDS = 300  # imports, compilation, one pass to fill a cache and the warm-up
QUIET_SHARE, QUIET_SECONDS = 0.05, 0.4


@dataclass(frozen=True)
class Peer:
    name: str
    venv: str
    """The environment peers-<venv> in DIR; empty for the project's own."""
    module: str
    kind: str
    """What it reads: jpeg, decoded pixels, or ready-made images; "flatout ..." for our own."""
    variant: str = ""
    converts: bool = False
    mode: str = "window"
    """As in contract.Job: window for the best setting, epochs for as shipped."""
    tasks: tuple[str, ...] = BOTH
    asked_for: bool = True
    """Whether it is measured unless --only names others."""


PEERS = (
    Peer("plain", "torch", "plain", "jpeg", tasks=(*BOTH, "large224")),
    Peer("handtuned", "torch", "handtuned", "jpeg", tasks=(*BOTH, "large224")),
    Peer("pillow-draft", "torch", "plain", "jpeg", "draft", tasks=("large224",)),
    Peer("torchvision-v2", "torch", "torchvision_v2", "jpeg"),
    Peer("dali", "torch", "dali", "jpeg", tasks=(*BOTH, "large224")),
    Peer("ffcv-jpeg", "ffcv", "ffcv", "jpeg", "jpeg", converts=True),
    Peer("litdata", "torch", "litdata", "jpeg", converts=True),
    Peer("webdataset", "torch", "webdataset", "jpeg", converts=True),
    Peer("mosaic", "torch", "mosaic", "jpeg", converts=True),
    Peer("hf-datasets", "hf", "hf_datasets", "jpeg", converts=True),
    Peer("torchdata-nodes", "torch", "torchdata_nodes", "jpeg"),
    Peer("spdl", "torch", "spdl", "jpeg"),
    Peer("grain", "grain", "grain", "jpeg"),
    Peer("tf-data", "tf", "tf_data", "jpeg", converts=True),
    Peer("ffcv-raw", "ffcv", "ffcv", "decoded", "raw", converts=True, asked_for=False),
    Peer("gather", "torch", "gather", "ready-made", converts=True, asked_for=False),
    Peer("flatout-exact", "", "flatout", "flatout jpeg", "folder", tasks=("large224",)),
    Peer("flatout-scaled", "", "flatout", "flatout jpeg", "scaled", tasks=("large224",)),
    Peer("flatout-folder", "", "flatout", "flatout jpeg", "folder"),
    Peer("flatout-pack", "", "flatout", "flatout jpeg", "pack", converts=True),
    Peer("flatout-fallback", "", "flatout", "flatout jpeg", "fallback", asked_for=False),
    Peer("flatout-cache", "", "flatout", "flatout decoded", "cache", asked_for=False),
    Peer("flatout-pack-decoded", "", "flatout", "flatout decoded", "pack-decoded", converts=True, asked_for=False),
    Peer("default", "", "flatout", "flatout", "default", mode="epochs"),
    Peer("cache off, 1 worker", "", "flatout", "flatout", "off-1", mode="epochs"),
    Peer("cache off, 2 workers", "", "flatout", "flatout", "off-2", mode="epochs"),
    Peer("cache memory, 2 workers", "", "flatout", "flatout", "memory", mode="epochs"),
    Peer("cache disk, 2 workers", "", "flatout", "flatout", "disk", mode="epochs"),
    Peer("pack, default", "", "flatout", "flatout", "pack-default", converts=True, mode="epochs"),
    Peer("pack, cache off, 2 workers", "", "flatout", "flatout", "pack-off-2", converts=True, mode="epochs"),
    Peer("plain, as shipped", "torch", "plain", "jpeg", mode="epochs"),
    Peer("plain, as in the tutorial", "torch", "plain", "jpeg", "tutorial", mode="epochs"),
    Peer("dali, as shipped", "torch", "dali", "jpeg", mode="epochs"),
    Peer("ffcv, as shipped", "ffcv", "ffcv", "jpeg", "jpeg", converts=True, mode="epochs"),
    Peer("litdata, as shipped", "torch", "litdata", "jpeg", converts=True, mode="epochs"),
    Peer("webdataset, as shipped", "torch", "webdataset", "jpeg", converts=True, mode="epochs"),
    Peer("mosaic, as shipped", "torch", "mosaic", "jpeg", converts=True, mode="epochs"),
    Peer("hf-datasets, as shipped", "hf", "hf_datasets", "jpeg", converts=True, mode="epochs"),
    Peer("torchdata-nodes, as shipped", "torch", "torchdata_nodes", "jpeg", mode="epochs"),
    Peer("spdl, as shipped", "torch", "spdl", "jpeg", mode="epochs"),
    Peer("grain, as shipped", "grain", "grain", "jpeg", mode="epochs"),
    Peer("tf-data, as shipped", "tf", "tf_data", "jpeg", converts=True, mode="epochs"),
)


Entry = tuple[Peer, str, str]  # peer, task, output


class PeerFailed(Exception):
    """A peer gave no figure; the message is the reason shown in the result."""


def python_of(peer: Peer, directory: Path) -> Path:
    if not peer.venv:
        return Path(sys.executable)
    python = directory / f"peers-{peer.venv}" / "bin" / "python"
    failed = directory / f"peers-{peer.venv}.failed"
    if failed.exists():
        raise PeerFailed(f"did not install: {' '.join(failed.read_text().split())}")
    if not python.exists():
        raise PeerFailed(f"{python} is not there; run benchmarks/loaders/setup_peers.sh {directory}")
    return python


def last_words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["no message"])[-1][:300]


def call_peer(command: list[str], timeout_seconds: float, environment: dict[str, str] | None = None) -> str:
    """Its standard output. Runs in a session of its own, so that a timeout ends its workers too."""
    process = subprocess.Popen(
        command, cwd=HERE, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"no result after {timeout_seconds:.0f} s") from None
    finally:
        end_session(process)
    if process.returncode:
        raise PeerFailed(f"exit code {process.returncode}: {last_words(stderr)}")
    return stdout


def end_session(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody of it is left
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def peer_command(peer: Peer, task: str, output: str, args: argparse.Namespace) -> list[str]:
    few, large = is_few(peer), task == "large224"
    data = args.dir / "data" / (few_name(task) if few else DATA_OF_TASK[task])
    options = {
        "data": data, "work": args.dir / work_name(peer, task), "task": "rrc224" if large else task, "output": output,
        "batch": LARGE_BATCH if large else args.batch, "workers": args.workers, "mode": peer.mode,
    }  # fmt: skip
    command = [str(python_of(peer, args.dir)), "-m", f"peers.{peer.module}", "--seconds", str(args.seconds)]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [*command, "--variant", peer.variant] if peer.variant else command


def is_few(peer: Peer) -> bool:
    """Whether it reads the small part of a dataset."""
    return peer.mode == "epochs" and bool(peer.venv)


def few_name(task: str) -> str:
    return f"{DATA_OF_TASK[task]}-{SHIPPED_SAMPLES[task]}"


def work_name(peer: Peer, task: str) -> str:
    return "work-few" if is_few(peer) else "work-large" if task == "large224" else "work"


def measure_once(peer: Peer, task: str, output: str, args: argparse.Namespace) -> dict[str, Any]:
    """In a fresh process; flatout's finds an empty cache folder."""
    with tempfile.TemporaryDirectory(dir=args.dir) as empty:
        environment = {} if peer.venv else {"XDG_CACHE_HOME": empty}
        command = peer_command(peer, task, output, args)
        stdout = call_peer(command, START_TIMEOUT_SECONDS + 5 * args.seconds, environment)
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerFailed("it printed no result")
    own = {"peer": peer.name, "task": task, "mode": peer.mode, "kind": peer.kind}
    return json.loads(lines[-1]) | own


def wait_for_quiet(max_seconds: float) -> None:
    """Until other processes leave the cores alone for a moment, or patience ends."""
    deadline = time.monotonic() + max_seconds
    while time.monotonic() < deadline:
        before = busy_cpu_seconds()
        time.sleep(QUIET_SECONDS)
        if busy_cpu_seconds() - before < QUIET_SHARE * QUIET_SECONDS * os.cpu_count():
            return


def prepare_data(directory: Path, photos: int, tar: Path) -> None:
    if not (directory / "data/photos/about.json").exists():
        print(f"making {photos} photos in {directory}/data/photos (about 3 minutes)", flush=True)
        make_photos(tar, directory / "data/photos", photos, val_photos=photos // 16, seed=0, processes=os.cpu_count())
    if not (directory / "data/tiny/unpacked.json").exists():
        unpack_tiny(tar, directory / "data/tiny")
    if not (directory / "data/large/val").exists():
        print(f"making {LARGE_PHOTOS} photos of 12 megapixels in {directory}/data/large", flush=True)
        make_folder(directory / "data/large", LARGE_PHOTOS, 4000, 3000, "JPEG", quality=90)
    for task in SHIPPED_SAMPLES:
        link_few(directory / "data" / DATA_OF_TASK[task], directory / "data" / few_name(task), SHIPPED_SAMPLES[task])
    for name in ("work", "work-few", "work-large"):
        (directory / name).mkdir(exist_ok=True)


def link_few(whole: Path, part: Path, samples: int) -> None:
    """A part of the training files, spread over all of them, under the same names."""
    files = train_files(whole)[0]
    if part.exists() and len(train_files(part)[0]) == samples:
        return
    for number in range(samples):
        source = Path(files[number * len(files) // samples])
        target = part / source.relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        os.link(source, target)
    about = whole / "about.json"
    if about.exists():
        (part / "about.json").write_text(about.read_text())  # its JPEG quality, for peers that compress again


def convert_all(peers: list[Peer], tasks: list[str], args: argparse.Namespace) -> dict[tuple[str, str], str]:
    """Reasons of the (peer, task) whose conversion failed."""
    failed = {}
    for peer, task in product(peers, tasks):
        if not peer.converts or task not in peer.tasks or is_converted(peer, task, args.dir):
            continue  # asking the peer itself would import its libraries for nothing
        try:
            command = peer_command(peer, task, "uint8", args)
            print(call_peer([*command, "--convert-only"], CONVERT_TIMEOUT_SECONDS), end="", flush=True)
        except PeerFailed as error:
            failed[peer.name, task] = str(error)
            print(f"{peer.name}, {task}: {error}", flush=True)
    os.sync()  # else the first measurements share the disk with the conversions' write-back
    return failed


def is_converted(peer: Peer, task: str, directory: Path) -> bool:
    """Folders are named by the peers' own modules; a call that finds its work done costs its imports alone."""
    base = peer.name.partition(",")[0]
    names = ("flatout-pack",) if base == "pack" else (base, f"{base}-{peer.variant}")
    work = directory / work_name(peer, task)
    return any((work / f"{name}-{task}" / "convert_seconds").exists() for name in names)


def measured_quietly(peer: Peer, task: str, output: str, args: argparse.Namespace) -> dict[str, Any]:
    """The quieter of two turns where others disturbed the first."""
    wait_for_quiet(args.wait_for_quiet)
    first = measure_once(peer, task, output, args)
    if first["foreign_cpu_share"] <= args.max_foreign:
        return first
    wait_for_quiet(args.wait_for_quiet)
    second = measure_once(peer, task, output, args)
    return min(first, second, key=lambda result: result["foreign_cpu_share"]) | {"repeated": True}


def rate_of(result: dict[str, Any]) -> float:
    return result["opening_per_second" if result["mode"] == "window" else "epoch0_per_second"]


def measure_round(number: int, entries: list[Entry], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A result or a failure (which has a reason) for each entry, in an order of this round's own."""
    shuffled = random.Random(number).sample(entries, len(entries))  # no peer always follows the same other
    for index, (peer, task, output) in enumerate(shuffled, 1):
        label = f"round {number}/{args.rounds} {index}/{len(entries)} {peer.name} {task} {output}"
        if time.monotonic() > args.deadline:
            yield failure(peer, task, output, f"round {number}: left out, {args.most_minutes:g} minutes were over")
            continue
        try:
            result = measured_quietly(peer, task, output, args) | {"round": number}
            others = f"{result['foreign_cpu_share']:.0%} of the CPU taken by others"
            print(f"{label}: {rate_of(result):,.0f} images/s, {others}", flush=True)
            yield result
        except PeerFailed as error:
            print(f"{label}: FAILED, {error}", flush=True)
            yield failure(peer, task, output, f"round {number}: {error}")


def turns_of_round(number: int, entries: list[Entry], args: argparse.Namespace) -> list[Entry]:
    """Those whose turn it is: who has only one takes it in a round of its own, so that all rounds are about as long."""
    return [
        each
        for place, each in enumerate(entries)
        if args.only or not each[0].venv or each[0].name in EVERY_ROUND or place % args.rounds == number - 1
    ]


def failure(peer: Peer, task: str, output: str, reason: str) -> dict[str, str]:
    return {"peer": peer.name, "task": task, "output": output, "reason": reason}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=ROOT.parent / "bench", help="data, conversions, environments")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="these loaders only")
    parser.add_argument("--mode", choices=["window", "epochs"], help="only loaders at their best, or only as shipped")
    parser.add_argument("--tasks", nargs="+", choices=list(DATA_OF_TASK), default=list(DATA_OF_TASK))
    parser.add_argument("--outputs", nargs="+", choices=["float32", "uint8"], default=["uint8"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="of the window of a warm loader")
    parser.add_argument(
        "--max-foreign", type=float, default=0.1, help="share of the cores; a turn beyond it is repeated"
    )
    parser.add_argument("--most-minutes", type=float, default=25.0, help="turns that would begin later are left out")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--photos", type=int, default=4096)
    parser.add_argument("--tar", type=Path, default=TAR)
    parser.add_argument(
        "--wait-for-quiet", type=float, default=0.0, metavar="SECONDS", help="patience before each window"
    )
    args = parser.parse_args()
    args.dir = args.dir.resolve()
    return args


def write_results(run: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{run['date']}-loaders.md"
    target.with_suffix(".json").write_text(json.dumps(run, indent=1) + "\n")
    target.write_text(markdown(run))
    return target


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a stopped run ends its peer too
    args = parse_arguments()
    args.deadline = time.monotonic() + 60 * args.most_minutes  # data and conversions of a first run are in it
    prepare_data(args.dir, args.photos, args.tar)
    peers = [peer for peer in PEERS if (peer.name in args.only if args.only else peer.asked_for)]
    peers = [peer for peer in peers if args.mode in (None, peer.mode)]
    unable = convert_all(peers, args.tasks, args)
    entries = [
        (peer, task, output)
        for peer, task, output in product(peers, args.tasks, args.outputs)
        if task in peer.tasks and (output == "uint8" or peer.mode == "window")
    ]
    run = {
        "date": date.today().isoformat(),
        "command": own_command(),
        "commit": current_commit(),
        "machine": describe_machine(),
        **{key: getattr(args, key) for key in ("seconds", "batch", "workers", "max_foreign")},
        "few_samples": SHIPPED_SAMPLES,
        "large": {"photos": LARGE_PHOTOS, "batch": LARGE_BATCH},
        "started_unix": time.time(),
        "results": [],
        "failures": [
            failure(*each, unable[each[0].name, each[1]]) for each in entries if (each[0].name, each[1]) in unable
        ],
    }
    entries = [each for each in entries if (each[0].name, each[1]) not in unable]
    for number in range(1, args.rounds + 1):
        run["rounds"] = number
        for outcome in measure_round(number, turns_of_round(number, entries, args), args):
            run["failures" if "reason" in outcome else "results"].append(outcome)
            run["minutes"] = (time.time() - run["started_unix"]) / 60
            target = write_results(run, args.results)  # each time: a run takes half an hour, and may be ended
    print(f"written: {target}")


if __name__ == "__main__":
    main()
