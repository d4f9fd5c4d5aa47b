"""One vocabulary of word pieces for both languages: trained once, stored with its digest, kept with the run."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.errors import BadFile, ConfigError, DataError
from flatout.machine.budgets import cache_folder
from flatout.machine.files import write_whole
from flatout.untrusted import MAX_RECORD_BYTES, blamed_as, read_text

if TYPE_CHECKING:
    from flatout.config.schema import VocabularyConfig

PAD, BEGIN, END, UNKNOWN = range(4)
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


@dataclass(frozen=True)
class Vocabulary:
    """The whole tokenizer as JSON text. Bytes are its alphabet, so every text can be written and read back."""

    text: str

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizers = _imported()
        try:
            tokenizer = tokenizers.Tokenizer.from_str(self.text)
        except Exception as error:  # the binding raises plain Exception
            raise DataError(f"the stored vocabulary cannot be read: {error}") from None
        if (most := max(tokenizer.get_vocab().values(), default=0)) >= tokenizer.get_vocab_size():
            raise DataError(f"the stored vocabulary has {tokenizer.get_vocab_size()} pieces, and one is number {most}")
        return tokenizer

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Text again; what stands after the first END does not count."""
        cut = [row[: row.index(END)] if END in row else row for row in map(list, rows)]
        return [text.strip() for text in self._tokenizer.decode_batch(cut, skip_special_tokens=True)]


def learn_vocabulary(lines: Iterable[str], config: "VocabularyConfig") -> Vocabulary:
    tokenizers = _imported()
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    unigram = config.kind == "unigram"
    tokenizer = tokenizers.Tokenizer(models.Unigram() if unigram else models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    options: dict[str, Any] = {
        "vocab_size": config.size,
        "special_tokens": list(_SPECIAL),
        "show_progress": False,
        "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(),
    }
    trainer = (
        trainers.UnigramTrainer(unk_token=_SPECIAL[UNKNOWN], **options) if unigram else trainers.BpeTrainer(**options)
    )
    tokenizer.train_from_iterator(lines, trainer)
    return Vocabulary(tokenizer.to_str())


def stored_vocabulary(lines: Iterable[str], text_digest: str, config: "VocabularyConfig") -> Vocabulary:
    """The vocabulary of these lines: learned the first time, read from the cache after that."""
    key = hashlib.sha256(f"{text_digest} {config.kind} {config.size} {_imported().__version__}".encode()).hexdigest()
    path = cache_folder() / f"vocabulary-{key[:32]}.kept"
    with suppress(BadFile, OSError):
        digest, _, text = read_text(path, MAX_RECORD_BYTES, newline="").partition("\n")
        if digest == Vocabulary(text).digest:  # else damaged: learned again
            return Vocabulary(text)
    learned = learn_vocabulary(lines, config)
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else: the run has its own copy
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{learned.digest}\n{learned.text}".encode())
    return learned


def read_vocabulary(path: Path) -> Vocabulary:
    try:
        with blamed_as(DataError):
            return Vocabulary(read_text(path, MAX_RECORD_BYTES))
    except FileNotFoundError as error:
        raise DataError(f"cannot read the vocabulary {path}: {error.strerror}") from None


def _imported() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            f"task translation needs tokenizers ({error}); run: pip install 'flatout[translation]'"
        ) from None
    return tokenizers
