"""From sources to translations: greedy and beam search, whole batches at once, with the decoder's past kept."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flatout.data.text.vocabulary import BEGIN, END, PAD
from flatout.tasks.translation.transformer import Transformer

NEVER = float("-inf")
_LOOK_EVERY = 8  # tokens: asking a GPU whether all have ended waits for it, and a few tokens too many cost less


@dataclass(frozen=True)
class Search:
    """How to look for a translation. Scores are summed log-probabilities over `penalty(tokens)`."""

    beam: int = 4
    length_penalty: float = 0.6  # 0 prefers short translations; 1 is the mean over tokens
    most_tokens: int = 1000
    more_tokens: int = 50  # a translation may be this much longer than its source

    def limit(self, source_tokens: int) -> int:
        return min(self.most_tokens, source_tokens + self.more_tokens)

    def penalty(self, tokens: int) -> float:
        return float(((5 + tokens) / 6) ** self.length_penalty)


@torch.inference_mode()
def translate(model: Transformer, source: Tensor, mask: Tensor | None, search: Search) -> list[list[int]]:
    """The best token ids for each row of `source`, without BEGIN and END."""
    found = greedy(model, source, mask, search) if search.beam == 1 else beam(model, source, mask, search)
    return [row[: row.index(END)] if END in row else row for row in found]


def greedy(model: Transformer, source: Tensor, mask: Tensor | None, search: Search) -> list[list[int]]:
    """The likeliest next token, again and again."""
    memory = model.begin(source, mask)
    tokens = torch.full((len(source),), BEGIN, device=source.device)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    written: list[Tensor] = []
    limit = search.limit(source.shape[1])
    for length in range(1, limit + 1):
        tokens = _allowed(model.step(memory, tokens)).argmax(dim=1).masked_fill(ended, PAD)
        written.append(tokens)
        ended |= tokens == END
        if _looks(length, source.device) and bool(ended.all()):
            break
    return [_without_padding(row) for row in torch.stack(written, dim=1).tolist()] if written else []


def beam(model: Transformer, source: Tensor, mask: Tensor | None, search: Search) -> list[list[int]]:
    """The best of `beam` hypotheses for each sentence, kept side by side as rows of one batch.

    A sentence ends when its best finished translation beats all that its open hypotheses could still become.
    """
    width, sentences, device = search.beam, len(source), source.device
    memory = model.begin(source, mask, width)
    tokens = torch.full((sentences * width,), BEGIN, device=device)
    totals = torch.full((sentences, width), NEVER, device=device)
    totals[:, 0] = 0.0  # all rows of a sentence are equal at first: only one may grow
    written = torch.empty((sentences * width, 0), dtype=torch.long, device=device)
    best_scores = torch.full((sentences,), NEVER, device=device)
    first_rows = torch.arange(sentences, device=device)[:, None] * width
    limit = search.limit(source.shape[1])
    best = torch.full((sentences, limit), PAD, device=device)
    for length in range(1, limit + 1):
        log_probabilities = _allowed(model.step(memory, tokens)).float().log_softmax(dim=1)
        if length == limit:
            log_probabilities = _only_end(log_probabilities)
        candidates = (totals.flatten()[:, None] + log_probabilities).view(sentences, -1)
        # twice as many as are kept: at most `width` of them end, so enough go on
        scores, places = candidates.topk(2 * width, dim=1)
        rows, words = first_rows + places // log_probabilities.shape[1], places % log_probabilities.shape[1]
        ends = words == END
        best_scores, best = _better(scores / search.penalty(length), rows, ends, written, best_scores, best)
        totals, order = scores.masked_fill(ends, NEVER).topk(width, dim=1)
        chosen = rows.gather(1, order).flatten()
        tokens = words.gather(1, order).flatten()
        written = torch.cat([written[chosen], tokens[:, None]], dim=1)
        memory.select(chosen)
        # a log-probability only falls, and the penalty only grows up to the limit
        if _looks(length, device) and bool((best_scores >= totals[:, 0] / search.penalty(limit)).all()):
            break
    return [_without_padding(row) for row in best.tolist()]


def _better(
    scores: Tensor, rows: Tensor, ends: Tensor, written: Tensor, best_scores: Tensor, best: Tensor
) -> tuple[Tensor, Tensor]:
    """The best hypothesis that ended here where it beats those that ended before; nothing of it leaves the device."""
    scores, places = scores.masked_fill(~ends, NEVER).max(dim=1)
    ended = written[rows.gather(1, places[:, None])[:, 0]]
    padded = F.pad(ended, (0, best.shape[1] - ended.shape[1]), value=PAD)
    beats = scores > best_scores
    return torch.where(beats, scores, best_scores), torch.where(beats[:, None], padded, best)


def _looks(length: int, device: torch.device) -> bool:
    """Whether to ask now if all have ended. What is found after that changes nothing."""
    return device.type == "cpu" or length % _LOOK_EVERY == 0


def _allowed(logits: Tensor) -> Tensor:
    """Padding and BEGIN are never written."""
    logits[:, PAD] = NEVER
    logits[:, BEGIN] = NEVER
    return logits


def _only_end(log_probabilities: Tensor) -> Tensor:
    ending = torch.full_like(log_probabilities, NEVER)
    ending[:, END] = log_probabilities[:, END]
    return ending


def _without_padding(row: list[int]) -> list[int]:
    return [token for token in row if token != PAD]
