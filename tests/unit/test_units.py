"""What people write as sizes, durations and rates, and what they read back."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import ConfigError
from flatout.units import (
    format_bits_per_second,
    format_bytes,
    format_seconds,
    format_share,
    format_usd,
    parse_bits_per_second,
    parse_bytes,
    parse_seconds,
)

some = settings(max_examples=50, deadline=None)  # a loaded machine is no failure


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (512, 512), ("512", 512), ("512 B", 512), ("200 MB", 200_000_000), ("200MB", 200_000_000),
        ("1.5 GiB", 3 * 2**29), (" 2 kib ", 2048),
        ("1e3 kB", 1_000_000), (".5 TB", 500_000_000_000), ("1.001 kB", 1001), ("0.29 kB", 290),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@some
@given(st.integers(0, 10**6), st.sampled_from(["kB", "MB", "GB"]))
def test_a_size_with_three_decimals_is_exact(thousandths: int, unit: str) -> None:
    factor = {"kB": 1, "MB": 10**3, "GB": 10**6}[unit]
    assert parse_bytes(f"{thousandths / 1000:.3f} {unit}") == thousandths * factor


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90.0), ("90", 90.0), ("90 s", 90.0), ("5 min", 300.0), ("2h", 7200.0), ("1 d", 86400.0), ("250 ms", 0.25)],
)
def test_durations_are_read(text: str | int, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["1 Gbps", "1 Gb/s", "1 Gbit/s", "1000 mbps", "1e9 bps", 10**9])
def test_bit_rates_are_read(text: str | int) -> None:
    assert parse_bits_per_second(text) == 1e9


@pytest.mark.parametrize("text", ["1 GB/s", "1 GBps"])
def test_bytes_per_second_are_not_taken_for_bits(text: str) -> None:
    with pytest.raises(ConfigError, match="1 Gbps"):
        parse_bits_per_second(text)


@pytest.mark.parametrize(
    "text", ["", "MB", "-3 MB", "3 MX", "3 s", "three", "3 4 MB", "1e999 MB", True, None, [3], math.nan]
)
@pytest.mark.parametrize("parse", [parse_bytes, parse_bits_per_second])
def test_what_is_no_quantity_is_refused_with_the_value_and_an_example(parse, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "write for example" in str(caught.value)


def test_a_wrong_duration_is_answered_with_durations() -> None:
    with pytest.raises(ConfigError, match=r"'5 parsecs' is not a duration; write for example 90 s, 5 min or 2 h"):
        parse_seconds("5 parsecs")


@some
@given(st.integers(0, 10**16))
def test_a_size_read_back_from_what_is_shown_is_close(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.006)


@some
@given(st.floats(1.0, 1e13))
def test_a_rate_read_back_from_what_is_shown_is_close(rate: float) -> None:
    if rate < 1e12:
        assert parse_bits_per_second(format_bits_per_second(rate)) == pytest.approx(rate, rel=0.006, abs=0.5)
    assert "e+" not in format_bits_per_second(rate)


@some
@given(st.floats(1e-6, 59.9))
def test_a_short_duration_read_back_from_what_is_shown_is_close(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds).replace("µ", "u")) == pytest.approx(seconds, rel=0.006)


@some
@given(st.floats(0, 1e7))
def test_durations_never_show_sixty_of_a_unit_or_an_exponent(seconds: float) -> None:
    shown = format_seconds(seconds)
    assert "60" not in shown.split()[2:3]
    assert "e+" not in shown
    assert not shown.startswith("1000 ")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.85, "850 ms"), (12.34, "12.3 s"), (245, "4 min 05 s"), (7384, "2 h 03 min"), (59.97, "1 min 00 s"),
        (3599.7, "1 h 00 min"), (0.9996, "1 s"), (0.00099996, "1 ms"), (None, "n/a"), (float("inf"), "n/a"),
    ],
)  # fmt: skip
def test_durations_are_shown(seconds: float | None, shown: str) -> None:
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (38_500_000, "38.5 MB"),
        (999_600, "1 MB"),
        (12_345 * 10**12, "12345 TB"),
        (None, "n/a"),
    ],
)
def test_sizes_are_shown(count: int | None, shown: str) -> None:
    assert format_bytes(count) == shown


def test_what_is_unknown_is_na_and_never_zero() -> None:
    assert [format_bits_per_second(None), format_usd(None), format_share(None, 3), format_share(3, None)] == ["n/a"] * 4
    assert format_share(3, 0) == "n/a"
    assert format_share(0, 3) == "0.0 %"


@pytest.mark.parametrize(("dollars", "shown"), [(0, "$0.00"), (0.0123, "$0.0123"), (1234.5, "$1,234.50")])
def test_dollars_are_shown(dollars: float, shown: str) -> None:
    assert format_usd(dollars) == shown
