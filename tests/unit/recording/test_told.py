"""What the ranks said becomes the run's tables."""

from typing import Any

from flatout.recording.told import RankTold, RowTotals, take_rows, with_source


def step(epoch: int, index: int, samples: int = 4, loss: float | None = 1.0) -> dict[str, Any]:
    return {
        "step": {
            "attempt": 1,
            "epoch": epoch,
            "batch_index": index,
            "samples": samples,
            "loss": loss,
            "learning_rate": 0.1,
            "step_seconds": 0.5,
            "data_wait_seconds": 0.1,
            "time_unix": 1000.0 + index,
            "microbatches": 1,
        }
    }


def told(*events: dict[str, Any]) -> RankTold:
    rank = RankTold()
    for event in ({"process": {"attempt": 1, "pid": 7}}, *events):
        rank.add(event)
    return rank


def test_samples_of_all_ranks_are_one_step_and_a_late_rank_holds_it_back() -> None:
    ranks = [told(step(0, 0), step(0, 1)), told(step(0, 0, samples=3))]
    assert [(row["step"], row["samples"]) for row in take_rows(ranks, 0, ended=False)] == [(1, 7)]
    assert [(row["step"], row["samples"]) for row in take_rows(ranks, 1, ended=True)] == [(2, 4)]
    assert take_rows([], 0, ended=True) == []


def test_a_second_attempt_goes_on_counting_epochs() -> None:
    rank = told(step(0, 0), step(1, 0))
    rank.add({"process": {"attempt": 2, "pid": 8}})
    rank.add(step(0, 0))
    assert [each["epoch"] for each in rank.waiting] == [0, 1, 2]
    assert (rank.attempts, rank.end) == (2, None)


def test_an_epoch_has_its_mean_loss_and_what_was_logged_in_it() -> None:
    rank = told(
        step(0, 0, loss=1.0), step(0, 1, loss=3.0), {"log": {"val_loss": 0.5, "loss": 9.0}}, step(1, 0, loss=None)
    )
    totals = RowTotals()
    for row in take_rows([rank], 0, ended=True):
        totals.add(row)
    rows = totals.epoch_rows(rank.logged)
    assert [(row["epoch"], row["step"], row["samples"]) for row in rows] == [(0, 2, 8), (1, 3, 4)]
    assert (rows[0]["train_loss"], rows[0]["val_loss"], "train_loss" in rows[1]) == (2.0, 0.5, False)


def test_hot_lines_come_with_their_text() -> None:
    lines = with_source([["other", __file__, 1, "f", 2], ["forward", "/nowhere.py", 9, "g", 5]])
    assert [(line["part"], line["text"]) for line in lines] == [
        ("forward", ""),
        ("other", '"""What the ranks said becomes the run\'s tables."""'),
    ]


def test_what_a_long_run_told_is_not_kept() -> None:
    """A collector that grows with the run would be the leak that `explain` then finds."""
    ranks, totals = [told(), told()], RowTotals()
    for number in range(3000):
        for rank in ranks:
            rank.add(step(0, number))
            rank.add({"log": {"top1": number}})
        for row in take_rows(ranks, totals.steps, ended=False):
            totals.add(row)
    assert [len(rank.waiting) + len(rank.logged) for rank in ranks] == [1, 1]
    assert (totals.steps, totals.samples, totals.epoch_rows(ranks[0].logged)[0]["top1"]) == (3000, 24_000, 2999)
    assert totals.throughput()["samples_per_second"] == 16.0


def test_loaders_that_are_alike_and_one_for_each_pass_are_one_that_is_built_anew() -> None:
    settings = {"num_workers": 2, "samples": 320, "rebuilt": False}

    def rebuilt(loaders: int, epochs: int) -> bool:
        fed = [{"loader": {"number": number, **settings}, "trained": number} for number in range(loaders)]
        seen = told(*fed, *(step(epoch, 0) for epoch in range(epochs)))
        return bool(seen.training_loader["rebuilt"])

    assert rebuilt(loaders=8, epochs=8)
    assert not rebuilt(loaders=1, epochs=8)
    assert not rebuilt(loaders=2, epochs=8)
