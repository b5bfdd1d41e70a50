"""HyperLogLog sketches, which estimate the number of distinct values, for many keys at once.

A sketch has 4096 registers, so the standard error is 1.6 %. A sparse sketch stores its non-zero registers, sorted, in
four bytes each; a dense sketch stores all registers in one byte each. The estimator is that of O. Ertl, "New
cardinality estimation algorithms for HyperLogLog sketches", 2017, which needs no tables for small cardinalities. Hash
function and layout are part of the stored format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash

from stateflow.api.functions.vectorized import Array
from stateflow.errors import CorruptFile
from stateflow.state.key_columns import to_comparable

REGISTERS = 4096
_INDEX_SHIFT, _RANK_BITS = 52, 6
_RANKS = _INDEX_SHIFT + 2
"""Number of register values: 0 for an empty register, else the number of leading zeros of a hash plus 1."""
_SEED = 0
_STEPS = 64
"""Number of terms after which neither series below changes in double precision."""


@dataclass(frozen=True)
class Sketches:
    """The non-zero registers of several keys, ordered by key and register.

    Attributes:
        keys: number of keys.
        places: number of the key, followed by 12 bits with the number of the register.
        ranks: values of the registers.
    """

    keys: int
    places: Array
    ranks: Array

    def merge(self, other: Sketches) -> Sketches:
        """Returns the union: the larger value of each register."""
        return _highest(
            self.keys, np.concatenate([self.places, other.places]), np.concatenate([self.ranks, other.ranks])
        )

    def merge_groups(self, group_of_key: Array, groups: int) -> Sketches:
        """Returns the union of the sketches of each group.

        Args:
            group_of_key: the number of the group of each key.
            groups: number of groups.
        """
        of_key, registers = self.places // REGISTERS, self.places % REGISTERS
        return _highest(groups, group_of_key[of_key] * REGISTERS + registers, self.ranks)

    def estimates(self) -> Array:
        """Returns the estimated number of distinct values per key."""
        of_key = self.places // REGISTERS
        counts = np.bincount(of_key * _RANKS + self.ranks, minlength=self.keys * _RANKS)
        counts = counts.reshape(self.keys, _RANKS).astype(np.float64)
        counts[:, 0] = REGISTERS - counts.sum(axis=1)
        z = REGISTERS * _tau(1 - counts[:, -1] / REGISTERS)
        for rank in range(_RANKS - 2, 0, -1):
            z = 0.5 * (z + counts[:, rank])
        z += REGISTERS * _sigma(counts[:, 0] / REGISTERS)
        found: Array = np.rint(REGISTERS**2 / (2 * np.log(2)) / z).astype(np.int64)
        return found

    def encode(self) -> list[bytes]:
        """Returns the stored form of each key's sketch."""
        of_key = self.places // REGISTERS
        registers = self.places % REGISTERS
        few = (registers << _RANK_BITS | self.ranks).astype("<u4").tobytes()
        edges = np.searchsorted(of_key, np.arange(self.keys + 1)).tolist()
        return [
            few[4 * start : 4 * end]
            if 4 * (end - start) < REGISTERS
            else _all_registers(registers[start:end], self.ranks[start:end])
            for start, end in pairwise(edges)
        ]


def decode(stored: Sequence[bytes | None]) -> Sketches:
    """Returns sketches from their stored form; None is an empty sketch.

    Raises:
        CorruptFile: the bytes are not a sketch.
    """
    places, ranks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, data in enumerate(stored):
        if data is None:
            continue
        if len(data) == REGISTERS:
            every = np.frombuffer(data, np.uint8).astype(np.int64)
            registers = np.flatnonzero(every)
            found = every[registers]
        elif len(data) % 4 == 0 and len(data) < REGISTERS:
            few = np.frombuffer(data, "<u4").astype(np.int64)
            registers, found = few >> _RANK_BITS, few & (1 << _RANK_BITS) - 1
        else:
            raise CorruptFile("a HyperLogLog sketch has an invalid length", bytes=len(data))
        if (registers >= REGISTERS).any() or (found >= _RANKS).any():
            raise CorruptFile("a HyperLogLog sketch has an invalid register", bytes=len(data))
        places.append(number * REGISTERS + registers)
        ranks.append(found)
    return _highest(len(stored), np.concatenate(places), np.concatenate(ranks))


def sketch(values: pa.Array, key_of_row: Array, keys: int) -> Sketches:
    """Returns the sketches of the non-null values of a column.

    Args:
        values: one value per row.
        key_of_row: number of the key of each row.
        keys: number of keys.
    """
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        values, key_of_row = values.drop_null(), key_of_row[valid]
    hashes = _hashes(values)
    remainder = hashes & np.uint64((1 << _INDEX_SHIFT) - 1)
    # Integers below 2**53 are exact as floats, and the exponent is the number of bits.
    ranks = _INDEX_SHIFT + 1 - np.frexp(remainder.astype(np.float64))[1].astype(np.int64)
    registers = (hashes >> np.uint64(_INDEX_SHIFT)).astype(np.int64)
    return _highest(keys, key_of_row * REGISTERS + registers, ranks)


def _highest(keys: int, places: Array, ranks: Array) -> Sketches:
    both = np.sort(places << _RANK_BITS | ranks)
    places = both >> _RANK_BITS
    last = np.append(places[1:] != places[:-1], True) if len(both) else np.zeros(0, bool)
    return Sketches(keys, places[last], both[last] & (1 << _RANK_BITS) - 1)


def _all_registers(registers: Array, ranks: Array) -> bytes:
    every = np.zeros(REGISTERS, np.uint8)
    every[registers] = ranks
    return every.tobytes()


def _hashes(values: pa.Array) -> Array:
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        encoded = values.dictionary_encode()
        each = [xxhash.xxh64_intdigest(text, _SEED) for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
        found: Array = np.array(each, np.uint64)[encoded.indices.to_numpy()]
        return found
    return _mixed(_numbers(values))


def _numbers(values: pa.Array) -> Array:
    kind = values.type
    if pa.types.is_floating(kind):
        whole = to_comparable(values)
    elif pa.types.is_date32(kind):
        whole = values.cast(pa.int32())
    else:
        whole = values.cast(pa.int64())
    found: Array = whole.to_numpy().astype(np.int64 if whole.type != pa.uint64() else np.uint64).view(np.uint64)
    return found


def _mixed(numbers: Array) -> Array:
    """Returns hashes by the mixing step of SplitMix64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    x: Array = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ x >> np.uint64(31)
    return mixed


def _sigma(x: Array) -> Array:
    full = x == 1
    x = np.where(full, 0.0, x)
    total, weight = x.copy(), 1.0
    for _ in range(_STEPS):
        x = x * x
        total += x * weight
        weight *= 2
    return np.where(full, np.inf, total)


def _tau(x: Array) -> Array:
    at_end = (x == 0) | (x == 1)
    x = np.where(at_end, 0.5, x)
    total, weight = 1 - x, 1.0
    for _ in range(_STEPS):
        x = np.sqrt(x)
        weight *= 0.5
        total -= (1 - x) ** 2 * weight
    return np.where(at_end, 0.0, total / 3)
