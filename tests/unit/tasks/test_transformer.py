"""The model: what may see what, and that decoding step by step is the same as all at once."""

import pytest
import torch

from flatout.errors import ConfigError
from flatout.tasks.translation.transformer import Size, Transformer, _mixed, build_transformer

pytestmark = pytest.mark.usefixtures("_one_thread")
TINY = Size(width=16, layers=2, heads=2, hidden=24)
VOCABULARY = 30


@pytest.fixture(params=[True, False], ids=["pre-norm", "post-norm"])
def model(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TINY, VOCABULARY, dropout=0.1, pre_norm=request.param).eval()


def some_tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


def test_step_by_step_equals_all_at_once(model: Transformer) -> None:
    source, target = some_tokens(3, 7), some_tokens(3, 5)
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[1, 4:] = False
    together = model(source, mask, target)
    memory = model.begin(source, mask)
    for place in range(5):
        assert torch.allclose(model.step(memory, target[:, place]), together[:, place], atol=1e-5)


def test_padding_changes_nothing(model: Transformer) -> None:
    source, target = some_tokens(1, 6), some_tokens(1, 4)
    wide = torch.cat([source, torch.zeros(1, 3, dtype=torch.long)], dim=1)
    assert torch.allclose(model(wide, wide != 0, target), model(source, None, target), atol=1e-5)


def test_no_token_sees_those_after_it(model: Transformer) -> None:
    source, target = some_tokens(2, 6), some_tokens(2, 5)
    changed = target.clone()
    changed[:, 3:] = 5
    before, after = model(source, None, target), model(source, None, changed)
    assert torch.allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not torch.allclose(before[:, 3:], after[:, 3:], atol=1e-3)


def test_order_of_the_source_matters(model: Transformer) -> None:
    source, target = some_tokens(1, 6), some_tokens(1, 3)
    assert not torch.allclose(model(source, None, target), model(source.flip(1), None, target), atol=1e-3)


def test_recomputed_activations_give_the_same_gradients() -> None:
    source, target = some_tokens(2, 6), some_tokens(2, 5)
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = Transformer(TINY, VOCABULARY, dropout=0.3, checkpointing=checkpointing).train()
        torch.manual_seed(1)
        model(source, None, target).square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(gradient is not None for gradient in gradients[0].values()), "a parameter that would never be trained"
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name


def test_one_matrix_serves_both_languages_and_the_output() -> None:
    large = [name for name, each in Transformer(TINY, VOCABULARY).named_parameters() if VOCABULARY in each.shape]
    assert large == ["embedding.weight"]


def test_sizes_by_name() -> None:
    base = build_transformer("transformer-base", 100, 1.0, 0.1, True, False)
    parameters = sum(each.numel() for each in base.parameters()) - 100 * 512
    assert 43e6 < parameters < 45e6  # Vaswani et al. (2017): 65 million with 37,000 word pieces of 512
    half = build_transformer("transformer-base", 100, 0.5, 0.1, True, False)
    assert half.embedding.weight.shape[1] == 256
    with pytest.raises(ConfigError, match=r"model.name is 'resnet18'; for translation"):
        build_transformer("resnet18", 100, 1.0, 0.1, True, False)


def test_a_sentence_that_is_too_long_is_an_error(model: Transformer) -> None:
    with pytest.raises(ConfigError, match="more than 1024 tokens"):
        model.encode(torch.zeros(1, 1025, dtype=torch.long), None)


def test_attention_under_autocast_is_that_of_fp32_of_the_same_numbers() -> None:
    query, keys, values = (torch.randn(2, 2, 5, 8).bfloat16() for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = _mixed(query, keys, values, None, True)
    wide = torch.nn.functional.scaled_dot_product_attention(query.float(), keys.float(), values.float(), is_causal=True)
    assert torch.equal(mixed, wide)
