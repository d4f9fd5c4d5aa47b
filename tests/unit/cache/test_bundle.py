"""Batches as bytes: what is written is read, and nothing else ever is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.cache.bundle import HEADER, HEADER_BYTES, SUM_EVERY, capacity_for, payload, read_bundle, write_bundle
from flatout.errors import BadBundle, NoSpace

KEY, OTHER = b"k" * 32, b"o" * 32
ARRAYS = {
    "images": np.arange(3 * 5000, dtype=np.uint8).reshape(3, 5000),
    "labels": np.array([1, -2, 3]),
    "keep": np.array([0.5, 1.5], np.float32),
    "none": np.zeros((0, 4), np.int64),
}


def written(spare: int = 0) -> bytearray:
    buffer = bytearray(capacity_for(sum(each.nbytes for each in ARRAYS.values()), len(ARRAYS), 1000) + spare)
    write_bundle(memoryview(buffer), KEY, ARRAYS, {"why": "ünïcode"})
    return buffer


def test_arrays_and_metadata_come_back() -> None:
    bundle = read_bundle(memoryview(written()), KEY, verify=True)
    assert bundle.meta == {"why": "ünïcode"}
    assert set(bundle.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert bundle.arrays[name].dtype == array.dtype
        assert np.array_equal(bundle.arrays[name], array)


def test_what_was_made_in_place_is_not_copied() -> None:
    buffer = memoryview(bytearray(20_000))
    space = payload(buffer)
    images = space[:5000].reshape(5, 1000)
    images[:] = 7
    write_bundle(buffer, KEY, {"labels": np.arange(5), "images": images[:4]}, {})
    read = read_bundle(buffer, KEY, verify=True).arrays
    assert np.shares_memory(read["images"], space)
    assert read["images"].shape == (4, 1000)
    assert (read["images"] == 7).all()


def test_another_batch_of_the_same_length_is_refused() -> None:
    with pytest.raises(BadBundle, match="another batch"):
        read_bundle(memoryview(written()), OTHER, verify=False)


def test_an_empty_or_half_written_buffer_is_refused() -> None:
    buffer = written()
    with pytest.raises(BadBundle):
        read_bundle(memoryview(bytearray(len(buffer))), KEY, verify=False)
    buffer[:HEADER_BYTES] = bytes(HEADER_BYTES)  # what a writer does first and undoes last
    with pytest.raises(BadBundle):
        read_bundle(memoryview(buffer), KEY, verify=False)


def test_no_room_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(NoSpace, match="does not fit"):
        write_bundle(memoryview(bytearray(9000)), KEY, ARRAYS, {})
    with pytest.raises(NoSpace, match="metadata"):
        write_bundle(memoryview(bytearray(16_000)), KEY, ARRAYS, {"long": "x" * 5000})


@given(at=st.integers(0, 17_000), flip=st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_any_changed_byte_is_found(at: int, flip: int) -> None:
    buffer = written()
    total = read_bundle(memoryview(buffer), KEY, verify=True).bytes
    at %= total
    if HEADER.size <= at < HEADER_BYTES:
        return  # not in use
    buffer[at] ^= flip
    with pytest.raises(BadBundle):
        read_bundle(memoryview(buffer), KEY, verify=True)


@given(
    key=st.binary(min_size=32, max_size=32),
    at=st.integers(HEADER_BYTES, (1 << 21) - SUM_EVERY * 4096),
    every=st.sampled_from([1, SUM_EVERY]),
)
@settings(max_examples=100, deadline=None)
def test_of_a_large_batch_some_blocks_are_summed(key: bytes, at: int, every: int) -> None:
    """Whatever the key, a stretch of so many blocks is found; one byte is, where its block has its turn."""
    buffer = bytearray(HEADER_BYTES + (1 << 21) + 1000)
    write_bundle(memoryview(buffer), key, {"images": np.ones(1 << 21, np.uint8)}, {}, every)
    read_bundle(memoryview(buffer), key, verify=True)
    buffer[at] ^= 1
    block = (at - HEADER_BYTES) // 4096
    if block % every == key[0] % every:
        with pytest.raises(BadBundle):
            read_bundle(memoryview(buffer), key, verify=True)
    else:
        read_bundle(memoryview(buffer), key, verify=True)
    buffer[at : at + every * 4096] = bytes(every * 4096)
    with pytest.raises(BadBundle):
        read_bundle(memoryview(buffer), key, verify=True)


@given(
    table=st.recursive(
        st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=5), max_leaves=12
    ),
    in_place=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_table_of_nonsense_is_refused(table: object, in_place: bool) -> None:
    """With a right checksum: whoever wrote it meant it."""
    import json

    from flatout.cache import bundle as module

    buffer = bytearray(HEADER_BYTES + 64) + json.dumps([[table], {}] if in_place else table).encode()
    ends = HEADER_BYTES + 64, len(buffer)
    said = module.checksum(memoryview(buffer), *ends, KEY, 1)
    HEADER.pack_into(buffer, 0, b"FLATOUT\x03", *ends, KEY, said, 1)
    with pytest.raises(BadBundle):
        read_bundle(memoryview(buffer), KEY, verify=True)
