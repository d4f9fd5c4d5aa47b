"""A sample of the pairs that `make matrix` tries, every feature in at least one of them."""

from pathlib import Path

import pytest

from matrix.features import BY_NAME, PAIRS
from matrix.pairs import Bench
from servers.s3 import S3Server

SAMPLE = [
    ("ddp", "shared"),  # trained on twice the batch
    ("powersgd", "resume after kill -9"),  # started another basis after the resume
    ("memory cache", "processes"),  # silently kept no cache
    ("ddp", "tune"),  # measured one process
    ("tar", "s3"),
    ("class subset", "warm start"),
    ("fsdp", "checkpointing"),
    ("dp", "bf16"),
    ("local steps", "ema"),
    ("stage", "resume after kill -9"),
    ("shared", "mixup+cutmix"),
    ("disk cache", "progressive resizing"),
    ("pack", "suite"),
    ("accumulate", "translation"),
    ("shared", "own transform"),  # was refused
    ("fsdp", "freeze"),
    ("shared", "alternate flip"),
    ("ddp", "muon"),
    ("fast", "translation"),
    ("lookahead", "resume after kill -9"),
    ("ddp", "blur, squeeze, depth"),
    ("ema", "groups"),
    ("swa", "resume after kill -9"),
    ("selective", "resume after kill -9"),
    ("ddp", "selective"),
    ("shared", "freeze by epoch"),
    ("patch stem", "fast"),
    ("own loss", "resume after kill -9"),
    ("bf16", "emulated"),
    ("zip", "balanced classes"),
    ("fused layers", "resume after kill -9"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Bench:
    (Path(s3_server.root) / "matrix").mkdir()
    return Bench(tmp_path_factory.mktemp("matrix"), s3_server)


@pytest.mark.parametrize(("one", "two"), SAMPLE, ids=[" x ".join(pair) for pair in SAMPLE])
def test_right_or_refused(bench: Bench, one: str, two: str) -> None:
    outcome = bench.judge(BY_NAME[one], BY_NAME[two])
    assert outcome.verdict in ("right", "refused"), outcome.detail


def test_every_feature_is_in_the_sample() -> None:
    assert {name for pair in SAMPLE for name in pair} == set(BY_NAME)
    assert set(SAMPLE) <= set(PAIRS)
