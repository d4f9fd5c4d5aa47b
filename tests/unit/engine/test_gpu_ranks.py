"""What ranks do otherwise on GPUs, as far as one rank on a CPU and fakes can tell."""

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from test_host_reads import OPTIMIZERS, job_of, optimizer_as_on_cuda
from torch import Tensor, nn

from flatout.commands.train import train_run
from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.engine import loop
from flatout.engine.learner import Learner
from flatout.engine.loop import finite_tensors
from flatout.engine.parallel import RankPlace, joining
from flatout.engine.parallel.batch_norm import GlobalBatchNorm, convert
from flatout.engine.parallel.global_batch import GatheredBatch
from flatout.engine.parallel.group import Group
from flatout.engine.parallel.joining import apply_parallelism
from flatout.engine.parallel.ranks import Ranks
from flatout.engine.parallel.sharding import gathered, mixed_precision, shard
from flatout.engine.precision import DTYPES
from flatout.engine.sharded_tensors import gather_full
from flatout.errors import RunFailed
from flatout.tasks.classification.resnet import resnet
from flatout.tasks.translation.transformer import Size, Transformer
from flatout.timeline import Recorder
from flatout.training.link_preflight import _profile
from hostreads import counted
from ranks import free_port
from training import recipe

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group(RankPlace(0, 1, 0, 1, "127.0.0.1", free_port()), "gloo", 60.0)
    yield made
    made.close()


def parallel_config(shapes: Path, mode: str, **changes: Any) -> Config:
    return load_config(recipe(shapes, parallel__mode=mode, train__log_every=4, **changes)).config


def begun(group: Group, learner: Learner, config: Config, kind: str = "cpu") -> Iterator[Ranks]:
    learner.device = replace(learner.device, kind=kind)
    ranks = Ranks(config, group, "lo")
    ranks.begin(learner, Recorder(None), end=lambda cause: None)
    yield ranks
    assert ranks.watchdog is not None
    ranks.watchdog.close()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_who_was_slowest_is_only_said_where_the_hosts_clock_knows(shapes: Path, group: Group, kind: str) -> None:
    job = job_of(shapes, "fp32")
    for ranks in begun(group, job.learner, parallel_config(shapes, "ddp"), kind):
        losses = ranks.losses(2.0)
        assert losses.mean == 2.0
        assert (losses.slowest_rank, losses.late_seconds) == ((None, None) if kind == "cuda" else (0, 0.0))


MODES: dict[str, dict[str, Any]] = {
    "ddp": {"parallel__sync_batchnorm": True, "train__ema": 0.9, "train__clip_norm": 1.0, "train__accumulate": 2},
    "fsdp": {"train__clip_norm": 1.0, "train__accumulate": 2},
}


@pytest.mark.parametrize(
    ("mode", "optimizer", "precision", "parallel"),
    [
        *((mode, name, each, {}) for mode in MODES for name in OPTIMIZERS for each in DTYPES),
        ("ddp", "sgd", "fp32", {"parallel__compress": "bf16"}),
        ("ddp", "sgd", "fp32", {"parallel__compress": "powersgd", "parallel__powersgd_start_step": 2}),
        ("ddp", "sgd", "fp32", {"parallel__local_steps": 2, "parallel__outer_momentum": 0.5}),
    ],
)
def test_ranks_wait_for_the_device_no_oftener(
    shapes: Path, group: Group, mode: str, optimizer: str, precision: str, parallel: dict[str, Any]
) -> None:
    settings = {**MODES[mode], **parallel, "train__optimizer": optimizer, "train__lr": 0.01}
    config = parallel_config(shapes, mode, **settings)
    job = job_of(shapes, precision, **{key: value for key, value in settings.items() if key.startswith("train__")})
    if mode == "ddp":
        convert(job.learner.model)
    else:
        shard(job.learner.model, "cpu", 1)
        job.learner.optimizer = optimizer_as_on_cuda(job.learner.model, config.train)
    before = [gather_full(parameter.detach()).clone() for parameter in job.learner.model.parameters()]
    found = {}
    for ranks in begun(group, job.learner, config):
        job.ranks = ranks
        for step, batch in zip(range(1, 6), job.source.epoch(0), strict=False):
            batch.whole_ids = batch.sample_ids
            with counted(job.learner.model.parameters(), job.learner.model.buffers()) as reads:
                job.task.reads = reads
                assert loop._step(job, batch, 0.0, 0.0) is not None
            found[step] = [each for each in reads.reads if "/learner.py" not in each]  # digests of the first two steps
    assert {step: len(each) for step, each in found.items()} == {1: 1, 2: 0, 3: 0, 4: 1, 5: 0}, found
    after = [gather_full(parameter.detach()) for parameter in job.learner.model.parameters()]
    assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) > len(after) / 2, "it trained"


def test_the_counter_counts_what_is_sharded(group: Group) -> None:
    layer = nn.Linear(2, 2)
    shard(layer, "cpu", 1)
    with counted(layer.parameters()) as reads:
        value = layer(torch.ones(2, 2)).sum()
        assert reads.reads == []
        for number, ask in enumerate((value.item, lambda: layer.weight.detach().max().item()), 1):
            ask()
            assert len(reads.reads) == number, number


