"""A Transformer for translation: one vocabulary and one embedding matrix for both languages and the output."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from flatout.data.text.vocabulary import PAD
from flatout.errors import ConfigError
from flatout.tasks.translation.dropout import Dropout
from flatout.tasks.translation.output_loss import OutputLoss

MOST_POSITIONS = 1024


@dataclass(frozen=True)
class Size:
    width: int
    layers: int  # of the encoder, and as many of the decoder
    heads: int
    hidden: int  # width inside the feed-forward layers


SIZES = {
    "transformer-small": Size(width=256, layers=3, heads=4, hidden=512),
    "transformer-base": Size(width=512, layers=6, heads=8, hidden=2048),
}

KeysValues = tuple[Tensor, Tensor]  # each [batch, heads, tokens, width / heads]


@dataclass
class Memory:
    """What the decoder knows of the sources, and of its own tokens so far: nothing is computed twice."""

    mask: Tensor | None  # [batch, 1, 1, source tokens], True where there is a token
    sources: list[KeysValues]  # one for each layer
    own: list[KeysValues] = field(default_factory=list)
    tokens: int = 0  # how many are in `own`

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the decoder's own past, in this order; a row's source stays where it is."""
        self.own = [(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in self.own]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def keys_values(self, memory: Tensor) -> KeysValues:
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return self._by_head(keys), self._by_head(values)

    def forward(self, x: Tensor, past: KeysValues, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        mixed = _mixed(self._by_head(self.query(x)), *past, mask, causal)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Around(nn.Module):
    """What stands around every part of a layer: norm (before it, or after the sum), dropout, and the way past it."""

    def __init__(self, width: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.pre_norm = pre_norm

    def before(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x) if self.pre_norm else x
        return normed

    def after(self, x: Tensor, part: Tensor) -> Tensor:
        total: Tensor = x + self.dropout(part)
        return total if self.pre_norm else self.norm(total)


class FeedForward(nn.Sequential):
    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__(nn.Linear(width, hidden), nn.ReLU(inplace=True), Dropout(dropout), nn.Linear(hidden, width))


class EncoderLayer(nn.Module):
    def __init__(self, size: Size, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.attention = Attention(size.width, size.heads)
        self.feed_forward = FeedForward(size.width, size.hidden, dropout)
        self.around_attention, self.around_feed_forward = (Around(size.width, dropout, pre_norm) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        inner = self.around_attention.before(x)
        x = self.around_attention.after(x, self.attention(inner, self.attention.keys_values(inner), mask))
        return self.around_feed_forward.after(x, self.feed_forward(self.around_feed_forward.before(x)))


class DecoderLayer(nn.Module):
    def __init__(self, size: Size, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.attention, self.cross = (Attention(size.width, size.heads) for _ in range(2))
        self.feed_forward = FeedForward(size.width, size.hidden, dropout)
        self.around_attention, self.around_cross, self.around_feed_forward = (
            Around(size.width, dropout, pre_norm) for _ in range(3)
        )

    def forward(self, x: Tensor, encoded: Tensor, mask: Tensor | None) -> Tensor:
        """All tokens at once, each seeing itself and those before it."""
        inner = self.around_attention.before(x)
        own = self.attention(inner, self.attention.keys_values(inner), causal=True)
        return self._rest(self.around_attention.after(x, own), self.cross.keys_values(encoded), mask)

    def step(
        self, x: Tensor, past: KeysValues | None, source: KeysValues, mask: Tensor | None
    ) -> tuple[Tensor, KeysValues]:
        """One more token; returns what the next one needs to see of this and the earlier ones."""
        inner = self.around_attention.before(x)
        keys, values = self.attention.keys_values(inner)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        x = self.around_attention.after(x, self.attention(inner, (keys, values)))
        return self._rest(x, source, mask), (keys, values)

    def _rest(self, x: Tensor, source: KeysValues, mask: Tensor | None) -> Tensor:
        x = self.around_cross.after(x, self.cross(self.around_cross.before(x), source, mask))
        return self.around_feed_forward.after(x, self.feed_forward(self.around_feed_forward.before(x)))


class Transformer(nn.Module):
    """`forward` is for training; `begin` and `step` decode token by token with what was computed before."""

    def __init__(
        self, size: Size, vocabulary: int, dropout: float = 0.1, pre_norm: bool = True, checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.scale = math.sqrt(size.width)
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.dropout = Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(size, dropout, pre_norm) for _ in range(size.layers))
        self.decoder = nn.ModuleList(DecoderLayer(size, dropout, pre_norm) for _ in range(size.layers))
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(size.width) if pre_norm else nn.Identity() for _ in range(2)
        )
        self.register_buffer("positions", sinusoids(MOST_POSITIONS, size.width), persistent=False)
        self._initialise(size.width)

    def _initialise(self, width: int) -> None:
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(
        self,
        source: Tensor,
        mask: Tensor | None,
        target: Tensor,
        labels: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """Logits [batch, target tokens, vocabulary] for the token after each token of `target`; with `labels` their
        mean cross-entropy instead, where labels are not PAD.

        `mask` is True where `source` [batch, source tokens] has a token, or None where it has one everywhere.
        """
        encoded = self.encode(source, mask)
        x = self._embed(target, 0)
        for layer in self.decoder:
            x = self._run(layer, x, encoded, _broad(mask))
        return self._logits(x) if labels is None else self._loss(x, labels, smoothing)

    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:
        x = self._embed(source, 0)
        for layer in self.encoder:
            x = self._run(layer, x, _broad(mask))
        normed: Tensor = self.encoder_norm(x)
        return normed

    def begin(self, source: Tensor, mask: Tensor | None, copies: int = 1) -> Memory:
        """Encode once; each sentence gets `copies` rows next to each other."""
        encoded = self.encode(source, mask)
        sources = [layer.cross.keys_values(encoded) for layer in self.decoder]  # type: ignore[union-attr, operator]
        repeated = [(k.repeat_interleave(copies, 0), v.repeat_interleave(copies, 0)) for k, v in sources]
        wide = None if mask is None else mask.repeat_interleave(copies, 0)
        return Memory(_broad(wide), repeated)

    def step(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Logits [rows, vocabulary] after one more token in each row."""
        x = self._embed(tokens[:, None], memory.tokens)
        own: list[KeysValues] = []
        for number, layer in enumerate(self.decoder):
            past = memory.own[number] if memory.own else None
            x, seen = layer.step(x, past, memory.sources[number], memory.mask)  # type: ignore[operator]
            own.append(seen)
        memory.own, memory.tokens = own, memory.tokens + 1
        return self._logits(x)[:, 0]

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        if first + tokens.shape[1] > MOST_POSITIONS:
            raise ConfigError(f"a sentence has more than {MOST_POSITIONS} tokens, the most this model can place")
        positions = self.get_buffer("positions")[first : first + tokens.shape[1]]
        embedded: Tensor = self.dropout(self.embedding(tokens) * self.scale + positions)
        return embedded

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.embedding.weight)

    def _loss(self, x: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        hidden, weight = self.decoder_norm(x).flatten(0, 1), self.embedding.weight
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
        loss: Tensor = OutputLoss.apply(hidden.to(dtype), weight.to(dtype), labels.flatten(), smoothing, PAD)  # type: ignore[no-untyped-call]
        return loss

    def _run(self, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        if self.checkpointing and self.training:
            recomputed: Tensor = checkpoint(layer, *inputs, use_reentrant=False)
            return recomputed
        result: Tensor = layer(*inputs)
        return result


def build_transformer(
    name: str, vocabulary: int, width: float, dropout: float, pre_norm: bool, checkpointing: bool
) -> Transformer:
    """`width` multiplies every width of the named size; heads and layers stay."""
    if name not in SIZES:
        raise ConfigError(f"model.name is {name!r}; for translation it must be one of {', '.join(SIZES)}")
    size = SIZES[name]
    per_head = max(2, round(size.width * width / size.heads / 2) * 2)
    scaled = Size(per_head * size.heads, size.layers, size.heads, max(8, round(size.hidden * width)))
    return Transformer(scaled, vocabulary, dropout, pre_norm, checkpointing)


def sinusoids(positions: int, width: int) -> Tensor:
    """Sines and cosines of geometrically growing wavelengths, from 2 pi to 10,000 times that."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(positions)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _mixed(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Without dropout inside: torch's fast kernels for CPUs have none. In bf16 their backward takes three to six times
    as long as in fp32, so on a CPU attention itself is in fp32."""
    narrow = query.dtype == torch.bfloat16 and query.device.type == "cpu"
    if narrow:
        query, keys, values = query.float(), keys.float(), values.float()
    with torch.autocast("cpu", enabled=False) if narrow else nullcontext():
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)


def _broad(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, None, None, :]
