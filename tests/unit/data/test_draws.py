"""What is random about a sample: drawn from its id alone, in the bounds of the view."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.data.pixels import draws
from flatout.data.pixels.draws import FLIP, alternate_flips, draw, draw_mix, fast_uniforms
from flatout.data.pixels.views import SHIPPED, View
from flatout.errors import ConfigError
from flatout.sampling import epoch_order, uniforms

some = settings(max_examples=25, deadline=None)  # a loaded machine is no failure

EVERYTHING = replace(
    SHIPPED["train-224"],
    colour_jitter=(0.4, 0.3, 1.5),
    trivial_augment=True,
    erase=0.5,
    scale=(0.2, 0.9),
    ratio=(0.5, 2),
)
PADDED = replace(SHIPPED["train-64"], pad=3)
MANY = np.arange(4000)


def rows_of(view: View, seed: int, epoch: int, ids: np.ndarray) -> np.ndarray:
    """Everything drawn for each sample as one row."""
    drawn = draw(view, seed, epoch, ids)
    return np.concatenate(
        [part for part in (drawn.geometry, drawn.colour, drawn.trivial, drawn.erase) if part is not None], axis=1
    )


@some
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=12, unique=True),
    st.integers(0, 2**63 - 1),
    st.integers(0, 1000),
    st.randoms(),
)
@pytest.mark.parametrize("view", [EVERYTHING, PADDED], ids=["everything", "padded"])
def test_a_sample_gets_the_same_whatever_stands_beside_it(view: View, ids, seed, epoch, random) -> None:  # type: ignore[no-untyped-def]
    together = dict(zip(ids, rows_of(view, seed, epoch, np.array(ids)).tolist(), strict=True))
    random.shuffle(ids)
    for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :], ids[:1]):
        if part:
            assert rows_of(view, seed, epoch, np.array(part)).tolist() == [together[each] for each in part]


def test_other_samples_epochs_and_seeds_get_something_else() -> None:
    first = rows_of(EVERYTHING, 0, 0, MANY[:50])
    assert len({tuple(row) for row in first.tolist()}) == 50
    assert (first != rows_of(EVERYTHING, 0, 1, MANY[:50])).any(axis=1).all()
    assert (first != rows_of(EVERYTHING, 1, 0, MANY[:50])).any(axis=1).all()


def test_what_a_view_does_not_use_is_not_drawn() -> None:
    drawn = draw(SHIPPED["eval-224"], 0, 0, MANY[:3])
    assert drawn.colour is drawn.trivial is drawn.erase is None
    assert not drawn.recolours
    assert drawn.geometry[:, draws.FRACTION].tolist() == [224 / 256] * 3
    assert not drawn.geometry[:, [draws.KIND, draws.SHIFT_X, draws.SHIFT_Y, draws.FLIP]].any()
    assert np.array_equal(drawn.geometry, draw(SHIPPED["eval-224"], 7, 9, MANY[5:8]).geometry)


def test_crops_keep_to_the_shares_and_ratios_of_the_view() -> None:
    geometry = draw(EVERYTHING, 0, 0, MANY).geometry
    wide, high = geometry[:, draws.WIDTHS], geometry[:, draws.HEIGHTS]
    assert (wide * high).min() >= 0.2 - 1e-5
    assert (wide * high).max() <= 0.9 + 1e-5
    assert (wide / high).min() >= 0.5 - 1e-5
    assert (wide / high).max() <= 2 + 1e-5
    assert np.mean(wide * high) == pytest.approx(0.55, abs=0.01)  # uniform in area
    assert np.mean(np.log(wide / high)) == pytest.approx(0, abs=0.02)  # and in the logarithm of the ratio


def test_shifts_take_every_whole_number_up_to_the_padding() -> None:
    geometry = draw(PADDED, 0, 0, MANY).geometry
    for column in (draws.SHIFT_X, draws.SHIFT_Y):
        values, counts = np.unique(geometry[:, column], return_counts=True)
        assert values.tolist() == [-3, -2, -1, 0, 1, 2, 3]
        assert counts.min() > len(MANY) / 7 * 0.8
    assert not np.array_equal(geometry[:, draws.SHIFT_X], geometry[:, draws.SHIFT_Y])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_the_share_of_flips(share: float) -> None:
    flips = draw(replace(PADDED, flip=share), 0, 0, MANY).geometry[:, draws.FLIP]
    assert set(flips.tolist()) <= {0.0, 1.0}
    assert flips.mean() == pytest.approx(share, abs=0.04)


def test_colour_factors_stay_in_their_bounds() -> None:
    colour = draw(EVERYTHING, 0, 0, MANY).colour
    assert colour is not None
    for column, strength in zip(colour.T, EVERYTHING.colour_jitter, strict=True):
        assert column.min() >= max(0, 1 - strength)
        assert column.max() <= 1 + strength
        assert column.max() - column.min() > 1.9 * min(strength, 1)


def test_erased_rectangles_stay_inside() -> None:
    erase = draw(EVERYTHING, 0, 0, MANY).erase
    assert erase is not None
    x, y, width, height = erase.T
    assert erase.min() >= 0
    assert (x + width).max() <= 1
    assert (y + height).max() <= 1
    assert (width > 0).mean() == pytest.approx(0.5, abs=0.04)
    areas = (width * height)[width > 0]
    assert areas.max() <= 0.33 + 1e-6
    assert areas.min() >= 0.01


# --- mixing ----------------------------------------------------------------------------------------------------------

MIXUP, CUTMIX = replace(PADDED, mixup=0.2), replace(PADDED, cutmix=1.0)
BOTH = replace(PADDED, mixup=0.2, cutmix=1.0)


def test_no_mixing_unless_asked() -> None:
    assert draw_mix(PADDED, 0, 0, MANY, 64) is None
    assert draw_mix(MIXUP, 0, 0, MANY[:0], 64) is None


@some
@given(st.integers(1, 40), st.integers(0, 1000), st.integers(1, 300))
@pytest.mark.parametrize("view", [MIXUP, CUTMIX, BOTH], ids=["mixup", "cutmix", "both"])
def test_partners_are_mutual_and_an_odd_one_stays_alone(view: View, count: int, seed: int, side: int) -> None:
    mix = draw_mix(view, seed, 3, MANY[:count], side)
    assert mix is not None
    slots = np.arange(count)
    assert np.array_equal(mix.partner[mix.partner], slots)
    assert np.array_equal(mix.partner // 2, slots // 2)
    assert np.array_equal(mix.keep, mix.keep[mix.partner])
    assert np.array_equal(mix.box, mix.box[mix.partner])
    assert ((mix.keep >= 0) & (mix.keep <= 1)).all()
    if count % 2:
        assert (mix.partner[-1], mix.keep[-1]) == (count - 1, 1)
        assert not mix.box[-1].any()


@some
@given(st.integers(0, 1000), st.integers(1, 300))
def test_what_cutmix_keeps_is_the_area_outside_its_box(seed: int, side: int) -> None:
    mix = draw_mix(CUTMIX, seed, 0, MANY[:64], side)
    assert mix is not None
    x0, y0, x1, y1 = mix.box.T
    assert mix.box.min() >= 0
    assert mix.box.max() <= side
    assert (x0 <= x1).all()
    assert (y0 <= y1).all()
    assert np.allclose(mix.keep, 1 - (x1 - x0) * (y1 - y0) / side**2, atol=1e-6)


def test_mixup_has_no_box() -> None:
    mix = draw_mix(MIXUP, 0, 0, MANY, 64)
    assert mix is not None
    assert not mix.box.any()


def test_with_both_about_half_of_the_pairs_get_each() -> None:
    mix = draw_mix(BOTH, 0, 0, MANY, 64)
    assert mix is not None
    assert mix.box.any(axis=1).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("alpha", [0.2, 0.4, 1.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    mix = draw_mix(replace(PADDED, mixup=alpha), 0, 0, np.arange(40_000), 64)
    assert mix is not None
    keep = np.sort(mix.keep[::2])
    assert keep.mean() == pytest.approx(0.5, abs=0.015)
    assert keep.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_a_pair_mixes_the_same_wherever_it_stands() -> None:
    """Ranks cut batches between pairs, so a pair must not depend on the others."""
    whole = draw_mix(BOTH, 5, 2, MANY[:12], 64)
    part = draw_mix(BOTH, 5, 2, MANY[4:10], 64)
    assert whole is not None
    assert part is not None
    assert np.array_equal(whole.keep[4:10], part.keep)
    assert np.array_equal(whole.box[4:10], part.box)
    assert np.array_equal(whole.partner[4:10] - 4, part.partner)


@pytest.mark.parametrize("count", [1, 3, 4, 23])
def test_random_numbers_are_those_of_the_sampling_room(count: int) -> None:
    _native = pytest.importorskip("flatout.data.pixels._native", reason="the optional extension is not built")
    ids = np.array([0, 1, 77, 2**31, 2**32 + 5, 2**62], np.int64)
    for seed, epoch, stream in [(0, 0, 0), (7, 3, 4), (2**63 + 12345, 2**32 - 1, 255)]:
        out = np.full((len(ids), count), np.nan)
        _native.uniforms(seed, epoch, ids, stream, out)
        assert np.array_equal(out, uniforms(seed, epoch, ids, stream, count))
    with pytest.raises(ValueError, match="same number"):
        _native.uniforms(0, 0, ids, 0, np.zeros(7))


@some
@given(st.integers(0, 3000), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_the_compiled_generator_gives_the_same_order(samples: int, seed: int, epoch: int) -> None:
    assert np.array_equal(epoch_order(samples, seed, epoch, fast_uniforms), epoch_order(samples, seed, epoch))


def test_alternate_flips_begin_as_chance_does_and_turn_round_in_every_epoch() -> None:
    by_chance, turns = SHIPPED["train-64"], replace(SHIPPED["train-64"], alternate_flip=True)
    first, second, third = (draw(turns, 7, epoch, MANY).geometry for epoch in (0, 1, 2))
    assert np.array_equal(first, draw(by_chance, 7, 0, MANY).geometry)
    assert np.array_equal(second[:, FLIP], 1 - first[:, FLIP])
    assert np.array_equal(third[:, FLIP], first[:, FLIP])
    others = [column for column in range(first.shape[1]) if column != FLIP]
    assert np.array_equal(second[:, others], draw(by_chance, 7, 1, MANY).geometry[:, others])  # crops are as before
    assert 0.45 < first[:, FLIP].mean() < 0.55
    assert not np.array_equal(alternate_flips(8, 0, MANY), alternate_flips(7, 0, MANY))


@some
@given(
    st.lists(st.integers(0, 2**40), min_size=2, max_size=9, unique=True), st.integers(0, 2**63 - 1), st.integers(0, 99)
)
def test_an_alternate_flip_is_a_function_of_seed_epoch_and_sample(ids: list[int], seed: int, epoch: int) -> None:
    together = alternate_flips(seed, epoch, np.array(ids))
    alone = [bool(alternate_flips(seed, epoch, np.array([each]))[0]) for each in ids]
    assert together.tolist() == alone


def test_alternate_flips_need_a_fair_coin_and_change_the_digest() -> None:
    plain, turns = SHIPPED["train-64"], replace(SHIPPED["train-64"], alternate_flip=True)
    assert turns.digest() != plain.digest()
    assert turns.random
    with pytest.raises(ConfigError, match=r"alternate_flip but flip: 0\.3.*flip: 0\.5"):
        replace(plain, flip=0.3, alternate_flip=True)
