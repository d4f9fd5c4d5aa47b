"""The models of the published measurements, as far as their kernels go: text models and SSD here, the others from timm.

Written from the papers' descriptions. They are only traced, never trained: what counts is which kernels run, on which shapes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flatout.planning.tracing import Step


class Attention(nn.Module):
    """Softmax of whole matrices, as it was computed before fused attention: in 16 bits under apex, the scale folded in."""

    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        rows, length, width = x.shape

        def split(tensor: Tensor) -> Tensor:
            return tensor.view(rows, -1, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(memory)), split(self.value(memory))
        query = query / (width // self.heads) ** 0.5
        scores = query @ key.transpose(2, 3)
        shares = F.dropout(torch.ops.aten._softmax(scores, -1, False), self.dropout)
        return self.out((shares @ value).transpose(1, 2).reshape(rows, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, gelu: bool, cross: bool = False):
        super().__init__()
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads) if cross else None
        self.up, self.down, self.gelu = nn.Linear(width, inner), nn.Linear(inner, width), gelu
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        x = self.norms[0](x + F.dropout(self.attention(x, x), 0.1))
        if self.cross is not None and encoded is not None:
            x = self.norms[2](x + F.dropout(self.cross(x, encoded), 0.1))
        inner = self.up(x)
        inner = F.gelu(inner) if self.gelu else F.relu(inner)
        return self.norms[1](x + F.dropout(self.down(inner), 0.1))


class Bert(nn.Module):
    def __init__(self, layers: int, width: int, masked: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (
            nn.Embedding(30528, width),
            nn.Embedding(512, width),
            nn.Embedding(2, width),
        )
        self.norm, self.masked = nn.LayerNorm(width), masked
        self.layers = nn.ModuleList(Layer(width, width // 64, 4 * width, gelu=True) for _ in range(layers))
        self.head = nn.Linear(width, 2)
        self.transform = nn.Linear(width, width) if masked else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.zeros_like(tokens[:1])) + self.kinds(torch.zeros_like(tokens))
        x = F.dropout(self.norm(x), 0.1)
        for layer in self.layers:
            x = layer(x)
        if self.transform is None:
            return self.head(x).mean((1, 2))
        return F.log_softmax(F.linear(F.gelu(self.transform(x[:, : self.masked])), self.words.weight), -1).mean((1, 2))


class RelativeLayer(nn.Module):
    """Transformer-XL's: one product for queries, keys and values of memory and segment, a second score by positions that is
    padded and shifted into place, a mask, no dropout of shares; autocast computes the softmax in 32 bits."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.joint, self.positions = (nn.Linear(width, parts * width, bias=False) for parts in (3, 1))
        self.word_bias, self.place_bias = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        _, length, width = x.shape
        query, key, value = (
            each.unflatten(2, (self.heads, -1)) for each in self.joint(torch.cat([memory, x], 1)).chunk(3, -1)
        )
        query = query[:, -length:]
        place = self.positions(places).unflatten(1, (self.heads, -1))
        content = torch.einsum("bihd,bjhd->bhij", query + self.word_bias, key)
        placed = F.pad(torch.einsum("bihd,jhd->bhij", query + self.place_bias, place), (1, 0))[..., 1:]
        scores = ((content + placed) / (width // self.heads) ** 0.5).masked_fill(mask, float("-inf"))
        seen = torch.einsum("bhij,bjhd->bihd", F.softmax(scores, -1).to(value.dtype), value)
        x = self.norms[0](x + F.dropout(self.out(seen.flatten(2)), 0.1))
        return self.norms[1](x + F.dropout(self.down(F.dropout(F.relu(self.up(x)), 0.1)), 0.1))


class TransformerXl(nn.Module):
    """Its adaptive softmax computes the first 20,000 words for every token, then copies each cluster's rows out of that
    matrix: as many more passes over it forwards, and a matrix of zeros for each cluster backwards."""

    def __init__(self, layers: int, width: int, inner: int, divide: int) -> None:
        super().__init__()
        sizes, widths = (20000, 20000, 160000, 67736), [width // divide**number for number in range(4)]
        self.words = nn.ModuleList(nn.Embedding(size, each) for size, each in zip(sizes, widths, strict=True))
        self.joins = nn.ModuleList(nn.Linear(each, width, bias=False) for each in widths)
        self.layers = nn.ModuleList(RelativeLayer(width, width // 64, inner) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.joins[0](self.words[0](tokens)), 0.1)
        memory, length = x.detach(), tokens.shape[1]
        places = F.dropout(torch.zeros(2 * length, x.shape[-1]), 0.1)
        mask = torch.zeros(length, 2 * length, dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, memory, places, mask)
        loss, flat = 0, F.dropout(x, 0.1).flatten(0, 1)
        head = F.log_softmax(flat @ self.joins[0].weight @ self.words[0].weight.T, -1)
        for number, share in enumerate((0.93, 0.03, 0.03, 0.01)):
            chosen = torch.zeros(max(1, int(len(flat) * share)), dtype=torch.long)
            found = head.index_select(0, chosen).gather(1, chosen[:, None])
            if number:
                asked = flat.index_select(0, chosen) @ self.joins[number].weight @ self.words[number].weight.T
                found = found + F.log_softmax(asked, -1).gather(1, chosen[:, None])
            loss = loss + found.mean()
        return loss


class Lstm(nn.Module):
    """As cuDNN runs it: one product for all inputs, one small one and one fused kernel for each time step."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inputs, self.state = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        gates, outputs = self.inputs(x), []
        hidden = x.new_zeros(x.shape[0], self.state.in_features).to(gates.dtype)
        for step in range(x.shape[1]):
            summed = self.state(hidden) + gates[:, step]
            hidden = F.glu(F.glu(summed, -1), -1) if summed.shape[-1] == 4 * hidden.shape[-1] else hidden
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class Gnmt(nn.Module):
    def __init__(self, width: int = 1024, words: int = 32320) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.forwards, self.backwards = Lstm(width, width), Lstm(width, width)
        self.encoder = nn.ModuleList([Lstm(2 * width, width), Lstm(width, width), Lstm(width, width)])
        self.decoder = nn.ModuleList([Lstm(width, width), *(Lstm(2 * width, width) for _ in range(3))])
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.source(tokens), 0.2)
        x = torch.cat([self.forwards(x), self.backwards(x)], -1)
        for layer in self.encoder:
            x = F.dropout(layer(x), 0.2)
        y = self.decoder[0](F.dropout(self.target(tokens), 0.2))
        query = self.query(y)
        scores = F.softmax(torch.tanh(query[:, :, None] + x[:, None]).sum(-1), -1)
        context = scores.to(x.dtype) @ x
        for layer in self.decoder[1:]:
            y = F.dropout(layer(torch.cat([y, context], -1)), 0.2)
        return F.log_softmax(self.out(y), -1).mean((1, 2))


class TransformerBig(nn.Module):
    def __init__(self, width: int = 1024, inner: int = 4096, words: int = 33712) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(Layer(width, 16, inner, gelu=False) for _ in range(6))
        self.decoder = nn.ModuleList(Layer(width, 16, inner, gelu=False, cross=True) for _ in range(6))

    def forward(self, tokens: Tensor) -> Tensor:
        x = y = F.dropout(self.words(tokens), 0.1)
        for layer in self.encoder:
            x = layer(x)
        for layer in self.decoder:
            y = layer(y, x)
        return F.log_softmax(y @ self.words.weight.T, -1).mean((1, 2))


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, padding: int | None = None
) -> nn.Module:
    padding = kernel // 2 if padding is None else padding
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Ssd(nn.Module):
    """SSD 300: ResNet-50 up to its third stage, without that stage's stride, and six sizes of boxes."""

    def __init__(self) -> None:
        super().__init__()
        from flatout.tasks.classification.resnet import resnet

        body = resnet("resnet50", 2)
        body.layer3[0].conv2.stride = (1, 1)
        body.layer3[0].downsample[0].stride = (1, 1)
        self.body = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool, body.layer1, body.layer2, body.layer3)
        sides = [(1024, 256, 512, 2), (512, 256, 512, 2), (512, 128, 256, 2), (256, 128, 256, 1), (256, 128, 256, 1)]
        self.extra = nn.ModuleList(
            nn.Sequential(_conv(start, middle, 1), _conv(middle, end, 3, stride, padding=int(stride == 2)))
            for start, middle, end, stride in sides
        )
        boxes, widths = (4, 6, 6, 6, 4, 4), (1024, 512, 512, 256, 256, 256)
        self.heads = nn.ModuleList(nn.Conv2d(w, n * 85, 3, padding=1) for w, n in zip(widths, boxes, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        maps = [x]
        maps.extend(x := extra(x) for extra in self.extra)
        found = [head(each).flatten(1) for head, each in zip(self.heads, maps, strict=True)]
        boxes = torch.cat(found, 1).view(len(x), -1, 85)
        return F.log_softmax(boxes[..., 4:], -1).mean((1, 2)) + F.smooth_l1_loss(boxes[..., :4], boxes[..., :4] * 2)


class ShuffleUnit(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        start = inputs if stride == 2 else inputs // 2
        self.stride = stride
        self.left = nn.Sequential(_conv(start, start, 3, 2, start), _conv(start, half, 1)) if stride == 2 else None
        self.right = nn.Sequential(_conv(start, half, 1), _conv(half, half, 3, stride, half), _conv(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        kept, other = (self.left(x), x) if self.left is not None else x.chunk(2, 1)
        x = torch.cat([kept, self.right(other)], 1)
        return x.view(len(x), 2, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


class ShuffleNet(nn.Module):
    """ShuffleNet v2, 1x, for images of 32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        units, inputs = [], 24
        for outputs, count in ((116, 4), (232, 8), (464, 4)):
            units += [ShuffleUnit(inputs, outputs, 2), *(ShuffleUnit(outputs, outputs, 1) for _ in range(count - 1))]
            inputs = outputs
        self.body = nn.Sequential(_conv(3, 24, 3), *units, _conv(464, 1024, 1))
        self.head = nn.Linear(1024, 100)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.body(x).mean((2, 3))), -1).mean(1)


PAIR_TOKENS = 28
"""Of one side of a sentence pair, on average: GNMT's published figures count both sides."""
TEXT = {
    "bert_base_squad": lambda: Bert(12, 768, 0),
    "bert_large_squad": lambda: Bert(24, 1024, 0),
    "bert_large_pretrain": lambda: Bert(24, 1024, 76),
    "transformerxl_base": lambda: TransformerXl(16, 512, 2048, 1),
    "transformerxl_large": lambda: TransformerXl(18, 1024, 4096, 4),
    "gnmt": Gnmt,
    "transformer_big": TransformerBig,
}
OWN_IMAGES = {"ssd300_resnet50": Ssd, "shufflenetv2_cifar": ShuffleNet}


def samples_per_row(model: str, tokens: int) -> float:
    """How many of a row's units (images, sequences, tokens) one sample of the traced model is."""
    if model in ("gnmt", "transformer_big"):
        return 2.0 * PAIR_TOKENS if model == "gnmt" else float(PAIR_TOKENS)
    return float(tokens) if model.startswith("transformerxl") else 1.0


def step_for(model: str, pixels: int, tokens: int, precision: str, optimizer: bool = True) -> Step:
    """`precision` is fp32, fp16 (autocast) or half."""
    build, unit = TEXT.get(model) or OWN_IMAGES.get(model) or (lambda: _from_timm(model)), "images"
    if model in TEXT:
        length, unit = tokens or PAIR_TOKENS, "sequences"

        def loss(net: nn.Module, batch: int) -> Tensor:
            return net(torch.zeros(batch, length, dtype=torch.long)).float().mean()
    else:

        def loss(net: nn.Module, batch: int) -> Tensor:
            images = torch.empty(
                batch, 3, pixels, pixels, dtype=torch.float16 if precision == "half" else torch.float32
            )
            out = net(images)
            labels = torch.zeros(batch, dtype=torch.long)
            return out.mean() if out.ndim < 2 else F.cross_entropy(out.float(), labels)

    text = model in TEXT
    return Step(build, loss, (_adam if text else _sgd) if optimizer else None, precision, unit=unit)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-3)


def _from_timm(model: str) -> nn.Module:
    import timm

    timm.layers.set_fused_attn(False)  # the measurements are older than fused attention
    return timm.create_model(model)
