"""Translation: cross-entropy per target token with label smoothing; BLEU of real translations, and loss."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flatout.config.schema import Config
from flatout.data.text.batches import TextBatch
from flatout.data.text.vocabulary import BEGIN, END, PAD, Vocabulary
from flatout.tasks.protocol import Sums
from flatout.tasks.translation.bleu import bleu, bleu_signature, bleu_sums
from flatout.tasks.translation.decoding import Search, translate
from flatout.tasks.translation.transformer import Transformer, build_transformer


@dataclass
class TextInputs:
    """A batch on the device."""

    source: Tensor
    mask: Tensor | None
    target: Tensor
    references: list[str]
    row_tokens: list[int]  # how many each row has to predict: counted before the copy, so that nobody asks the device


class Translation:
    """`Task` of sentence pairs."""

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._search = Search(beam=config.validate_.beam, most_tokens=config.data.max_tokens)
        self.notes = (f"BLEU is sacreBLEU {bleu_signature()}",)
        self.watch: Callable[[list[str], list[str]], object] | None = None
        """Told the translations and references of every batch that is evaluated."""

    def build_model(self) -> Transformer:
        model = self._config.model
        return build_transformer(
            model.name,
            len(self._vocabulary),
            model.width,
            model.dropout,
            model.pre_norm,
            self._config.train.checkpointing,
        )

    def to_device(self, batch: TextBatch, device: torch.device) -> TextInputs:
        source, target = (tensor.to(device, non_blocking=True) for tensor in (batch.source, batch.target))
        mask = None if batch.mask is None else batch.mask.to(device, non_blocking=True)
        return TextInputs(source, mask, target, batch.references, predicted_tokens(batch.target))

    def weight(self, inputs: TextInputs) -> float:
        return float(sum(inputs.row_tokens))

    def filler(self, inputs: TextInputs) -> TextInputs:
        source, target = (torch.tensor([ids], device=inputs.source.device) for ids in ([END], [BEGIN, END]))
        return TextInputs(source, None, target, [], [1])

    def parts(self, inputs: TextInputs, count: int) -> list[tuple[TextInputs, float]]:
        """Each part weighs as many tokens as it predicts, as it would within the whole batch."""
        rows, weights = len(inputs.source), inputs.row_tokens
        if count == 1:
            return [(inputs, 1.0)]
        pieces = []
        for low, high in pairwise(rows * part // count for part in range(count + 1)):
            if high > low:
                mask = None if inputs.mask is None else inputs.mask[low:high]
                source, target = inputs.source[low:high], inputs.target[low:high]
                piece = TextInputs(source, mask, target, inputs.references[low:high], weights[low:high])
                pieces.append((piece, sum(weights[low:high]) / sum(weights)))
        return pieces

    def loss(self, model: nn.Module, inputs: TextInputs) -> Tensor:
        given, smoothing = (inputs.source, inputs.mask, inputs.target[:, :-1]), self._config.train.label_smoothing
        if inputs.source.device.type == "cpu":
            loss: Tensor = model(*given, inputs.target[:, 1:], smoothing)
            return loss
        return self._cross_entropy(model(*given), inputs.target, smoothing)

    def _cross_entropy(self, logits: Tensor, target: Tensor, smoothing: float, reduction: str = "mean") -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            target[:, 1:].flatten(),
            ignore_index=PAD,
            label_smoothing=smoothing,
            reduction=reduction,
        )

    def evaluate(self, model: nn.Module, inputs: TextInputs) -> Sums:
        bare = model
        for wrapper in ("module", "_orig_mod"):  # of DDP and of torch.compile, which know nothing of decoding
            bare = getattr(bare, wrapper, bare)
        assert isinstance(bare, Transformer)
        logits = bare(inputs.source, inputs.mask, inputs.target[:, :-1])
        loss = self._cross_entropy(logits, inputs.target, 0.0, "sum").item()
        found = self._vocabulary.decode(translate(bare, inputs.source, inputs.mask, self._search))
        if self.watch is not None:
            self.watch(found, inputs.references)
        sums = {"samples": float(len(found)), "loss": loss, "tokens": self.weight(inputs)}
        return {**sums, **bleu_sums(found, inputs.references)}

    def metrics(self, sums: Sums) -> dict[str, float]:
        return {"bleu": bleu(sums), "val_loss": sums["loss"] / max(1.0, sums["tokens"])}


def predicted_tokens(target: Tensor) -> list[int]:
    """Of each row of a target on the host: all but BEGIN and padding."""
    counts: list[int] = (target[:, 1:] != PAD).sum(dim=1).tolist()
    return counts
