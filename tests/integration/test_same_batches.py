"""A batch is a pure function: the same bytes from every store, pack, cache, stage, pool and decoder."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flatout.config.schema import DataConfig
from flatout.data.batch import Batch
from flatout.data.loading.loader import Loader, open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.decode import native
from flatout.data.pixels.views import SHIPPED, View
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.pack_writer import PackOptions, unpack, write_pack
from servers.proxy_client import FaultProxy
from servers.s3 import S3Server

EVERYTHING = View(
    "everything", crop="random-resized", size=48, flip=0.5, colour_jitter=(0.4, 0.4, 0.4), trivial_augment=True,
    erase=0.5, mixup=0.2, cutmix=1.0,
)  # fmt: skip
VIEWS = {view.name: view for view in (*(SHIPPED[name] for name in ("train-64", "train-224", "eval-224")), EVERYTHING)}
BATCH_SIZE, EPOCHS = 7, 2
S3_VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip


# --- a dataset of everything that is not a plain JPEG -----------------------------------------------------------------


def picture(seed: int, width: int, height: int, mode: str = "RGB") -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def turned(seed: int, orientation: int) -> bytes:
    image = picture(seed, 90, 60)
    exif = image.getexif()
    exif[0x0112] = orientation
    return saved(image, exif=exif)


def odd_files(with_bad: bool = True) -> dict[str, bytes]:
    deep = Image.fromarray(np.random.default_rng(9).integers(0, 2**16, (50, 70), np.uint16))
    samples = {
        "a/grey.jpg": saved(picture(1, 80, 80, "L")),
        "a/cmyk.jpg": saved(picture(2, 100, 70, "CMYK")),
        "a/progressive.jpg": saved(picture(3, 240, 160), progressive=True, quality=85),
        "a/png.JPEG": saved(picture(4, 64, 64), "PNG"),
        "a/alpha.png": saved(picture(5, 70, 50, "RGBA"), "PNG"),
        "a/palette.png": saved(picture(6, 60, 61).convert("P"), "PNG"),
        "a/deep.png": saved(deep, "PNG"),
        "a/wide.jpg": saved(picture(7, 501, 13)),
        "a/tall.jpg": saved(picture(8, 3, 333)),
        "a/point.jpg": saved(picture(9, 1, 1)),
        "a/one high.png": saved(picture(10, 200, 1), "PNG"),
        "b/444.jpg": saved(picture(11, 301, 257), subsampling=0, quality=95),
        "b/422.jpg": saved(picture(12, 255, 311), subsampling=1),
        "b/420.jpg": saved(picture(13, 499, 375), subsampling=2),
        "b/restarts.jpg": saved(picture(14, 130, 90), restart_marker_blocks=3),
        "b/64.jpg": saved(picture(15, 64, 64)),
        "b/224.jpg": saved(picture(16, 224, 224)),
        "b/ünï code\n.jpg": saved(picture(17, 99, 101)),
        **{f"b/turned-{orientation}.jpg": turned(20 + orientation, orientation) for orientation in (2, 3, 6, 8)},
        **{f"{'ab'[seed % 2]}/plain-{seed}.jpg": saved(picture(seed, 60 + seed, 120 - seed)) for seed in range(30, 40)},
    }
    if with_bad:
        samples["a/torn.jpg"] = samples["b/420.jpg"][: len(samples["b/420.jpg"]) // 2]
        samples["b/empty.jpg"] = b""
    files = {f"train/{name}": data for name, data in samples.items()}
    return files | {f"val/{name}/{number}.jpg": saved(picture(number, 70, 80)) for name in "ab" for number in range(3)}


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"outer/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


# --- what is compared -------------------------------------------------------------------------------------------------


def digest(batch: Batch) -> str:
    mix = [] if batch.mix is None else [batch.mix.partner, batch.mix.keep, batch.mix.box]
    arrays = [batch.images.numpy(), batch.labels.numpy(), batch.sample_ids.numpy(), *mix]
    whole = hashlib.sha256(repr((batch.epoch, batch.index, batch.failures)).encode())
    for array in arrays:
        whole.update(repr((array.shape, array.dtype)).encode() + array.tobytes())
    return whole.hexdigest()


def make_loader(path: str, view: str, workers: int, **data: Any) -> Loader:
    config = DataConfig(path=path, **{"cache": "off", "stage": "off", "max_quarantine_share": 0.5, **data})
    recipe = BatchPlan(open_dataset(config).train, VIEWS[view], seed=3, batch_size=BATCH_SIZE)
    return open_loader(recipe, config, workers)


def epochs(path: str, view: str, workers: int = 2, count: int = EPOCHS, **data: Any) -> list[list[str]]:
    with make_loader(path, view, workers, **data) as loader:
        return [[digest(batch) for batch in loader.epoch(epoch)] for epoch in range(count)]


@dataclass(frozen=True)
class Sources:
    paths: dict[str, str]
    expected: dict[tuple[str, str], list[list[str]]]
    """By kind of dataset and view: digests of two epochs, read from a folder by the calling thread alone."""

    def check(self, source: str, view: str, **options: Any) -> None:
        kind = "clean" if source.startswith("clean") else "odd"
        assert epochs(self.paths[source], view, **options) == self.expected[kind, view]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Sources:
    root = tmp_path_factory.mktemp("sources")
    paths = {
        "folder": write_files(root / "folder", odd_files()),
        "tar": write_tar(root / "odd.tar", odd_files()),
        "clean folder": write_files(root / "clean", odd_files(with_bad=False)),
    }

    def pack(source: str, name: str, options: PackOptions) -> Path:
        list(write_pack(opened(paths[source]), root / name, options))
        return root / name

    paths["pack"] = pack("folder", "pack", PackOptions(shard_bytes=60_000))
    paths["pack of the tar"] = pack("tar", "tar-pack", PackOptions())
    paths["resized pack"] = pack("folder", "resized", PackOptions("resized", short_side=48, shard_bytes=60_000))
    paths["clean decoded pack"] = pack("clean folder", "decoded", PackOptions("decoded", shard_bytes=10**6))
    list(unpack(opened(paths["pack"]), root / "unpacked"))
    paths["unpacked"] = root / "unpacked"
    urls = {name: str(path) for name, path in paths.items()}
    for name in ("pack", "resized pack", "clean decoded pack"):
        bucket = f"same-{name.replace(' ', '-')}"
        write_files(Path(s3_server.root) / bucket, {path.name: path.read_bytes() for path in paths[name].iterdir()})
        urls[f"{name} on S3"] = f"s3://{bucket}"
    write_files(Path(s3_server.root) / "same-objects", _as_on_s3(odd_files()))
    urls["objects on S3"] = "s3://same-objects"
    urls["folder as on S3"] = str(write_files(root / "as-on-s3", _as_on_s3(odd_files())))
    expected = {
        (kind, view): epochs(urls[folder], view, workers=0)
        for kind, folder in (("odd", "folder"), ("clean", "clean folder"))
        for view in VIEWS
    }
    return Sources(urls, expected)


def _as_on_s3(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """rclone serves a newline in a name as its picture, which is another name: objects go without one."""
    return {name.replace("\n", " "): data for name, data in files.items()}


def opened(path: str | Path) -> Dataset:
    return open_dataset(DataConfig(path=str(path)))


@pytest.fixture(autouse=True)
def _surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, fault_proxy: FaultProxy
) -> None:
    """A cache folder of its own, and the S3 server as the environment's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for option, variable in S3_VARIABLES.items():
        monkeypatch.setenv(variable, s3_server.options(fault_proxy.endpoint)[option])


