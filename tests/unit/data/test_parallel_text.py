"""Sentence pairs from files: the same from any kind of file, and every line that cannot be used has a reason."""

import gzip
import json
import re
from pathlib import Path

import pytest

from flatout.config.schema import DataConfig, VocabularyConfig
from flatout.data.text.parallel_text import ParallelText, open_parallel_text, unpacked
from flatout.data.text.vocabulary import BEGIN, END, Vocabulary, learn_vocabulary
from flatout.errors import DataError

SOURCE = ["a dog runs", "two cats sleep here", "the bird sings", "a dog sleeps"] * 5
TARGET = ["ein Hund läuft", "zwei Katzen schlafen hier", "der Vogel singt", "ein Hund schläft"] * 5


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, name: str, lines: list[str] | bytes) -> None:
    folder.mkdir(exist_ok=True)
    data = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def write_both(folder: Path, split: str, source: list[str] | bytes, target: list[str] | bytes) -> None:
    write(folder, f"{split}.en", source)
    write(folder, f"{split}.de", target)


def opened(folder: Path, **changes: object) -> ParallelText:
    values = {"path": str(folder), "source_language": "en", "target_language": "de", "vocabulary": {"size": 300}}
    return open_parallel_text(DataConfig.model_validate({**values, **changes}))


def test_plain_gz_and_tsv_are_the_same_data(tmp_path: Path) -> None:
    rows = [f"{source}\t{target}" for source, target in zip(SOURCE, TARGET, strict=True)]
    plain, packed, table = (tmp_path / name for name in ("plain", "packed", "table"))
    for split in ("train", "val"):
        write_both(plain, split, SOURCE, TARGET)
        write(packed, f"{split}.en.gz", SOURCE)
        write(packed, f"{split}.de.gz", TARGET)
        write(table, f"{split}.tsv", rows)
    texts = [opened(folder) for folder in (plain, packed, table)]
    assert len({text.fingerprint for text in texts}) == 1
    assert {len(text.train) for text in texts} == {20}
    assert texts[0].total_bytes == 2 * sum(len(f"{line}\n".encode()) for line in SOURCE + TARGET)
    assert texts[0].vocabulary.decode([texts[0].train.target[1].tolist()]) == ["zwei Katzen schlafen hier"]


def test_bad_lines_keep_their_number_and_get_a_reason(tmp_path: Path) -> None:
    source = [*SOURCE, "", "good one", "dog " * 100, "fine", "alone", "also alone"]
    target = "".join(f"{line}\n" for line in [*TARGET, "leer", "  ", "kurz"]).encode() + b"f\xfcr\n"
    write_both(tmp_path, "train", source, target)
    write_both(tmp_path, "val", SOURCE[:2], TARGET[:2])
    text = opened(tmp_path, max_tokens=60)
    reasons = {failure.name.split()[-1]: failure.reason for failure in text.train.failures.values()}
    assert reasons["train.de:21"] == "line 21 is empty"
    assert reasons["train.de:22"] == "line 22 is empty"
    assert reasons["train.de:23"].startswith("line 23 has ")
    assert "more than data.max_tokens = 60" in reasons["train.de:23"]
    assert reasons["train.de:24"] == "line 24 is not UTF-8: invalid start byte at byte 2"
    assert reasons["train.de:25"] == "line 25 has no partner: the other file ends after line 24"
    assert len(text.train) == 26
    assert text.train.usable.tolist() == list(range(20))


def test_a_tsv_row_needs_two_columns(tmp_path: Path) -> None:
    write(tmp_path, "train.tsv", ["a\tb", "only one", "a\tb\tc"])
    write(tmp_path, "val.tsv", ["a\tb"])
    reasons = [failure.reason for failure in opened(tmp_path).train.failures.values()]
    assert reasons == ["line 2 has 1 columns, not 2", "line 3 has 3 columns, not 2"]


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    write_both(tmp_path, "train", "a\u2028b\r\nc\x0cd\r\n".encode(), b"e\nf")
    write_both(tmp_path, "val", ["a"], ["e"])
    text = opened(tmp_path)
    assert len(text.train) == 2
    assert text.vocabulary.decode([text.train.source[0].tolist()]) == ["a\u2028b"]


