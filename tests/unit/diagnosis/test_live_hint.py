from flatout.diagnosis.live import LiveHint


def after(steps: int, wait_seconds: float) -> str | None:
    hint = LiveHint()
    for _ in range(steps):
        hint.add(0.1, wait_seconds)
    return hint.text()


def test_a_starved_run_is_told() -> None:
    assert "waits for data 60 %" in (after(20, 0.06) or "")


def test_a_healthy_run_is_left_alone() -> None:
    assert after(100, 0.01) is None


def test_nothing_is_said_after_a_few_steps() -> None:
    assert after(5, 0.09) is None


def test_a_run_that_recovers_is_left_alone_again() -> None:
    hint = LiveHint()
    for wait_seconds in [0.09] * 20 + [0.0] * 20:
        hint.add(0.1, wait_seconds)
    assert hint.text() is None
