"""Builds the loader's C core with sanitizers, fuzzes it, and runs its unit tests under the same sanitizers.

python tests/native_fuzz/run.py [ROUNDS] [SEED]
"""

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

ROOT = Path(__file__).parents[2]
PIXELS = ROOT / "src/flatout/data/pixels"
SMALL = ["-DSEGMENT_BYTES=64", "-DLEAST_SKIMMED_BYTES=1"]  # pictures this small are not skimmed otherwise
SANITIZE = [
    *SMALL,
    "-std=gnu11",
    "-O1",
    "-g",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]


def corpus() -> list[bytes]:
    """Small pictures, so that a mutation is likely to hit something that matters."""
    rng = np.random.default_rng(0)
    files = []
    for width, height in [(9, 7), (33, 40), (70, 50), (120, 90)]:
        noise = Image.fromarray(rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8))
        image = noise.resize((width, height), Image.Resampling.BICUBIC)
        for mode, options in [
            ("RGB", {"subsampling": "4:2:0"}),
            ("RGB", {"subsampling": "4:2:2", "optimize": True}),
            ("RGB", {"subsampling": "4:4:4", "quality": 97}),
            ("RGB", {"subsampling": "4:2:0", "progressive": True}),
            ("RGB", {"subsampling": "4:2:0", "restart_marker_blocks": 2}),
            ("RGB", {"subsampling": "4:2:0", "restart_marker_rows": 1, "exif": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"}),
            ("L", {}),
            ("CMYK", {}),
        ]:
            buffer = io.BytesIO()
            image.convert(mode).save(buffer, "JPEG", **options)
            files.append(buffer.getvalue())
        files += [simplejpeg.encode_jpeg(np.asarray(image), 90, colorsubsampling=kind) for kind in ("440", "411")]
    return files


def fuzz(folder: Path, rounds: str, seed: str) -> None:
    program = folder / "fuzz"
    sources = [ROOT / "tests/native_fuzz/fuzz.c", *sorted((PIXELS / "native").glob("*.c"))]
    subprocess.run(["gcc", *SANITIZE, *map(str, sources), "-ljpeg", "-lm", "-o", str(program)], check=True)
    paths = []
    for index, data in enumerate(corpus()):
        paths.append(str(folder / f"{index}.jpg"))
        Path(paths[-1]).write_bytes(data)
    subprocess.run([str(program), rounds, seed, *paths], check=True)


def unit_tests(folder: Path) -> None:
    """The extension itself, in a copy of the package; the interpreter is not instrumented, hence the preload."""
    package = folder / "src/flatout"
    (package / "data/pixels").mkdir(parents=True)
    for init in ("__init__.py", "data/__init__.py", "data/pixels/__init__.py"):
        (package / init).touch()
    sources = [str(path) for path in [PIXELS / "_native.c", *sorted((PIXELS / "native").glob("*.c"))]]
    include, target = sysconfig.get_path("include"), package / "data/pixels/_native.abi3.so"
    flags = [*SANITIZE, "-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000", f"-I{include}"]
    subprocess.run(["gcc", *flags, *sources, "-ljpeg", "-o", str(target)], check=True)
    runtimes = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    # the interpreter keeps memory until it exits: leaks are looked for in the C program only
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(folder / "src"),
    }
    test = shutil.copy(ROOT / "tests/unit/data/test_native.py", folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), test]
    subprocess.run(command, check=True, env=environment, cwd=folder)


if __name__ == "__main__":
    rounds, seed = [*sys.argv[1:], *["20000", "1"][len(sys.argv) - 1 :]]
    with tempfile.TemporaryDirectory() as name:
        fuzz(Path(name), rounds, seed)
        unit_tests(Path(name))
