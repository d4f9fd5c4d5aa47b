"""What a step of the translation recipe costs: fp32 and bf16, as flatout computes it and as torch does unasked.

`plain` is nn.Dropout, logits kept whole and attention in autocast's type. Every batch goes through all four in turn.

    python benchmarks/translation_step.py --data data/multi30k [--steps 20] [--threads 2]
"""

import argparse
import time
from statistics import median
from unittest.mock import patch

import torch
from torch.nn import functional as F

from flatout.config.loading import load_config
from flatout.data.text.batches import TextBatchPlan
from flatout.data.text.parallel_text import open_parallel_text
from flatout.engine.devices import choose_device, keep_freed_memory
from flatout.engine.learner import build_learner
from flatout.tasks.translation import transformer
from flatout.tasks.translation.dropout import Dropout
from flatout.tasks.translation.task import Translation


class Plain(Translation):
    def loss(self, model, inputs):
        with patch.object(Dropout, "own_draws", False), patch.object(transformer, "_mixed", attend):
            logits = model(inputs.source, inputs.mask, inputs.target[:, :-1])
        return self._cross_entropy(logits, inputs.target, self._config.train.label_smoothing)


def attend(query, keys, values, mask, causal):
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)


def step(task, learner, batch):
    """Seconds by the clock, and of CPU."""
    before = time.perf_counter(), time.process_time()
    with learner.precision.autocast():
        loss = task.loss(learner.model, task.to_device(batch, learner.device.torch))
    learner.precision.backward(loss)
    norm = learner.precision.gradient_norm(learner.optimizer, learner.model.parameters(), True)
    learner.precision.step(learner.optimizer, learner.model.parameters(), 1.0, norm)
    learner.optimizer.zero_grad(set_to_none=True)
    learner.ema.update(learner.model)
    return time.perf_counter() - before[0], time.process_time() - before[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    jobs, seconds, text = {}, {}, None
    for precision in ("fp32", "bf16"):
        config = load_config("multi30k-small-cpu", {"data.path": options.data, "train.precision": precision}).config
        text = text or open_parallel_text(config.data, None)
        for name, kind in (("plain", Plain), ("flatout", Translation)):
            task = kind(config, text.vocabulary)
            jobs[precision, name] = task, build_learner(task, config, choose_device("cpu"))
    plan = TextBatchPlan(text.train, 0, config.data.batch_tokens)
    for index in range(options.steps + 1):
        batch = plan.prepare(0, index)
        for name, job in jobs.items():
            seconds.setdefault(name, []).append(step(*job, batch))
    for name, found in seconds.items():
        pairs = list(zip(found, seconds["fp32", "plain"], strict=True))[1:]  # the first makes its kernels
        wall, cpu = (median(pair[0][at] for pair in pairs) for at in (0, 1))
        shares = [median(one[at] / plain[at] for one, plain in pairs) for at in (0, 1)]
        print(f"{' '.join(name):14}{wall:.3f} s ({shares[0]:.3f} of fp32 plain), CPU {cpu:.3f} s ({shares[1]:.3f})")


if __name__ == "__main__":
    main()