def test_a_compiled_model_hands_over_its_gradients_bucket_by_bucket(
    shapes: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph is cut where a bucket is full; in one piece, all gradients would come when backward ends."""
    from torch._dynamo.backends.debugging import aot_eager

    graphs: list[int] = []

    def counting(graph: Any, examples: Any, **_: Any) -> Any:
        graphs.append(len(list(graph.parameters())))
        return aot_eager(graph, examples)

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend=counting))
    changes = {"train__compile": True, "model__width": 0.25, "train__checkpointing": False}
    config = parallel_config(shapes, "ddp", parallel__bucket_bytes=2**20, **changes)
    job = job_of(shapes, "fp32", **changes)
    job.config = config
    for ranks in begun(group, job.learner, config):
        batch = next(iter(job.source.epoch(0)))
        batch.whole_ids, job.ranks = batch.sample_ids, ranks
        assert isinstance(job.learner.wrapped.get_submodule("_orig_mod"), nn.parallel.DistributedDataParallel)
        assert _profile(ranks, job) is not None
        assert loop._step(job, batch, 0.0, 0.0) is not None
    assert len(graphs) > 1, "one graph"
    torch._dynamo.reset()


def test_equal_parts_are_known_to_all_ranks() -> None:
    def told(counts: list[int]) -> GatheredBatch:
        return GatheredBatch(lambda: [[float(n), float(n), 0.0, 0.0] for n in counts], 0, None, set)  # type: ignore[arg-type]

    assert told([8, 8, 8]).equal_parts
    assert not told([8, 8, 6]).equal_parts
    assert not told([8, 8, 0]).equal_parts


def test_on_a_gpu_batch_norm_learns_whether_parts_are_equal(shapes: Path, group: Group) -> None:
    job = job_of(shapes, "fp32")
    convert(job.learner.model)
    norms = [module for module in job.learner.model.modules() if isinstance(module, GlobalBatchNorm)]
    for ranks in begun(group, job.learner, parallel_config(shapes, "ddp"), "cuda"):
        batch = next(iter(job.source.epoch(0)))
        ranks.exchange_batch(1, 8.0, batch, lambda: None)
        ranks.sync_next(True)
        assert norms
        assert all(each.equal_parts for each in norms)


# FSDP


def reshards(model: nn.Module) -> dict[str, bool]:
    """Which parts let go of their weights after their forward."""
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "_get_fsdp_state"):
            groups = module._get_fsdp_state()._fsdp_param_groups
            found[name] = any(each.post_forward_mesh_info is not None for each in groups)
    return found


def test_a_validation_leaves_the_roots_setting(group: Group) -> None:
    model = Transformer(Size(width=128, layers=2, heads=2, hidden=512), 20)
    shard(model, "cpu", 1)
    before = reshards(model)
    assert before[""] is False
    assert len(before) > 1
    assert all(resharded for name, resharded in before.items() if name)
    with gathered(model):
        assert not any(reshards(model).values())
    assert reshards(model) == before


def test_weights_travel_in_the_precision_of_the_computation() -> None:
    transformer = Transformer(Size(width=16, layers=1, heads=2, hidden=16), 20)
    policy = mixed_precision(transformer, "cuda", "bf16")
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert not policy.cast_forward_inputs
    for model, device, precision in (
        (transformer, "cuda", "fp32"),
        (transformer, "cpu", "bf16"),
        (resnet("resnet18", 4, width=0.125), "cuda", "bf16"),
    ):
        assert mixed_precision(model, device, precision).param_dtype is None


class Sharded:
    """Stands for a tensor that all ranks put together: says how many of its kind are whole at a time."""

    whole: ClassVar[weakref.WeakSet[Tensor]] = weakref.WeakSet()
    most = gathers = 0

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def full_tensor(self) -> Tensor:
        cls = type(self)
        gc.collect()
        made = self.value.clone()
        cls.whole.add(made)
        cls.gathers += 1
        cls.most = max(cls.most, len(cls.whole))
        return made


def test_a_sharded_model_is_put_together_one_tensor_at_a_time_and_once(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    job = job_of(shapes, "fp32", train__optimizer="adamw")
    next(iter(loop.train(job)))
    reference = job.learner.tensors()
    state = {name: Sharded(value) for name, value in job.learner.model.state_dict().items()}
    own = {name[len("optimizer/") :]: Sharded(v) for name, v in reference.items() if name.startswith("optimizer/")}
    gc.freeze()  # of what was there before, nothing is garbage, and looking took minutes
    request.addfinalizer(gc.unfreeze)
    monkeypatch.setattr(job.learner.model, "state_dict", lambda: state)
    monkeypatch.setattr("flatout.engine.learner.optimizer_tensors", lambda *_: own)
    assert finite_tensors(job.learner, 1, keep=False) == {}
    assert Sharded.most <= 2  # the one that is looked at, and the next
    assert Sharded.gathers == len(state) + len(own)
    kept = finite_tensors(job.learner, 1, keep=True)
    assert kept.keys() == reference.keys()
    assert all(torch.equal(kept[name], value) for name, value in reference.items())


# DataParallel, and a model that does not fit


def test_a_replica_computes_in_the_precision_of_the_run(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DataParallel calls replicas in threads, which do not know the dtype of autocast."""
    job = job_of(shapes, "bf16")
    monkeypatch.setattr(joining, "devices_per_node", lambda config: 2)
    parallel = job.config.parallel.model_copy(update={"mode": "dp"})
    apply_parallelism(job.learner, job.config.model_copy(update={"parallel": parallel}), 1)
    assert isinstance(job.learner.wrapped, nn.DataParallel)
    replica, found = job.learner.wrapped.module, []
    images = torch.zeros(2, 3, 16, 16)
    thread = threading.Thread(target=lambda: found.append(replica(images).dtype))
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]


def test_a_model_that_does_not_fit_is_one_line(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore lines")

    monkeypatch.setattr("flatout.training.setup.build_learner", full)
    with pytest.raises(RunFailed, match=r"before the first step, with resnet18.*2\.00 GiB; use a smaller") as caught:
        train_run(recipe(shapes), run=tmp_path / "run")
    assert "\n" not in str(caught.value)
