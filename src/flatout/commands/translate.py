"""Translate lines of text with a trained run, and score them where references are given."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.config.loading import load_config
from flatout.config.tasks import METRICS
from flatout.data.text.batches import padded
from flatout.data.text.parallel_text import VOCABULARY_FILE, Tokens, unpacked
from flatout.data.text.vocabulary import PAD, Vocabulary, read_vocabulary
from flatout.engine.averaging import averaged_weights
from flatout.engine.devices import choose_device
from flatout.engine.learner import load_weights
from flatout.errors import BadFile, ConfigError, DataError
from flatout.tasks.translation.bleu import bleu, bleu_signature, bleu_sums
from flatout.tasks.translation.decoding import Search, translate
from flatout.tasks.translation.task import Translation
from flatout.tasks.translation.transformer import MOST_POSITIONS, Transformer
from flatout.trained.opening import require_run
from flatout.training.display import Display
from flatout.training.setup import prepare_compute
from flatout.untrusted import MAX_TABLE_BYTES, read_bytes

_ROWS = 64  # sentences side by side


@dataclass(frozen=True)
class Translator:
    """A run's model and vocabulary, ready to use."""

    model: Transformer
    vocabulary: Vocabulary
    device: torch.device
    steps: list[int]  # the checkpoints whose weights these are

    def translate(self, lines: Sequence[str], search: Search) -> Iterator[dict[int, str]]:
        """Translations by line number, a batch at a time: lines of like length together, so that little is padding."""
        tokens = Tokens.of(self.vocabulary.encode([line.strip() for line in lines]))
        for number in np.flatnonzero(tokens.lengths >= MOST_POSITIONS).tolist():
            raise DataError(f"line {number + 1} has {tokens.lengths[number]} tokens; at most {MOST_POSITIONS - 1} fit")
        order = np.argsort(tokens.lengths, kind="stable")
        empty = int(np.count_nonzero(tokens.lengths == 0))
        yield dict.fromkeys(order[:empty].tolist(), "")
        for first in range(empty, len(order), _ROWS):
            numbers = order[first : first + _ROWS]
            source = torch.from_numpy(padded(tokens, numbers, begin=False)).to(self.device)
            found = translate(self.model, source, source != PAD, search)
            yield dict(zip(numbers.tolist(), self.vocabulary.decode(found), strict=True))


def open_translator(run: Path, average: int = 1, device: str = "auto") -> Translator:
    """The weights of the run's best checkpoint, or the mean of its best `average`."""
    directory = require_run(run)
    config = load_config(directory.config).config
    if "bleu" not in config.spec.metrics:
        raise ConfigError(f"{run} was trained for {config.task}, not for translation; give a run that translates")
    chosen = choose_device(device)
    prepare_compute(config, chosen)
    vocabulary = read_vocabulary(directory.root / VOCABULARY_FILE)
    task = Translation(config, vocabulary)
    weights, steps = averaged_weights(directory.checkpoints, average, METRICS[config.checkpoint.metric].better)
    model = task.build_model()
    load_weights(model, weights)
    return Translator(model.eval().to(chosen.torch), vocabulary, chosen.torch, steps)


def translate_file(
    run: Path,
    file: Path | None = None,
    reference: Path | None = None,
    average: int = 1,
    beam: int = 4,
    length_penalty: float = 0.6,
    device: str = "auto",
    quiet: bool = True,
) -> dict[str, Any]:
    """Translations in the order of the lines of `file` (standard input without one), and BLEU against a reference."""
    lines = read_lines(file)
    references = None if reference is None else read_lines(reference)
    if references is not None and len(references) != len(lines):
        raise DataError(f"{file or 'standard input'} has {len(lines)} lines but {reference} has {len(references)}")
    translator = open_translator(run, average, device)
    started, found = time.perf_counter(), dict[int, str]()
    with Display(quiet or len(lines) <= _ROWS) as display:
        display.begin("translating", 0, len(lines))
        for batch in translator.translate(lines, Search(beam, length_penalty)):
            found |= batch
            display.advance("translating", len(found), len(lines), "lines")
    translations = [found[number] for number in range(len(lines))]
    result: dict[str, Any] = {
        "translations": translations,
        "checkpoint_steps": translator.steps,
        "beam": beam,
        "length_penalty": length_penalty,
        "seconds": time.perf_counter() - started,
    }
    if references is not None:
        score = bleu(bleu_sums(translations, references))
        result |= {"bleu": score, "bleu_signature": bleu_signature()}
    return result


def read_lines(file: Path | None) -> list[str]:
    """Lines of a file (.gz too) or of standard input."""
    try:
        data = sys.stdin.buffer.read() if file is None else read_bytes(file, MAX_TABLE_BYTES)
        if file is not None and file.suffix == ".gz":
            data = unpacked(data, file)
        return data.decode("utf-8").removesuffix("\n").split("\n") if data else []
    except (BadFile, OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file or 'standard input'}: {error}") from None
