"""Which optimizer step is which step of the run."""

from flatout.recording.steps import StepBook


def test_a_step_is_given_out_when_its_optimizer_steps_again() -> None:
    book = StepBook()
    book.begin(10.0)
    book.work.samples, book.work.wait_seconds = 8, 0.25
    assert book.optimizer_done(1, 11.0, 0, 0, 0.1) is None
    book.work.samples = 8
    first = book.optimizer_done(1, 12.5, 0, 1, 0.1)
    assert first is not None
    assert (first.seconds, first.work.samples, first.work.wait_seconds) == (1.0, 8, 0.25)
    last = book.take_last()
    assert last is not None
    assert (last.seconds, last.batch_index) == (1.5, 1)
    assert (book.done, book.take_last()) == (2, None)


def test_two_optimizers_of_a_gan_make_one_step() -> None:
    book = StepBook()
    book.begin(0.0)
    given = []
    for number in range(3):
        book.work.samples, book.work.fetches, book.work.loss = 4, 1, 2.0
        given.append(book.optimizer_done(1, number + 0.4, 0, number, 0.1))
        book.work.loss = 4.0
        given.append(book.optimizer_done(2, number + 1.0, 0, number, 0.2))
    steps = [step for step in [*given, book.take_last()] if step is not None]
    assert [(step.seconds, step.work.samples, step.work.loss) for step in steps] == [(1.0, 4, 6.0)] * 3


def test_accumulated_batches_are_one_step_and_validation_is_none_of_it() -> None:
    book = StepBook()
    book.begin(0.0)
    for _ in range(4):
        book.work.samples += 2
        book.work.fetches += 1
    book.work.beside_seconds = 3.0
    book.optimizer_done(1, 5.0, 0, 3, None)
    step = book.take_last()
    assert step is not None
    assert (step.seconds, step.work.samples, step.work.fetches) == (2.0, 8, 4)


def test_a_step_on_a_batch_that_was_kept_has_the_samples_of_the_one_before() -> None:
    book, told = StepBook(), []
    for step in range(3):
        book.work.backwards = 1
        book.work.samples = 24 if step == 0 else 0
        told.append(book.optimizer_done(1, float(step), 0, step, None))
    told.append(book.take_last())
    assert [each.work.samples for each in told if each is not None] == [24, 24, 24]


def test_a_batch_that_comes_with_the_second_optimizer_of_a_step_is_counted_once() -> None:
    book, told = StepBook(), []
    for at in range(3):
        book.work.backwards = 1
        told.append(book.optimizer_done(1, at, 0, at, None))
        book.work.backwards, book.work.samples = 1, 16
        told.append(book.optimizer_done(2, at + 0.5, 0, at, None))
    told.append(book.take_last())
    assert [each.work.samples for each in told if each is not None] == [16, 16, 16]