# --- the same from everywhere -----------------------------------------------------------------------------------------


def test_the_dataset_is_as_odd_as_it_should_be(sources: Sources) -> None:
    with make_loader(sources.paths["folder"], "train-224", 0) as loader:
        batches = list(loader.epoch(0))
    assert sorted(failure.name for batch in batches for failure in batch.failures) == [
        "train/a/torn.jpg",
        "train/b/empty.jpg",
    ]
    ids = np.concatenate([batch.sample_ids.numpy() for batch in batches])
    assert len(set(ids)) == len(ids) == loader.samples - 2
    assert len({tuple(each) for each in sources.expected["odd", "train-64"]}) == EPOCHS


def test_fingerprints_are_equal(sources: Sources) -> None:
    prints = {name: opened(path).fingerprint for name, path in sources.paths.items()}
    odd = {name for name in prints if not name.startswith("clean")} - {"objects on S3", "folder as on S3"}
    assert {prints[name] for name in odd} == {prints["folder"]}
    assert prints["objects on S3"] == prints["folder as on S3"] != prints["folder"]
    assert prints["clean folder"] == prints["clean decoded pack"] == prints["clean decoded pack on S3"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "source", ["folder", "tar", "pack", "pack of the tar", "unpacked", "pack on S3", "clean decoded pack",
               "clean decoded pack on S3"]
)  # fmt: skip
def test_from_every_store(sources: Sources, source: str, view: str) -> None:
    sources.check(source, view)


