"""The number of keys of a slice: it follows the memory that keys need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stateflow.state.kinds.timers import MOST, SliceSize

MIB = 1 << 20
SLICES = 12


@given(value=st.integers(0, 16 * MIB), emitted=st.integers(0, 50))
def test_the_size_becomes_constant_and_its_slices_have_at_most_two_mebibytes(value: int, emitted: int) -> None:
    size = SliceSize()
    for _ in range(SLICES):
        size.adapt(size.keys, size.keys * value, size.keys * emitted)
    assert size.keys == MOST or size.keys * (value + 400 * emitted) > MIB
    assert size.keys == 1 or size.keys * (value + 400 * emitted) <= 2 * MIB


def test_the_size_shrinks_at_once_and_grows_in_steps() -> None:
    size = SliceSize()
    sizes = []
    for value in (100, 100, 2 * MIB, 100, 100):
        size.adapt(size.keys, size.keys * value)
        sizes.append(size.keys)
    assert sizes == [512, 2048, 1, 4, 16]
