from flatout.planning.memory import MARGIN, MemorySetup, largest_batch, memory_of
from flatout.planning.work import Line, TracedWork


def work(weights: float = 100e6, per_sample: float = 10e6) -> TracedWork:
    memory = {"weights": Line(weights, 0), "gradients": Line(0, 0), "optimizer": Line(weights, 0),
              "activations": Line(0, per_sample)}  # fmt: skip
    return TracedWork((), memory, 25_000_000, weights, 1 / 3, Line(0, per_sample / 20))


def test_parts_add_up_to_the_peak():
    held = memory_of(work(), MemorySetup(64))
    assert held.peak_bytes == sum(held.parts.values())
    assert held.parts["activations"] == 640e6
    assert held.parts["context"] > 0


def test_the_largest_batch_fits_and_the_next_does_not():
    card = 16 * 2**30
    most = largest_batch(work(), MemorySetup(1), card)
    assert memory_of(work(), MemorySetup(most)).fits(card)
    assert not memory_of(work(), MemorySetup(most + 1)).fits(card)
    assert memory_of(work(), MemorySetup(most)).peak_bytes * (1 + MARGIN) <= card


def test_what_does_not_hold_one_sample_has_no_largest_batch():
    assert largest_batch(work(weights=20e9), MemorySetup(1), 16 * 2**30) == 0


def test_accumulation_holds_a_part_of_the_batch_and_all_gradients():
    plain, cut = memory_of(work(), MemorySetup(64)), memory_of(work(), MemorySetup(64, accumulate=4))
    assert cut.parts["activations"] == plain.parts["activations"] / 4
    assert cut.parts["gradients"] == 100e6
    assert largest_batch(work(), MemorySetup(1, accumulate=4), 2**34) > 3.5 * largest_batch(
        work(), MemorySetup(1), 2**34
    )


def test_sharding_divides_what_every_rank_would_hold():
    whole = memory_of(work(), MemorySetup(8, ranks=4))
    sharded = memory_of(work(), MemorySetup(8, ranks=4, sharded=True))
    assert sharded.parts["weights"] == whole.parts["weights"] / 4
    assert sharded.parts["optimizer"] == whole.parts["optimizer"] / 4
    assert sharded.peak_bytes < whole.peak_bytes
