"""Which cards of this machine the jobs of a sweep compute on."""

from collections.abc import Callable, Sequence
from itertools import cycle, islice


def places(cards: Sequence[str], cards_per_job: Callable[[int], int], jobs: int | None) -> list[tuple[str, ...]]:
    """Cards of each of the jobs that train at the same time. `jobs` is how many the user wants: more than there are
    sets of cards share them; None is one for each set. Nothing where a job takes none, or more than there are."""
    taken = cards_per_job(len(cards))
    if not taken or taken > len(cards):
        return []
    sets = [tuple(cards[at : at + taken]) for at in range(0, len(cards) - taken + 1, taken)]
    return list(islice(cycle(sets), jobs or len(sets)))
