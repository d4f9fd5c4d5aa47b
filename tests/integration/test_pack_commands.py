"""flatout data pack, unpack and stage as a user gives them: killed, on a full disk, from a bucket, with mistakes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flatout.cli.main import run
from flatout.config.schema import DataConfig
from flatout.data.source.dataset import open_dataset
from servers.faults import Faults, Rule
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy
from unit.cache.small_disk import SmallDisk, small_disk  # noqa: F401

SAMPLES = 60


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def refused(self, text: str) -> None:
        """One line, and the exit code of a user's mistake."""
        assert (self.code, self.err.count("\n")) == (2, 1), self
        assert text in self.err


Command = Callable[..., Said]


@pytest.fixture
def flatout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Give a command in this process."""

    def command(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["flatout", "data", *(str(word) for word in words)])
        try:
            run()
            code: object = 0
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return Said(code, *capsys.readouterr())

    return command


def run_apart(*words: object, before: str = "") -> Said:
    """Give a command in a process of its own; `before` is Python that runs ahead of it there."""
    script = f"{before}\nimport sys\nfrom flatout.cli.main import run\nsys.argv[0] = 'flatout'\nsys.exit(run())"
    command = [sys.executable, "-c", script, "data", *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number in range(SAMPLES):
        for split in ("train", "val") if number < 4 else ("train",):
            path = tmp_path / "data" / split / "ab"[number % 2] / f"{number:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = np.random.default_rng(number).integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(coarse).resize((120, 110)).save(path, quality=95)
    return tmp_path / "data"


def contents(path: Path | str) -> dict[str, bytes]:
    dataset = open_dataset(DataConfig(path=str(path)))
    splits = [split for split in (dataset.train, dataset.val) if split is not None]
    return {
        name: bytes(data)
        for split in splits
        for name, data in zip(split.names, split.read(np.arange(len(split))), strict=True)
    }


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- there and back ---------------------------------------------------------------------------------------------------


def test_pack_and_unpack(data: Path, tmp_path: Path) -> None:
    packed = run_apart("pack", data, tmp_path / "pack", "--json").json
    assert packed["samples"] == SAMPLES + 4
    assert packed["fingerprint"] == open_dataset(DataConfig(path=str(data))).fingerprint
    assert packed["bytes"] == sum(len(each) for each in files(tmp_path / "pack").values())
    assert contents(tmp_path / "pack") == contents(data)
    said = run_apart("unpack", tmp_path / "pack", tmp_path / "back")
    assert (said.code, said.out) == (0, f"wrote {SAMPLES + 4} files under {tmp_path / 'back'}\n")
    assert contents(tmp_path / "back") == contents(data)


def test_modes_and_mistakes(data: Path, tmp_path: Path, flatout: Command) -> None:
    assert flatout("pack", data, tmp_path / "small", "--mode", "resized", "--short-side", 32).code == 0
    assert flatout("pack", data, tmp_path / "decoded", "--mode", "decoded").code == 0
    flatout("unpack", tmp_path / "decoded", tmp_path / "x").refused("holds decoded pixels, not files")
    flatout("pack", data, tmp_path / "x", "--mode", "zip").refused("mode is one of original, resized, decoded")
    flatout("pack", data, tmp_path / "x", "--shard-mb", 0).refused("the sizes positive")
    flatout("pack", tmp_path / "absent", tmp_path / "x").refused("does not exist")
    flatout("pack", data, tmp_path / "small").refused("already holds a pack")
    (tmp_path / "file").write_text("in the way")
    flatout("pack", data, tmp_path / "file").refused("cannot write")
    flatout("unpack", tmp_path / "small", tmp_path / "file").refused("cannot write")


def test_a_damaged_sample_is_named_where_its_pixels_are_wanted(data: Path, tmp_path: Path, flatout: Command) -> None:
    (data / "train/a/010.jpg").write_bytes(b"no image")
    flatout("pack", data, tmp_path / "pack", "--mode", "decoded").refused("'train/a/010.jpg' cannot be decoded")
    assert flatout("pack", data, tmp_path / "original").code == 0


# --- killed -----------------------------------------------------------------------------------------------------------

SHARD_BYTES = 20_000
SMALL_SHARDS = f"""
import os, signal
import flatout.commands.pack as app
from flatout.data.source import pack_writer
from flatout.data.source.pack_writer import PackOptions
small, calls, real_pack = PackOptions(shard_bytes={SHARD_BYTES}), 0, app._pack
app._pack = lambda dataset, target, options, *rest: real_pack(dataset, target, small, *rest)
def dying(real, last):
    def call(*arguments):
        global calls
        calls += 1
        if calls > last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    return call