def test_without_validation_files_some_lines_are_held_out(tmp_path: Path) -> None:
    write_both(tmp_path, "train", [f"{line} {i}" for i, line in enumerate(SOURCE)], TARGET)
    text, again = opened(tmp_path), opened(tmp_path)
    assert (len(text.train), len(text.val)) == (18, 2)
    assert text.fingerprint == again.fingerprint
    assert "held out 2" in text.notes[0]
    train, val = ({tuple(split.source[i].tolist()) for i in range(len(split))} for split in (text.train, text.val))
    assert not train & val


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_language": None}, "data.source_language is None"),
        ({"target_language": "en"}, "name both"),
        ({"target_language": "fr"}, r"no train.en with train.fr.* it has .*train.de"),
        ({"path": ""}, "data.path is not set"),
    ],
)
def test_what_a_user_can_get_wrong(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write_both(tmp_path, "train", SOURCE, TARGET)
    with pytest.raises(DataError, match=message):
        opened(tmp_path, **changes)


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    write(tmp_path, "train.en.gz", SOURCE)
    write(tmp_path, "train.de.gz", TARGET)
    whole = (tmp_path / "train.de.gz").read_bytes()
    (tmp_path / "train.de.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"train.de.gz is not a whole .gz file"):
        opened(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_writes_and_reads_everything_back(kind: str) -> None:
    config = VocabularyConfig.model_validate({"kind": kind, "size": 300})
    vocabulary = learn_vocabulary(SOURCE + TARGET, config)
    lines = ["ein Hund läuft", "Größe: 5-7 ☃!", "ein  Hund"]
    tokens = vocabulary.encode(lines)
    assert vocabulary.decode([[*row, END, BEGIN, 9] for row in tokens]) == lines
    assert len(vocabulary) <= 300


def test_every_machine_learns_the_same_vocabulary() -> None:
    first, second = (learn_vocabulary(SOURCE + TARGET, VocabularyConfig(size=300)) for _ in range(2))
    assert first.digest == second.digest


def test_the_vocabulary_is_learned_once_and_a_run_keeps_its_own(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    write_both(data, "train", SOURCE, TARGET)
    write_both(data, "val", SOURCE, TARGET)
    first = opened(data)
    (stored,) = (tmp_path / "cache" / "flatout").glob("vocabulary-*")
    whole = stored.read_text(encoding="utf-8")
    other = learn_vocabulary(["something else entirely"] * 9, VocabularyConfig(size=300))
    stored.write_text(f"{other.digest}\n{other.text}", encoding="utf-8")
    assert opened(data).vocabulary.digest == other.digest, "not read from where it is stored"
    for damaged in (other.text, whole.replace("a", "b"), whole[:-9], ""):
        stored.write_text(damaged, encoding="utf-8")
        assert opened(data).vocabulary.digest == first.vocabulary.digest
    assert stored.read_text(encoding="utf-8") == whole
    run.mkdir()
    (run / "vocabulary.json").write_text(first.vocabulary.text, encoding="utf-8")
    config = DataConfig.model_validate({"path": str(data), "source_language": "en", "target_language": "de"})
    kept = open_parallel_text(config, run)
    assert kept.fingerprint == first.fingerprint


def test_a_damaged_vocabulary_is_said() -> None:
    with pytest.raises(DataError, match="vocabulary cannot be read"):
        Vocabulary("{").encode(["a"])
    text = learn_vocabulary(["the words of a line"], VocabularyConfig(size=300)).text
    last = max(json.loads(text)["model"]["vocab"].values())
    with pytest.raises(DataError, match="one is number 70000"):
        Vocabulary(re.sub(rf":\s*{last}\b", ":70000", text)).encode(["a"])


def test_what_unpacks_without_end_is_no_text() -> None:
    text = gzip.compress(b"a line of words\n" * 100_000)
    assert len(unpacked(text, "train.en.gz")) == 1_600_000
    bomb = gzip.compress(bytes(200_000_000), 9)
    with pytest.raises(DataError, match=r"train.en.gz unpacks to more than 100 times its 194 kB; is it text\?"):
        unpacked(bomb, "train.en.gz")
