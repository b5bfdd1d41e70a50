"""Keys that an attacker can choose, so that Python compares each one with most of the others when it inserts them.

Numbers, tuples, decimals and UUIDs have the same hash in each process. Of most types there are as many with the same
hash as one likes. Of whole numbers with 64 bits there are at most twelve, so `whole_numbers` chooses different hashes
that lead along one path through the table of a dict: the slots of CPython are ``i = (5 * i + 1 + perturb) % size``, and
``perturb``, which begins as the hash, is divided by 32 each time. Once it is zero, the path is a circle of all slots.
"""

from __future__ import annotations

import decimal
import uuid
from typing import Any

import numpy as np

_MODULUS = (1 << 61) - 1
"""A number's hash is the number modulo this one."""
_SHIFT = 5
_LINEAR = 10
"""How many slots a set searches one after the other before it jumps."""


def whole_numbers(count: int, *, linear: int = 1) -> list[int]:
    """Returns whole numbers for the keys of a dict, the first half of which takes slots along the circle.

    Each of the others begins at a slot of the first ones, and passes most of them. One is repeated, because more
    different ones would make the table grow.

    Args:
        count: how many.
        linear: how many slots are searched one after the other at each step.
    """
    bits = (count // 2 * 3).bit_length() - 1
    size = 1 << bits
    place = _places_on_circle(size)
    taken = np.zeros(size, dtype=bool)
    circle = np.argsort(place)
    steps = 0
    while taken.sum() + linear <= count // 2:
        first = int(circle[steps])
        taken[first : first + linear] = True
        steps += 1
    hashes = np.arange(size, size << 8, dtype=np.int64)
    slots, perturb, is_taken = hashes % size, hashes.copy(), np.ones(len(hashes), dtype=bool)
    for _ in range(13):
        is_taken &= place[slots] < steps
        perturb >>= _SHIFT
        slots = (5 * slots + 1 + perturb) % size
    found = hashes[is_taken][np.argsort(place[slots[is_taken]], kind="stable")]
    room = size * 3 // 5 - int(taken.sum())
    others: list[int] = found[: min(room, count - int(taken.sum()))].tolist()
    keys: list[int] = np.flatnonzero(taken).tolist() + others
    return keys + [others[0]] * (count - len(keys))


def _places_on_circle(size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    places, slot = np.empty(size, dtype=np.int64), 0
    for place in range(size):
        places[slot] = place
        slot = (5 * slot + 1) % size
    return places


def decimals(count: int) -> list[decimal.Decimal]:
    """Returns different decimals with one hash."""
    return [decimal.Decimal(5 + number * _MODULUS) for number in range(count)]


def uuids(count: int) -> list[uuid.UUID]:
    """Returns different UUIDs with one hash."""
    return [uuid.UUID(int=5 + number * _MODULUS) for number in range(count)]


_WORD = (1 << 64) - 1
_PRIME_1, _PRIME_2, _PRIME_5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
"""Constants of the hash of tuples, which is that of xxHash with one word per item."""


def _after(state: int, item: int) -> int:
    state = (state + item * _PRIME_2) & _WORD
    return ((state << 31) | (state >> 33)) * _PRIME_1 & _WORD


def pairs(count: int, before: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Returns different tuples with one hash: numbers that all have, then two numbers."""
    state = _PRIME_5
    for item in before:
        state = _after(state, item)
    wanted = _after(state, 1) + 7 * _PRIME_2
    inverse = pow(_PRIME_2, -1, 1 << 64)
    found: list[tuple[int, ...]] = []
    first = 0
    while len(found) < count:
        first += 1
        second = (wanted - _after(state, first)) * inverse & _WORD
        if second < _MODULUS:
            found.append((*before, first, second))
    return found
