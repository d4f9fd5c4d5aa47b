"""Output layer and loss in one are what torch's own two are, and so are their gradients."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flatout.data.text.vocabulary import PAD
from flatout.tasks.translation import output_loss
from flatout.tasks.translation.output_loss import OutputLoss
from flatout.tasks.translation.transformer import Size, Transformer

pytestmark = pytest.mark.usefixtures("_one_thread")
TINY = Size(width=16, layers=1, heads=2, hidden=24)


def example(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows)
    hidden, weight = torch.randn(rows, 8, dtype=dtype), torch.randn(30, 8, dtype=dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(PAD + 1, 30, (rows,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 4, 11])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_loss_and_gradients_are_those_of_torch(
    smoothing: float, rows: int, dtype: torch.dtype, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_loss, "_ROWS", 4)
    hidden, weight, labels = example(rows, dtype)
    labels[1::3] = PAD
    loss = OutputLoss.apply(hidden, weight, labels, smoothing, PAD)
    (3 * loss).backward()
    wide, classes = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = F.cross_entropy(wide @ classes.t(), labels, ignore_index=PAD, label_smoothing=smoothing)
    (3 * expected).backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=near)
    for got, wanted in ((hidden.grad, wide.grad), (weight.grad, classes.grad)):
        assert got is not None
        assert wanted is not None
        assert (got - wanted).norm() <= near * wanted.norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_gives_its_loss_as_its_logits_do(precision: str) -> None:
    torch.manual_seed(0)
    model = Transformer(TINY, 30, dropout=0.0)
    source, target = torch.randint(4, 30, (3, 6)), torch.randint(4, 30, (3, 5))
    target[1, 3:] = PAD
    given, labels, near = (source, None, target[:, :-1]), target[:, 1:], 1e-5 if precision == "fp32" else 2e-2
    gradients, losses = [], []
    for whole in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            if whole:
                logits = model(*given).float().flatten(0, 1)
                loss = F.cross_entropy(logits, labels.flatten(), ignore_index=PAD, label_smoothing=0.1)
            else:
                loss = model(*given, labels, 0.1)
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
    assert losses[0] == pytest.approx(losses[1], rel=near)
    assert (gradients[0] - gradients[1]).norm() <= near * gradients[0].norm()


def test_a_batch_without_a_label_has_no_loss_and_no_gradient() -> None:
    model = Transformer(TINY, 30)
    loss = model(torch.ones(1, 3, dtype=torch.long), None, torch.ones(1, 2, dtype=torch.long), torch.full((1, 2), PAD))
    loss.backward()
    assert loss.item() == 0
    assert all(each.grad is not None and not each.grad.any() for each in model.decoder.parameters())
