"""BLEU as sums that add up over batches and ranks, by sacreBLEU, so that figures compare with published ones."""

from collections.abc import Sequence
from typing import Any

from flatout.errors import ConfigError

_ORDERS = range(1, 5)


def bleu_sums(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """What BLEU is computed from: matching and possible n-grams, and the two lengths."""
    score = _metric().corpus_score(list(translations), [list(references)])
    sums = {"bleu_length": float(score.sys_len), "bleu_reference_length": float(score.ref_len)}
    for order, matching, possible in zip(_ORDERS, score.counts, score.totals, strict=True):
        sums |= {f"bleu_matching_{order}": float(matching), f"bleu_possible_{order}": float(possible)}
    return sums


def bleu(sums: dict[str, float]) -> float:
    """0 to 100."""
    score = _metric().compute_bleu(
        correct=[int(sums[f"bleu_matching_{order}"]) for order in _ORDERS],
        total=[int(sums[f"bleu_possible_{order}"]) for order in _ORDERS],
        sys_len=int(sums["bleu_length"]),
        ref_len=int(sums["bleu_reference_length"]),
    )
    return float(score.score)


def chrf(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Character n-gram F-score of a whole corpus, 0 to 100, and sacreBLEU's signature of it."""
    _metric()  # says what to install
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    score = metric.corpus_score(list(translations), [list(references)])
    return float(score.score), str(metric.get_signature())


def bleu_signature() -> str:
    """Which BLEU: sacreBLEU's own line, for example nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0."""
    metric = _metric()
    metric.corpus_score(["a"], [["a"]])  # the number of references is part of the signature
    return str(metric.get_signature())


def _metric() -> Any:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise ConfigError(f"BLEU needs sacrebleu ({error}); run: pip install 'flatout[translation]'") from None
    return BLEU()
