"""Measure every image loader in one interleaved run, flatout's beside its peers, and write a dated result.

`make_photos.py` and `unpack_tiny.py` fill DIR/data, `setup_peers.sh DIR` makes the peers' environments; conversions to
a peer's own format are done before the first round. A peer that fails is a line in the result, not the end of the run.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import psutil
from contract import busy_cpu_seconds
from make_photos import make_photos
from report import markdown
from unpack_tiny import TAR, unpack_tiny

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA_OF_TASK = {"rrc224": "photos", "tiny64": "tiny"}
CONVERT_TIMEOUT_SECONDS = 1800
START_TIMEOUT_SECONDS = 300  # imports, compilation, one pass to fill a cache and the warm-up
QUIET_SHARE = 0.05


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


PEERS = (
    Peer("plain", "torch", "plain", "jpeg"),
    Peer("handtuned", "torch", "handtuned", "jpeg"),
    Peer("torchvision-v2", "torch", "torchvision_v2", "jpeg"),
    Peer("dali", "torch", "dali", "jpeg"),
    Peer("ffcv-jpeg", "ffcv", "ffcv", "jpeg", "jpeg", converts=True),
    Peer("litdata", "torch", "litdata", "jpeg", converts=True),
    Peer("webdataset", "torch", "webdataset", "jpeg", converts=True),
    Peer("mosaic", "torch", "mosaic", "jpeg", converts=True),
    Peer("hf-datasets", "hf", "hf_datasets", "jpeg", converts=True),
    Peer("torchdata-nodes", "torch", "torchdata_nodes", "jpeg"),
    Peer("spdl", "torch", "spdl", "jpeg"),
    Peer("grain", "grain", "grain", "jpeg"),
    Peer("tf-data", "tf", "tf_data", "jpeg", converts=True),
    Peer("ffcv-raw", "ffcv", "ffcv", "decoded", "raw", converts=True),
    Peer("gather", "torch", "gather", "ready-made", converts=True),
    Peer("flatout-folder", "", "flatout", "flatout jpeg", "folder"),
    Peer("flatout-pack", "", "flatout", "flatout jpeg", "pack", converts=True),
    Peer("flatout-fallback", "", "flatout", "flatout jpeg", "fallback"),
    Peer("flatout-cache", "", "flatout", "flatout decoded", "cache"),
    Peer("flatout-pack-decoded", "", "flatout", "flatout decoded", "pack-decoded", converts=True),
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


def call_peer(command: list[str], timeout_seconds: float) -> str:
    """Its standard output. Runs in a session of its own, so that a timeout ends its workers too."""
    process = subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
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
    data, work = args.dir / "data" / DATA_OF_TASK[task], args.dir / "work"
    options = {"data": data, "work": work, "task": task, "output": output, "batch": args.batch, "workers": args.workers}
    command = [str(python_of(peer, args.dir)), "-m", f"peers.{peer.module}", "--seconds", str(args.seconds)]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [*command, "--variant", peer.variant] if peer.variant else command


def measure_once(peer: Peer, task: str, output: str, args: argparse.Namespace) -> dict[str, Any]:
    stdout = call_peer(peer_command(peer, task, output, args), START_TIMEOUT_SECONDS + 5 * args.seconds)
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerFailed("it printed no result")
    return json.loads(lines[-1]) | {"kind": peer.kind}


def wait_for_quiet(max_seconds: float) -> None:
    """Until other processes leave the cores alone for a second, or patience ends."""
    deadline = time.monotonic() + max_seconds
    while time.monotonic() < deadline:
        before = busy_cpu_seconds()
        time.sleep(1)
        if busy_cpu_seconds() - before < QUIET_SHARE * os.cpu_count():
            return


def prepare_data(directory: Path, photos: int, tar: Path) -> None:
    if not (directory / "data/photos/about.json").exists():
        print(f"making {photos} photos in {directory}/data/photos (about 3 minutes)", flush=True)
        make_photos(tar, directory / "data/photos", photos, val_photos=photos // 16, seed=0, processes=os.cpu_count())
    if not (directory / "data/tiny/unpacked.json").exists():
        unpack_tiny(tar, directory / "data/tiny")
    (directory / "work").mkdir(exist_ok=True)


def convert_all(peers: list[Peer], tasks: list[str], args: argparse.Namespace) -> dict[tuple[str, str], str]:
    """Reasons of the (peer, task) whose conversion failed."""
    failed = {}
    for peer, task in product(peers, tasks):
        if not peer.converts or (args.dir / "work" / f"{peer.name}-{task}" / "convert_seconds").exists():
            continue  # asking the peer itself would import its libraries for nothing
        try:
            command = peer_command(peer, task, "uint8", args)
            print(call_peer([*command, "--convert-only"], CONVERT_TIMEOUT_SECONDS), end="", flush=True)
        except PeerFailed as error:
            failed[peer.name, task] = str(error)
            print(f"{peer.name}, {task}: {error}", flush=True)
    os.sync()  # else the first measurements share the disk with the conversions' write-back
    return failed


def measure_round(number: int, entries: list[Entry], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A result or a failure (which has a reason) for each entry, in an order of this round's own."""
    shuffled = random.Random(number).sample(entries, len(entries))  # no peer always follows the same other
    for index, (peer, task, output) in enumerate(shuffled, 1):
        label = f"round {number}/{args.rounds} {index}/{len(entries)} {peer.name} {task} {output}"
        wait_for_quiet(args.wait_for_quiet)
        try:
            result = measure_once(peer, task, output, args) | {"round": number}
            others = f"{result['foreign_cpu_share']:.0%} of the CPU taken by others"
            print(f"{label}: {result['images_per_second']:,.0f} images/s, {others}", flush=True)
            yield result
        except PeerFailed as error:
            print(f"{label}: FAILED, {error}", flush=True)
            yield failure(peer, task, output, f"round {number}: {error}")


def failure(peer: Peer, task: str, output: str, reason: str) -> dict[str, str]:
    return {"peer": peer.name, "task": task, "output": output, "reason": reason}


def describe_machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "n/a")
    memory_gib = psutil.virtual_memory().total / 2**30
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {system}"


def current_commit() -> str:
    answer = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return answer.stdout.strip() or "n/a"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=ROOT.parent / "bench", help="data, conversions, environments")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="these loaders only")
    parser.add_argument("--tasks", nargs="+", choices=list(DATA_OF_TASK), default=list(DATA_OF_TASK))
    parser.add_argument("--outputs", nargs="+", choices=["float32", "uint8"], default=["float32", "uint8"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
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
    prepare_data(args.dir, args.photos, args.tar)
    peers = [peer for peer in PEERS if not args.only or peer.name in args.only]
    unable = convert_all(peers, args.tasks, args)
    entries = list(product(peers, args.tasks, args.outputs))
    run = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
        "commit": current_commit(),
        "machine": describe_machine(),
        **{key: getattr(args, key) for key in ("seconds", "batch", "workers")},
        "results": [],
        "failures": [
            failure(*each, unable[each[0].name, each[1]]) for each in entries if (each[0].name, each[1]) in unable
        ],
    }
    entries = [each for each in entries if (each[0].name, each[1]) not in unable]
    for number in range(1, args.rounds + 1):
        run["rounds"] = number
        for outcome in measure_round(number, entries, args):
            run["failures" if "reason" in outcome else "results"].append(outcome)
            target = write_results(run, args.results)  # each time: a run takes an hour, and may be ended
    print(f"written: {target}")


if __name__ == "__main__":
    main()