"""


def killed_at_sample(last: int) -> str:
    """A sample is hashed as it is written, and once more when its shard is read back."""
    return f"{SMALL_SHARDS}\npack_writer._digest = dying(pack_writer._digest, {last})"


@pytest.fixture
def whole(data: Path, tmp_path: Path) -> dict[str, bytes]:
    """The pack as an undisturbed command writes it."""
    assert run_apart("pack", data, tmp_path / "whole", before=SMALL_SHARDS).code == 0
    assert len(list((tmp_path / "whole").glob("train-*.data"))) > 5
    return files(tmp_path / "whole")


def test_a_killed_pack_goes_on_and_writes_no_shard_twice(data: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    pack, finished = tmp_path / "pack", dict[str, int]()
    for last_sample in (30, 70):
        assert run_apart("pack", data, pack, before=killed_at_sample(last_sample)).code == -9
        assert not (pack / "pack.json").exists()
        shards = {path.name: path.stat().st_mtime_ns for path in pack.glob("*.data")}
        assert {name: shards[name] for name in finished} == finished
        assert len(shards) > len(finished)
        finished = shards
    assert any(pack.glob("*.tmp"))  # the shard that was being written
    said = run_apart("pack", data, pack, before=SMALL_SHARDS)
    assert said.code == 0, said
    assert files(pack) == whole
    assert {name: (pack / name).stat().st_mtime_ns for name in finished} == finished


KILLED_AGAIN_AND_AGAIN = f"""{SMALL_SHARDS}
import sys
from pathlib import Path
from flatout.config.schema import DataConfig
from flatout.data.source.dataset import open_dataset
from flatout.data.source.pack_writer import write_pack
status, kills = 9, 0
while status == 9:
    child = os.fork()
    if child == 0:
        os.replace = dying(os.replace, kills)
        list(write_pack(open_dataset(DataConfig(path=sys.argv[1])), Path(sys.argv[2]), small))
        os._exit(0)
    status, kills = os.waitpid(child, 0)[1], kills + 1
    assert status == 0 or not os.path.exists(sys.argv[2] + "/pack.json")
print(status, kills)
"""


def test_a_pack_killed_before_many_a_rename_is_whole_in_the_end(
    data: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    command = [sys.executable, "-c", KILLED_AGAIN_AND_AGAIN, str(data), str(tmp_path / "pack")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    status, kills = map(int, done.stdout.split())
    assert status == 0
    assert kills > 5
    assert files(tmp_path / "pack") == whole


def test_a_killed_pack_does_not_take_other_data(data: Path, tmp_path: Path, flatout: Command) -> None:
    assert run_apart("pack", data, tmp_path / "pack", before=killed_at_sample(30)).code == -9
    flatout("pack", data, tmp_path / "pack").refused("an unfinished one of other data); choose an empty folder")


# --- no room ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_said_and_the_same_command_goes_on(
    data: Path, whole: dict[str, bytes], small_disk: SmallDisk, flatout: Command  # noqa: F811
) -> None:  # fmt: skip
    disk = small_disk("200k")
    assert sum(len(each) for each in whole.values()) > 200_000
    flatout("pack", data, disk / "pack").refused("free some space, choose another folder, or take fewer classes")
    assert not (disk / "pack").exists()
    unaware = f"{SMALL_SHARDS}\napp.free_bytes = lambda folder: 10**12"
    run_apart("pack", data, disk / "pack", before=unaware).refused("No space left on device")
    finished = {path.name: path.stat().st_mtime_ns for path in (disk / "pack").glob("*.data")}
    assert finished
    assert not any((disk / "pack").glob("train*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    assert run_apart("pack", data, disk / "pack", before=unaware).code == 0
    assert files(disk / "pack") == whole
    assert {name: (disk / "pack" / name).stat().st_mtime_ns for name in finished} == finished


def test_unpacking_onto_a_full_disk_is_said(
    data: Path, tmp_path: Path, small_disk: SmallDisk, flatout: Command  # noqa: F811
) -> None:  # fmt: skip
    assert flatout("pack", data, tmp_path / "pack").code == 0
    flatout("unpack", tmp_path / "pack", small_disk("100k") / "back").refused("No space left on device")


# --- from a bucket ----------------------------------------------------------------------------------------------------


@pytest.fixture
def uploaded(data: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The data in a bucket, and the environment that leads to it."""
    for path in data.rglob("*.jpg"):
        bucket.write(str(path.relative_to(data)), path.read_bytes())
    names = {"endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID"}
    for option, variable in (names | {"secret_access_key": "AWS_SECRET_ACCESS_KEY"}).items():
        monkeypatch.setenv(variable, bucket.options[option])
    return bucket


