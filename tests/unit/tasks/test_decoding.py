"""Beam search with the decoder's past kept, against one that computes everything anew for one sentence at a time."""

import pytest
import torch
from torch import Tensor

from flatout.data.text.vocabulary import BEGIN, END, PAD
from flatout.tasks.translation import decoding
from flatout.tasks.translation.decoding import Search, translate
from flatout.tasks.translation.transformer import Size, Transformer
from hostreads import counted

pytestmark = pytest.mark.usefixtures("_one_thread")
VOCABULARY = 14


@pytest.fixture(params=range(4))
def model(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(request.param)
    model = Transformer(Size(width=16, layers=2, heads=2, hidden=24), VOCABULARY)
    with torch.no_grad():
        model.embedding.weight *= 3  # clearer preferences, so that no two hypotheses are as good as equal
    return model.eval()


def sources() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, VOCABULARY, (5, 7), generator=generator)
    for row, length in enumerate((7, 3, 5, 1, 6)):
        source[row, length:] = PAD
    return source, source != PAD


@torch.inference_mode()
def naive_beam(model: Transformer, source: Tensor, search: Search, width: int) -> list[int]:
    """One sentence; hypotheses are lists, and the model reads each from its first token every time."""
    limit = search.limit(width)
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        grown = []
        for score, words in alive:
            logits = model(source[None], None, torch.tensor([[BEGIN, *words]]))[0, -1]
            logits[[PAD, BEGIN]] = float("-inf")
            for word, value in enumerate(logits.log_softmax(0).tolist()):
                if value > float("-inf") and (length < limit or word == END):
                    grown.append((score + value, [*words, word]))
        grown.sort(key=lambda each: -each[0])
        candidates = grown[: 2 * search.beam]
        finished += [(score / search.penalty(length), words[:-1]) for score, words in candidates if words[-1] == END]
        alive = [each for each in candidates if each[1][-1] != END][: search.beam]
        if not alive or (finished and max(finished)[0] >= alive[0][0] / search.penalty(limit)):
            break
    return max(finished)[1]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_beam_finds_what_the_naive_one_finds(model: Transformer, length_penalty: float) -> None:
    search = Search(beam=3, length_penalty=length_penalty, more_tokens=6)
    source, mask = sources()
    found = translate(model, source, mask, search)
    for row in range(len(source)):
        assert found[row] == naive_beam(model, source[row][mask[row]], search, source.shape[1])


def test_greedy_takes_the_likeliest_token_every_time(model: Transformer) -> None:
    search = Search(beam=1, more_tokens=6)
    source, mask = sources()
    found = translate(model, source, mask, search)
    for row in range(len(source)):
        words: list[int] = []
        while len(words) < search.limit(source.shape[1]) and END not in words:
            with torch.inference_mode():
                logits = model(source[row][mask[row]][None], None, torch.tensor([[BEGIN, *words]]))[0, -1]
                logits[[PAD, BEGIN]] = float("-inf")
            words.append(int(logits.argmax()))
        assert found[row] == [word for word in words if word != END]


def test_neighbours_do_not_matter(model: Transformer) -> None:
    source, mask = sources()
    search = Search(beam=3, more_tokens=6)
    together = translate(model, source, mask, search)
    alone = [translate(model, source[row : row + 1], mask[row : row + 1], search)[0] for row in range(len(source))]
    assert together == alone


def test_a_translation_ends_at_the_limit(model: Transformer) -> None:
    source, mask = sources()
    for width in (1, 4):
        for words in translate(model, source, mask, Search(beam=width, more_tokens=100, most_tokens=3)):
            assert len(words) <= 3
            assert not {PAD, BEGIN, END} & set(words)


@pytest.mark.parametrize("beam", [1, 3])
def test_on_a_gpu_the_host_waits_every_eighth_token_and_finds_the_same(
    model: Transformer, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, mask = sources()
    search = Search(beam=beam, more_tokens=20)
    on_cpu = translate(model, source, mask, search)
    looks = decoding._looks
    monkeypatch.setattr(decoding, "_looks", lambda length, device: looks(length, torch.device("cuda")))
    with counted(model.parameters(), model.buffers(), [source, mask]) as reads:
        assert translate(model, source, mask, search) == on_cpu
    assert len(reads.reads) <= search.limit(source.shape[1]) // 8 + 1, reads.reads
