"""The traced peak of a step beside what torch's CPU allocator really gave out, for ten configurations.

.venv/bin/python benchmarks/planning/cpu_allocator.py [--out FILE.md]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from flatout.planning.tracing import Step, traced_peak
from flatout.tasks.classification.models import build_model
from flatout.tasks.translation.transformer import build_transformer

CONFIGURATIONS: list[tuple[str, int, int, str, str, bool, bool]] = [
    # model, pixels, batch, precision, optimizer, checkpointing, channels last
    ("resnet18", 64, 32, "fp32", "sgd", False, False),
    ("resnet18", 64, 32, "fp32", "sgd", True, False),
    ("resnet18", 64, 32, "bf16", "sgd", False, False),
    ("resnet18", 96, 16, "fp32", "adamw", False, True),
    ("resnet34", 64, 24, "fp32", "sgd", False, True),
    ("resnet34", 64, 24, "bf16", "adamw", True, False),
    ("resnet50", 64, 16, "fp32", "sgd", False, False),
    ("resnet50", 96, 16, "fp32", "adamw", True, False),
    ("transformer-small", 48, 16, "fp32", "adamw", False, False),
    ("transformer-small", 64, 16, "fp32", "adamw", True, False),
]


def step_of(model: str, pixels: int, precision: str, optimizer: str, checkpointing: bool, inside: bool) -> Step:
    def optimizer_of(net: nn.Module) -> Optimizer:
        kinds = {"sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, 1e-3)}
        return kinds[optimizer](net.parameters())

    if model.startswith("transformer"):

        def text_loss(net: nn.Module, batch: int) -> Tensor:
            tokens = torch.full((batch, pixels), 5)
            logits = net(tokens, None, tokens)
            return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

        def build() -> nn.Module:
            return build_transformer(model, 8000, 1.0, 0.1, True, checkpointing)

        return Step(build, text_loss, optimizer_of, precision, cuda=False)

    def loss(net: nn.Module, batch: int) -> Tensor:
        images = torch.zeros(batch, 3, pixels, pixels)
        images = images.to(memory_format=torch.channels_last) if inside else images
        return F.cross_entropy(net(images).float(), torch.zeros(batch, dtype=torch.long))

    return Step(
        lambda: build_model(model, 200, checkpointing=checkpointing), loss, optimizer_of, precision, inside, False
    )


def real_peak_bytes(step: Step, batch: int) -> float:
    """Of the second step, by the allocator's own events; tensors that were there before it are added."""
    model = step.build().train()
    if step.channels_last:
        model = model.to(memory_format=torch.channels_last)
    assert step.optimizer is not None
    optimizer = step.optimizer(model)
    _one_step(step, model, batch)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    held = [*model.parameters(), *model.buffers()]
    held += [each for state in optimizer.state.values() for each in state.values() if isinstance(each, Tensor)]
    before = sum(each.untyped_storage().nbytes() for each in held)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        _one_step(step, model, batch)
    alive = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return float(before + peak)


def _one_step(step: Step, model: nn.Module, batch: int) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=step.precision == "bf16"):
        loss = step.loss(model, batch)
    loss.backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    lines = ["| model | side or length | batch | precision | optimizer | checkpointing | channels last | traced | allocator | error |",
             "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    errors = []
    for model, pixels, batch, precision, optimizer, checkpointing, inside in CONFIGURATIONS:
        step = step_of(model, pixels, precision, optimizer, checkpointing, inside)
        traced, real = sum(traced_peak(step, batch).values()), real_peak_bytes(step, batch)
        errors.append(traced / real - 1)
        cells = [
            model,
            pixels,
            batch,
            precision,
            optimizer,
            "yes" if checkpointing else "no",
            "yes" if inside else "no",
        ]
        cells += [f"{traced / 1e6:.1f} MB", f"{real / 1e6:.1f} MB", f"{100 * errors[-1]:+.2f} %"]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
        print(lines[-1], flush=True)
    lines += ["", f"Largest error {100 * max(map(abs, errors)):.2f} % of {len(errors)} configurations."]
    print(lines[-1])
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