def test_staging_fetches_each_object_once(
    data: Path, tmp_path: Path, uploaded: Bucket, flatout: Command, fault_proxy: FaultProxy
) -> None:
    staged = flatout("stage", uploaded.url, tmp_path / "staged", "--json").json
    asked = fault_proxy.counts()
    assert staged["samples"] == staged["requests"] == SAMPLES + 4
    assert SAMPLES + 4 <= asked.requests <= SAMPLES + 4 + 6  # one look, a manifest that is not there, a few listings
    assert staged["fingerprint"] == open_dataset(DataConfig(path=str(data))).fingerprint
    assert contents(tmp_path / "staged") == contents(data)
    assert staged["requests_and_month_usd"] > 0
    assert f"copied {SAMPLES + 4} objects" in staged["advice"]


def test_staging_a_part(tmp_path: Path, uploaded: Bucket, flatout: Command) -> None:
    words = ("--classes", 1, "--samples-per-class", 5, "--json")
    assert flatout("stage", uploaded.url, tmp_path / "part", *words).json["samples"] == 5 + 2
    assert sorted(contents(tmp_path / "part")) == sorted(
        [f"train/a/{number:03d}.jpg" for number in range(0, 10, 2)] + ["val/a/000.jpg", "val/a/002.jpg"]
    )


def test_a_killed_copy_asks_only_for_what_it_lacks(
    data: Path, tmp_path: Path, uploaded: Bucket, fault_proxy: FaultProxy
) -> None:
    words, staged = ("stage", uploaded.url, tmp_path / "staged"), tmp_path / "staged"
    assert run_apart(*words, before=killed_at_sample(70)).code == -9
    finished = {path.name: path.stat().st_mtime_ns for path in staged.glob("*.data")}
    kept = sum((staged / name).stat().st_size for name in finished)
    assert kept > 0
    before = fault_proxy.counts().body_bytes
    said = run_apart(*words, before=SMALL_SHARDS)
    assert said.code == 0, said
    total, listings = sum(len(each) for each in contents(data).values()), 40_000
    assert fault_proxy.counts().body_bytes - before < total - kept + listings
    assert contents(staged) == contents(data)
    assert {name: (staged / name).stat().st_mtime_ns for name in finished} == finished


def test_staging_through_a_bad_line_is_exact(
    data: Path, tmp_path: Path, uploaded: Bucket, flatout: Command, fault_proxy: FaultProxy
) -> None:
    bad = [
        Rule("truncate", share=0.1, objects_only=True, after_bytes=300),
        Rule("throttle", share=0.1, objects_only=True),
    ]
    fault_proxy.set(Faults(rules=bad, seed=1))
    assert flatout("stage", uploaded.url, tmp_path / "staged").code == 0
    assert set(fault_proxy.counts().hits) == {"truncate", "throttle"}
    assert contents(tmp_path / "staged") == contents(data)


@pytest.mark.parametrize(("suffix", "secret"), [("-that-is-not-there", None), ("", "wrong"), ("/no/such/prefix", None)])
def test_a_bucket_that_cannot_be_used_is_one_line(
    tmp_path: Path, uploaded: Bucket, flatout: Command, monkeypatch: pytest.MonkeyPatch, suffix: str, secret: str | None
) -> None:
    if secret is not None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    said = flatout("stage", uploaded.url + suffix, tmp_path / "staged")
    assert said.code != 0
    assert said.err.count("\n") == 1, said.err
    assert uploaded.url + suffix in said.err
    assert not (tmp_path / "staged").exists()