@pytest.mark.parametrize("view", VIEWS)
def test_from_objects_on_s3(sources: Sources, view: str) -> None:
    expected = epochs(sources.paths["folder as on S3"], view, workers=0)
    assert epochs(sources.paths["objects on S3"], view) == expected


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_with_any_number_of_threads(sources: Sources, workers: int, view: str) -> None:
    sources.check("folder", view, workers=workers, worker_kind="thread")
    sources.check("clean decoded pack", view, workers=workers, worker_kind="thread")


PROCESSES = [(1, "folder", view) for view in VIEWS] + [
    (2, "tar", "everything"), (4, "pack", "train-224"), (2, "clean decoded pack", "train-64"),
    (2, "clean decoded pack", "everything"), (2, "pack on S3", "train-224"),
]  # fmt: skip


@pytest.mark.parametrize(("workers", "source", "view"), PROCESSES)
def test_with_worker_processes(sources: Sources, workers: int, source: str, view: str) -> None:
    sources.check(source, view, workers=workers, worker_kind="process")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", ["folder", "pack", "pack on S3"])
def test_from_a_cache_in_memory(sources: Sources, source: str, workers: int, view: str) -> None:
    with make_loader(sources.paths[source], view, workers, cache="memory") as loader:
        for epoch in (0, 1, 0, 1):  # the second time from the cache
            assert [digest(batch) for batch in loader.epoch(epoch)] == sources.expected["odd", view][epoch]
        assert loader.stages.cache_hits > loader.samples


@pytest.mark.parametrize("view", VIEWS)
def test_from_a_cache_on_disk(sources: Sources, view: str) -> None:
    for source in ("pack", "folder", "pack", "folder"):  # filled, reopened
        with make_loader(sources.paths[source], view, 2, cache="disk") as loader:
            for epoch in (0, 1, 0):
                assert [digest(batch) for batch in loader.epoch(epoch)] == sources.expected["odd", view][epoch]
    assert loader.stages.cache_misses <= 2 * 3 * 2  # only what cannot be decoded is read again


@pytest.mark.parametrize("cache", ["off", "memory", "disk"])
@pytest.mark.parametrize("view", VIEWS)
def test_from_a_stage(sources: Sources, fault_proxy: FaultProxy, view: str, cache: str) -> None:
    expected = epochs(sources.paths["folder as on S3"], view, workers=0)
    for attempt in range(2):  # filled, reopened
        with make_loader(sources.paths["objects on S3"], view, 2, cache=cache, stage="auto") as loader:
            assert loader.notes[0].startswith("stage: ")
            before = fault_proxy.counts().requests
            assert [[digest(batch) for batch in loader.epoch(epoch)] for epoch in range(EPOCHS)] == expected
        assert attempt == 0 or fault_proxy.counts().requests == before


@pytest.mark.parametrize("view", VIEWS)
def test_from_a_staged_pack(sources: Sources, view: str) -> None:
    for source in ("pack on S3", "clean decoded pack on S3", "pack on S3", "clean decoded pack on S3"):
        sources.check(source, view, stage="auto")


def test_from_the_middle_of_an_epoch(sources: Sources) -> None:
    for source, options in [("folder", {}), ("pack", {"cache": "memory"}), ("tar", {"worker_kind": "process"})]:
        with make_loader(sources.paths[source], "everything", 2, **options) as loader:
            for start in (3, 0, 2):
                found = [digest(batch) for batch in loader.epoch(1, start)]
                assert found == sources.expected["odd", "everything"][1][start:]


# --- with and without the compiled decoder ----------------------------------------------------------------------------

CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((view, source, {"workers": 0}) for view in VIEWS for source in ("folder", "clean decoded pack")),
    ("train-224", "pack", {"workers": 2, "worker_kind": "thread"}),
    ("everything", "tar", {"workers": 0, "cache": "memory"}),
    ("everything", "folder", {"workers": 1, "worker_kind": "auto"}),
    ("train-224", "folder", {"workers": 2, "worker_kind": "auto"}),
]
CHILD = """
import json, sys
import numpy as np
sys.path[:0] = sys.argv[1:3]
from test_same_batches import CASES, pictures
from flatout.data.pixels.decode import native
assert native is None
paths = json.loads(sys.argv[3])
results = [pictures(paths[source], view, **options) for view, source, options in CASES]
np.savez(sys.argv[4], *(images for images, _ in results))
print(json.dumps([others for _, others in results]))
"""


