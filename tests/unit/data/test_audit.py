"""An audit finds what was planted, all of it and nothing else."""

import base64
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flatout.commands.audit import audit_data
from flatout.config.schema import DataConfig
from flatout.data.audit import examination as audit
from flatout.data.audit import findings as audit_findings
from flatout.data.audit.examination import examine, look_at, open_contents
from flatout.data.audit.findings import AuditFinding, describe, judge
from flatout.data.source.dataset import open_dataset
from flatout.data.source.pack_writer import PackOptions, write_pack
from flatout.errors import ConfigError, DataError
from flatout.reports.audit_page import audit_html, printable

CLASSES, TRAIN, VAL = ("ant", "bee", "cat"), 12, 2


def picture(seed: int, side: int = 24) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(width: int, height: int, bits: int, pixels: bytes) -> bytes:
    """A PNG of RGB that Pillow cannot write: 16 bits, or a header that promises more than there is."""

    def chunk(tag: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def turned_jpeg(seed: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(seed).resize((30, 20)), exif=exif)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset with nothing to complain about."""
    root, seed = tmp_path / "set", 0
    for split, count in (("train", TRAIN), ("val", VAL)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                seed += 1
                (root / split / name / f"{number}.jpg").write_bytes(encoded(picture(seed)))
    return root


def put(folder: Path, name: str, data: bytes) -> None:
    path = os.fsencode(folder) + b"/" + os.fsencode(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def audited(path: Path | str, limit: int | None = None) -> list[AuditFinding]:
    contents = open_contents(str(path))
    return judge(contents, examine(contents, limit))


def named(findings: list[AuditFinding]) -> dict[str, set[tuple[str, ...]]]:
    """AuditFinding -> the names of its examples; groups in order of name."""
    return {each.id: {tuple(sorted(example.names)) for example in each.examples} for each in findings}


LONG = "l" * 251 + ".jpg"
NOT_UTF8 = os.fsdecode(b"\xff\xfe.jpg")
GOOD = encoded(picture(1000))
SINGLES: dict[str, tuple[str, bytes]] = {
    "empty-file": ("train/ant/empty.jpg", b""),
    "bomb": ("train/ant/bomb.png", png(60000, 60000, 8, b"")),
    "mode-grey": ("train/ant/grey.jpg", encoded(picture(1001).convert("L"))),
    "mode-alpha": ("train/ant/alpha.png", encoded(picture(1002).convert("RGBA"), "PNG")),
    "mode-palette": ("train/ant/palette.gif", encoded(picture(1003), "GIF")),
    "mode-CMYK": ("train/bee/cmyk.jpg", encoded(picture(1004).convert("CMYK"))),
    "mode-16-bit": ("train/bee/deep.png", png(4, 4, 16, (b"\0" + b"\x12\x34" * 12) * 4)),
    "mode-bilevel": ("train/bee/bits.png", encoded(picture(1005).convert("1"), "PNG")),
    "mode-other": ("train/cat/float.tif", encoded(Image.fromarray(np.eye(9, dtype=np.float32)), "TIFF")),
    "exif-rotation": ("train/cat/turned.jpg", turned_jpeg(1006)),
    "wrong-extension": ("train/cat/png-named.JPEG", encoded(picture(1007), "PNG")),
    "copy-names": ("train/ant/x (1).jpg", encoded(picture(1008))),
    "odd-characters": ("train/ant/new\nline.jpg", encoded(picture(1009))),
    "not-unicode": (f"train/ant/{NOT_UTF8}", encoded(picture(1010))),
    "long-names": (f"train/bee/{LONG}", encoded(picture(1011))),
    "hidden-files": ("train/bee/._x.jpg", b"macOS"),
    "not-in-a-class": ("train/loose.jpg", encoded(picture(1012))),
    "other-files": ("README.md", b"# A dataset"),
}
BROKEN = {
    "train/ant/cut.jpg": GOOD[: len(GOOD) // 2],
    "train/bee/text.jpg": b"<html>404 not found</html>",
    "train/cat/cut.png": encoded(picture(1013), "PNG")[:400],
    "val/cat/text.jpg": b"<html>404 not found in val</html>",
}


def plant_broken(folder: Path) -> set[tuple[str, ...]]:
    for name, data in BROKEN.items():
        put(folder, name, data)
    return {(name,) for name in BROKEN}


def plant_copies(folder: Path) -> set[tuple[str, ...]]:
    put(folder, "train/ant/again.jpg", (folder / "train/ant/0.jpg").read_bytes())
    return {("train/ant/0.jpg", "train/ant/again.jpg")}


def plant_conflict(folder: Path) -> set[tuple[str, ...]]:
    put(folder, "train/bee/also-ant.jpg", (folder / "train/ant/1.jpg").read_bytes())
    return {("train/ant/1.jpg", "train/bee/also-ant.jpg")}


def plant_leak(folder: Path) -> set[tuple[str, ...]]:
    put(folder, "val/cat/seen.jpg", (folder / "train/cat/2.jpg").read_bytes())
    return {("train/cat/2.jpg", "val/cat/seen.jpg")}


def plant_mismatch(folder: Path) -> set[tuple[str, ...]]:
    for number in range(TRAIN):
        put(folder, f"train/dog/{number}.jpg", encoded(picture(2000 + number)))
    put(folder, "val/Dogs/1.jpg", encoded(picture(2100)))
    return {("dog",), ("Dogs",)}


def plant_empty_classes(folder: Path) -> set[tuple[str, ...]]:
    (folder / "train" / "nothing").mkdir()
    (folder / "val" / "nothing either").mkdir()
    return {("nothing",), ("nothing either",)}


def plant_few(folder: Path) -> set[tuple[str, ...]]:
    for number in range(3):
        put(folder, f"train/few/{number}.jpg", encoded(picture(3000 + number)))
    put(folder, "val/few/0.jpg", encoded(picture(3100)))
    return {("few",)}


def plant_similar(folder: Path) -> set[tuple[str, ...]]:
    names = ("Ice Cream", "ice_cream", "caf\u00e9", "cafe\u0301")
    for which, name in enumerate(names):
        for number in range(TRAIN):
            put(folder, f"train/{name}/{number}.jpg", encoded(picture(4000 + 20 * which + number)))
        put(folder, f"val/{name}/0.jpg", encoded(picture(4900 + which)))
    return {tuple(sorted(names[:2])), tuple(sorted(names[2:]))}


GROUPS: dict[str, Callable[[Path], set[tuple[str, ...]]]] = {
    "undecodable": plant_broken,
    "duplicates": plant_copies,
    "label-conflict": plant_conflict,
    "leak": plant_leak,
    "class-mismatch": plant_mismatch,
    "empty-class": plant_empty_classes,
    "few-samples": plant_few,
    "similar-classes": plant_similar,
}
OTHERS = {"unreadable", "imbalance", "one-class", "no-validation"}  # need a dataset of their own, below


def test_a_clean_dataset_has_no_findings(folder: Path) -> None:
    assert audited(folder) == []


def test_every_finding_is_planted_somewhere_here() -> None:
    assert set(audit_findings.TEXTS) == {*SINGLES, *GROUPS, *OTHERS}


@pytest.mark.parametrize("kind", SINGLES)
def test_one_planted_file_is_the_only_finding(folder: Path, kind: str) -> None:
    name, data = SINGLES[kind]
    put(folder, name, data)
    (finding,) = audited(folder)
    assert (finding.id, finding.count, finding.examples[0].names) == (kind, 1, (name,))
    assert finding.do
    assert finding.severity in ("problem", "warning", "note")


@pytest.mark.parametrize("kind", GROUPS)
def test_one_planted_group_is_the_only_finding(folder: Path, kind: str) -> None:
    planted = GROUPS[kind](folder)
    assert named(audited(folder)) == {kind: planted}


def test_everything_at_once_is_found_once(folder: Path) -> None:
    planted = {kind: plant(folder) for kind, plant in GROUPS.items()}
    for kind, (name, data) in SINGLES.items():
        put(folder, name, data)
        planted[kind] = {(name,)}
    findings = audited(folder)
    assert named(findings) == planted
    order = ["problem", "warning", "note"]
    assert [each.severity for each in findings] == sorted((each.severity for each in findings), key=order.index)


def test_a_tar_of_it_gives_the_same_findings(folder: Path) -> None:
    for kind, plant in GROUPS.items():
        if kind != "empty-class":  # folders without files are not among the members
            plant(folder)
    for name, data in SINGLES.values():
        put(folder, name, data)
    archive = folder.parent / "set.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, "set")
    from_tar = {
        kind: {tuple(name.removeprefix("set/") for name in names) for names in groups}
        for kind, groups in named(audited(archive)).items()
    }
    assert from_tar == named(audited(folder))


def test_a_symlink_loop_shows_no_file_twice(folder: Path) -> None:
    (folder / "train" / "ant" / "loop").symlink_to(folder, target_is_directory=True)
    assert audited(folder) == []


def test_the_reason_is_the_one_training_gives(folder: Path) -> None:
    plant_broken(folder)
    (finding,) = audited(folder)
    reasons = {example.names[0]: example.detail for example in finding.examples}
    assert "truncated" in reasons["train/ant/cut.jpg"].lower()
    assert reasons["train/bee/text.jpg"] == "not an image: starts with b'<html>40'"


def test_training_refuses_what_the_audit_reports(folder: Path) -> None:
    plant_mismatch(folder)
    with pytest.raises(DataError):
        open_dataset(DataConfig(path=str(folder)))
    (finding,) = audited(folder)
    assert finding.severity == "problem"
    assert {example.names[0]: example.detail for example in finding.examples} == {
        "dog": "only in train",
        "Dogs": "only in val",
    }


def test_one_group_can_be_conflict_leak_and_copy(folder: Path) -> None:
    same = (folder / "train/ant/0.jpg").read_bytes()
    for name in ("train/ant/b.jpg", "train/bee/c.jpg", "val/cat/d.jpg", "val/cat/e.jpg"):
        put(folder, name, same)
    counts = {finding.id: finding.count for finding in audited(folder)}
    assert counts == {"label-conflict": 5, "leak": 2, "duplicates": 2}


def test_empty_files_are_not_copies_of_each_other(folder: Path) -> None:
    for name in ("train/ant/e.jpg", "train/bee/e.jpg", "val/bee/e.jpg"):
        put(folder, name, b"")
    assert {finding.id: finding.count for finding in audited(folder)} == {"empty-file": 3}


def test_a_file_that_vanished_cannot_be_read(folder: Path) -> None:
    contents = open_contents(str(folder))
    (folder / "train/ant/0.jpg").unlink()
    (finding,) = judge(contents, examine(contents))
    assert (finding.id, finding.count) == ("unreadable", 1)


def test_a_file_too_large_to_be_an_image_is_not_read(folder: Path) -> None:
    with (folder / "train/ant/huge.jpg").open("wb") as file:
        file.truncate(2**40)  # sparse: takes no room
    tracemalloc.start()
    (finding,) = audited(folder)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert (finding.id, finding.examples[0].detail) == ("bomb", "1.1 TB file")


def test_a_small_class_beside_a_large_one(folder: Path) -> None:
    for number in range(10 * TRAIN):
        put(folder, f"train/cat/more-{number}.jpg", encoded(picture(5000 + number, 8)))
    (finding,) = audited(folder)
    assert (finding.id, finding.count) == ("imbalance", 2)
    assert named([finding]) == {"imbalance": {("ant",), ("bee",)}}


def test_no_validation_split_and_one_class(tmp_path: Path) -> None:
    for number in range(TRAIN):
        put(tmp_path, f"ant/{number}.jpg", encoded(picture(number)))
    assert {finding.id for finding in audited(tmp_path)} == {"no-validation", "one-class"}


def test_names_that_only_look_alike_to_a_machine(tmp_path: Path) -> None:
    for which, name in enumerate(("1-1", "11", "-1", "1", "2 1", "21")):
        for number in range(TRAIN):
            put(tmp_path, f"{name}/{number}.jpg", encoded(picture(20 * which + number)))
    assert {finding.id for finding in audited(tmp_path)} == {"no-validation"}


def test_the_original_tiny_imagenet_layout(tmp_path: Path) -> None:
    lines = []
    for which, wnid in enumerate(("n01", "n02")):
        put(tmp_path, f"train/{wnid}/{wnid}_boxes.txt", b"")
        for number in range(TRAIN):
            put(tmp_path, f"train/{wnid}/images/{number}.JPEG", encoded(picture(100 * which + number)))
        put(tmp_path, f"val/images/val_{which}.JPEG", encoded(picture(1000 + which)))
        lines.append(f"val_{which}.JPEG\t{wnid}\t0\t0\t1\t1")
    put(tmp_path, "val/val_annotations.txt", "\n".join(lines).encode())
    assert named(audited(tmp_path)) == {"other-files": {(f"train/{w}/{w}_boxes.txt",) for w in ("n01", "n02")}}


def test_examples_are_few_and_counts_are_exact(folder: Path) -> None:
    for number in range(50):
        put(folder, f"train/ant/text-{number:02}.jpg", b"text %d" % number)
        put(folder, f"train/bee/copy-{number:02}.jpg", GOOD)
    counts = {finding.id: (finding.count, len(finding.examples)) for finding in audited(folder)}
    assert counts == {"undecodable": (50, 20), "duplicates": (49, 1)}
    assert all(each.detail for each in audited(folder)[0].examples)


def test_a_limit_looks_at_some_of_every_class(folder: Path) -> None:
    plant_broken(folder)
    contents = open_contents(str(folder))
    told: list[tuple[int, int]] = []
    examined = examine(contents, 2, 2, lambda done, total: told.append((done, total)))
    result = describe(contents, examined, judge(contents, examined))
    assert result["looked_at"] == 2 * len(CLASSES) * 2
    assert result["samples"] == len(CLASSES) * (TRAIN + VAL) + len(BROKEN)
    assert np.unique(examined.rows[["split", "label"]]).size == 2 * len(CLASSES)
    assert (told[0], told[-1]) == ((0, 12), (12, 12))


def test_the_figures_add_up(folder: Path) -> None:
    put(folder, "train/ant/wide.png", encoded(picture(9).resize((48, 12)), "PNG"))
    put(folder, "train/cat/turned.jpg", turned_jpeg(10))
    result = audit_data(str(folder))
    assert json.loads(json.dumps(result))["samples"] == 44
    assert result["splits"]["train"]["class_counts"] == {"ant": 13, "bee": 12, "cat": 13}
    assert result["splits"]["train"]["per_class"] == {"min": 12, "median": 13.0, "max": 13}
    assert result["splits"]["train"]["imbalance"] == pytest.approx(13 / 12)
    assert result["bytes"]["total"] == sum(path.stat().st_size for path in folder.rglob("*.*"))
    assert result["sizes"]["width"] == {"min": 20, "median": 24.0, "max": 48}
    assert result["sizes"]["height"] == {"min": 12, "median": 24.0, "max": 30}
    assert result["sizes"]["most_common"] == {"width": 24, "height": 24, "share": pytest.approx(42 / 44)}
    assert result["modes"] == {"RGB": 44}
    assert result["formats"] == {"JPEG": 43, "PNG": 1}
    assert result["extensions"] == {".jpg": 43, ".png": 1}
    assert result["exif_rotated"] == 1
    assert result["seconds"]["decode"]["per_image"] > 0


@pytest.mark.parametrize("mode", ["original", "decoded", "resized"])
def test_a_pack_is_audited_like_its_files(folder: Path, tmp_path: Path, mode: str) -> None:
    plant_conflict(folder)
    plant_leak(folder)
    put(folder, *SINGLES["wrong-extension"])
    for _ in write_pack(open_dataset(DataConfig(path=str(folder))), tmp_path / "pack", PackOptions(mode)):
        pass
    files, packed = named(audited(folder)), named(audited(tmp_path / "pack"))
    if mode != "original":  # the names of a re-encoded sample say nothing of its bytes
        files.pop("wrong-extension")
    assert packed == files


def test_what_an_image_is() -> None:
    look = look_at(turned_jpeg(1))
    assert (look.kind, look.mode, look.turned, look.width, look.height) == ("JPEG", "RGB", True, 20, 30)
    assert look_at(memoryview(encoded(picture(1)))).digest == look_at(encoded(picture(1))).digest
    transparent = picture(1).convert("P")
    assert look_at(encoded(transparent, "PNG", transparency=0)).mode == "palette"
    assert look_at(encoded(picture(1), "PNG", transparency=(1, 2, 3))).mode == "alpha"
    assert look_at(encoded(Image.fromarray(np.zeros((3, 3), np.uint16)), "PNG")).mode == "16-bit"
    assert look_at(encoded(Image.fromarray(np.zeros((3, 3), np.uint16)), "TIFF")).mode == "16-bit"


def test_a_class_named_like_a_script_is_text(folder: Path) -> None:
    name = "<script>alert(1)</script>".replace("/", "\u2215")
    evil = 'x"><img src=x onerror=alert(1)>.jpg'
    for number in range(TRAIN):
        put(folder, f"train/{name}/{number}.jpg", encoded(picture(7000 + number)))
    put(folder, f"train/{name}/{evil}", encoded(picture(7100).convert("L")))
    put(folder, f"train/{name}/{NOT_UTF8}", (folder / "train/ant/0.jpg").read_bytes())
    page = folder.parent / "audit.html"
    result = audit_data(str(folder), page)
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<img src=x" not in text
    assert text.count('<img src="data:image/jpeg;base64,') == text.count("<img") >= 3  # grey, and the conflict twice
    style = re.findall(r"<style>(.*)</style>", text, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'" in text
    assert 'style="' not in text  # the policy would refuse it
    assert result["html"] == str(page)


def test_the_page_holds_few_pictures(folder: Path) -> None:
    for kind in ("L", "CMYK", "RGBA", "P"):
        for number in range(25):
            put(folder, f"train/ant/{kind}-{number}.png", encoded(picture(number).convert(kind), "TIFF"))
    page = folder.parent / "audit.html"
    audit_data(str(folder), page)
    assert 20 < len(set(re.findall(r'src="([^"]*)"', page.read_text(encoding="utf-8")))) <= 60


def test_a_page_for_a_dataset_of_broken_files_only(tmp_path: Path) -> None:
    put(tmp_path, "ant/x.jpg", b"")
    put(tmp_path, "bee/x.jpg", b"text")
    result = audit_data(str(tmp_path))
    assert result["sizes"] is None
    assert "nothing could be decoded" in audit_html({**result, "thumbnails": {}})


def test_a_page_that_cannot_be_written_is_known_before_the_work(folder: Path) -> None:
    with pytest.raises(ConfigError, match="make it first"):
        audit_data(str(folder), folder / "no" / "such" / "audit.html")


def test_names_are_shown_without_control_characters() -> None:
    assert printable(f"a\nb\x1b[2J{NOT_UTF8}é") == "a\\nb\\x1b[2J\\udcff\\udcfe.jpgé"


def test_bytes_are_read_and_let_go(tmp_path: Path) -> None:
    for number in range(300):
        put(tmp_path, f"ant/{number}.bmp", encoded(picture(number, 8).resize((256, 256)), "BMP"))
    contents = open_contents(str(tmp_path))
    tracemalloc.start()
    examined = examine(contents)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (examined.rows["status"] == audit.OK).all()
    assert contents.splits["train"].lengths.sum() > 50e6
    assert peak_bytes < 5e6


def test_an_audit_does_not_import_torch(folder: Path) -> None:
    code = (
        "import sys; from flatout.commands import audit as a; a.audit_data(sys.argv[1]); print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
