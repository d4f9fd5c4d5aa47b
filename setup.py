"""The optional compiled fast paths; everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

PIXELS, CLASSIFICATION = Path("src/flatout/data/pixels"), Path("src/flatout/tasks/classification")

setup(
    ext_modules=[
        Extension(
            "flatout.data.pixels._native",
            sources=[str(path) for path in [PIXELS / "_native.c", *sorted((PIXELS / "native").glob("*.c"))]],
            depends=[str(path) for path in sorted((PIXELS / "native").glob("*.h"))],
            libraries=["jpeg"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            # contracted multiply-adds would round the weights of the resize differently from Pillow's
            extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,  # without a compiler or libjpeg-turbo the Pillow path does all the work
        ),
        Extension(
            "flatout.tasks.classification._fused",
            sources=[
                str(path) for path in [CLASSIFICATION / "_fused.c", *sorted((CLASSIFICATION / "native").glob("*.c"))]
            ],
            depends=[str(path) for path in sorted((CLASSIFICATION / "native").glob("*.h"))],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,  # without a compiler that knows AVX512_BF16 torch's own kernels do all the work
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