def pictures(path: str, view: str, workers: int, **data: Any) -> tuple[np.ndarray, list[str]]:
    """The images of two epochs, and digests of everything else about their batches."""
    with make_loader(path, view, workers, **data) as loader:
        batches = [batch for epoch in range(EPOCHS) for batch in loader.epoch(epoch)]
        images = np.concatenate([batch.images.numpy() for batch in batches])
        return images, [digest(replace(batch, images=batch.images[:0])) for batch in batches]


@pytest.mark.skipif(native is None, reason="the compiled decoder is not built: everything ran without it")
def test_without_the_compiled_decoder(sources: Sources, tmp_path: Path) -> None:
    """The same batches, but for a 1 here and there where torch has resized; with colour operations, to the byte."""
    here, saved_to = Path(__file__).parent, tmp_path / "images.npz"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(here), str(here.parent), json.dumps(sources.paths), str(saved_to)],
        env={**os.environ, "FLATOUT_NATIVE": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.load(saved_to)
    for at, others in enumerate(json.loads(done.stdout)):
        view, source, _ = CASES[at]
        images, expected_others = pictures(sources.paths[source], view, workers=0)
        differences = np.abs(found[f"arr_{at}"].astype(int) - images)
        assert others == expected_others, (view, source)
        assert differences.max() <= (0 if view == "everything" else 1), (view, source)
        assert (differences > 0).mean() < 0.1, (view, source)


def test_a_sample_that_breaks_below_its_crop_is_left_out_of_every_epoch(tmp_path: Path) -> None:
    """Some crops never reach the damage, and a decoder that stops below the crop would not notice it."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8))
    broken = bytearray(saved(noise, quality=85))
    at = int(0.8 * len(broken))
    broken[at : at + 2] = b"\xff\xda"  # a second scan, where none may be
    root = write_files(tmp_path / "data", odd_files(with_bad=False) | {"train/a/broken.jpg": bytes(broken)})
    for options in ({}, {"cache": "memory"}, {"worker_kind": "process"}):
        with make_loader(str(root), "train-224", 1, **options) as loader:
            for epoch in range(8):
                failures = [failure.name for batch in loader.epoch(epoch) for failure in batch.failures]
                assert failures == ["train/a/broken.jpg"], (options, epoch)


# --- a resized pack has pixels of its own ------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_a_resized_pack_has_its_own_pixels_in_the_same_order(sources: Sources, view: str) -> None:
    with make_loader(sources.paths["folder"], view, 0) as loader:
        original = [batch for epoch in range(EPOCHS) for batch in loader.epoch(epoch)]
    with make_loader(sources.paths["resized pack"], view, 0) as loader:
        resized = [batch for epoch in range(EPOCHS) for batch in loader.epoch(epoch)]
    for one, two in zip(original, resized, strict=True):
        assert np.array_equal(one.sample_ids, two.sample_ids)
        assert np.array_equal(one.labels, two.labels)
        assert [failure.sample_id for failure in one.failures] == [failure.sample_id for failure in two.failures]
    assert any(not np.array_equal(one.images, two.images) for one, two in zip(original, resized, strict=True))


WAYS: dict[str, Callable[[Sources, str], list[list[str]]]] = {
    "processes": lambda sources, view: epochs(sources.paths["resized pack"], view, worker_kind="process"),
    "memory": lambda sources, view: epochs(sources.paths["resized pack"], view, cache="memory"),
    "S3": lambda sources, view: epochs(sources.paths["resized pack on S3"], view),
    "stage": lambda sources, view: epochs(sources.paths["resized pack on S3"], view, stage="auto"),
    "disk": lambda sources, view: epochs(sources.paths["resized pack"], view, cache="disk"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_resized_pack_is_the_same_however_it_is_read(sources: Sources, way: str) -> None:
    view = "everything"
    epochs(sources.paths["folder"], view, cache="disk")  # has the same fingerprint: must not get in the way
    epochs(sources.paths["pack on S3"], view, stage="auto")
    expected = epochs(sources.paths["resized pack"], view, workers=0)
    assert expected != sources.expected["odd", view]
    for _ in range(2):
        assert WAYS[way](sources, view) == expected


def test_another_seed_or_epoch_is_another_batch(sources: Sources) -> None:
    config = DataConfig(path=sources.paths["folder"], cache="off", max_quarantine_share=0.5)
    recipe = BatchPlan(open_dataset(config).train, VIEWS["everything"], seed=3, batch_size=BATCH_SIZE)
    seen = set()
    for seed in (3, 4):
        with open_loader(replace(recipe, seed=seed), config, 2) as loader:
            seen |= {digest(next(iter(loader.epoch(epoch)))) for epoch in range(3)}
    assert len(seen) == 6
