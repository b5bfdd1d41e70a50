"""Upper bound of the time in which decoding a value of msgpack inserts keys into dicts and elements into sets.

The keys of a forged value can be chosen so that each is compared with all others. The bound of a dict or set is the
number of its keys whose hashes are not secret, multiplied by the steps that comparing one key with all of them takes.
It is computed from the items of a value, without decoding them, so it depends on the bytes and the declared type alone,
as the bound of the memory does: what a job may write, it can read on each host. For a value of its declared type it is
never below that of plain dicts and lists, for readers that do not have the type.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from stateflow.types.bounds.hashed_places import (
    NUMBER,
    Place,
    hashed_types,
    have_sets,
    have_sets_in,
    item_steps,
    largest_steps,
)
from stateflow.types.bounds.msgpack_items import (
    ARRAYS,
    BINARY,
    LONG_TEXTS,
    MAPS,
    NUMBERS,
    RUN_WIDTHS,
    SHORT_TEXTS,
    SIZE_BYTES,
    WIDTHS,
    size_at,
)
from stateflow.types.declared_types import types_within
from stateflow.types.decoders import msgpack_decoder

STEPS_LIMIT = 1 << 30
"""Largest number of steps of a value. A step takes 1 ns with UUIDs and half of that with numbers (AMD EPYC)."""
_TEXT_OF_STEP = 16
"""Bytes of a text that are compared in one step."""
_DEEPEST = 100_000
"""Levels of containers after which the walk ends. Decoders raise RecursionError after 1,000 to 10,000."""
_PART_LEVELS, _MOST_PARTS, _SMALL_PART = 5, 100_000, 32
"""How many levels of containers are divided, into how many parts each, and the quotient of `unchecked` that is small
enough. A part takes 80 bytes of memory."""
_FEW = 8
"""Number of items of an array that are followed one by one."""

_IS_CONTAINER = bytes(tag in ARRAYS + MAPS for tag in range(256))
_IS_TEXT = bytes(tag in SHORT_TEXTS + LONG_TEXTS + BINARY for tag in range(256))
_LISTS, _OF_TEXTS = msgpack_decoder(list[msgspec.Raw]), msgpack_decoder(dict[str, msgspec.Raw])


class TooMuchHashing(ValueError):
    """Inserting the keys of a value into its dicts and sets could take too long."""


@dataclass(slots=True)
class _Container:
    """An array or map that the walk is in.

    Attributes:
        place: of the declared type.
        is_map: whether each second item is a key.
        left: number of items that the walk has not reached.
        before: steps for all items of the value before this container.
        key: offset of the last key.
        keys: number of keys and elements whose hashes are not secret.
        steps: what comparing one key with all of these takes.
    """

    place: Place
    is_map: bool
    left: int
    before: int = 0
    key: int = 0
    keys: int = 0
    steps: int = 0

    def add(self, steps: int, count: int = 1) -> None:
        """Adds keys that take these steps together."""
        self.keys += count
        self.steps += steps

    def is_at_key(self) -> bool:
        """Returns whether the last item that the walk has reached is a key, or an element of a set."""
        return self.left % 2 == 1 if self.is_map else self.place.is_set

    def pass_item(self, tag: int, at: int, text_steps: int) -> None:
        """Counts the item at an offset, which is no container; `text_steps` are those for the length of a text."""
        self.left -= 1
        if not self.is_at_key():
            return
        self.key = at
        if not _IS_TEXT[tag]:
            self.add(NUMBER)
        elif self.place.text_steps:
            self.add(self.place.text_steps + text_steps)

    def enter(self, data: bytes, at: int, before: int) -> tuple[_Container, int]:
        """Returns the container that is the item at an offset, and the offset after its header."""
        self.left -= 1
        tag, (start, size) = data[at], _header(data, at)
        is_map = tag in MAPS
        return _Container(self._place_of(data, at), is_map, size * (1 + is_map), before), start

    def _place_of(self, data: bytes, at: int) -> Place:
        if not self.is_map:
            return self.place.item
        if self.left % 2:
            return self.place.key
        return self.place.fields.get(data[self.key + 1 : at], self.place.value)


@dataclass(frozen=True)
class HashingCost:
    """The time in which keys in values of a declared type are inserted.

    Attributes:
        place: of a list of values.
        item_steps: for an item of a key that is no number.
        unchecked: size in bytes up to which `check` accepts each value; callers that are fast do not call it for these.
    """

    place: Place
    item_steps: int
    unchecked: int

    def check(self, data: bytes) -> None:
        """Raises TooMuchHashing if inserting the keys of `data`, a value of msgpack, could take too long."""
        if len(data) <= self.unchecked or self._squares(data, self.place.item, _PART_LEVELS) <= self.unchecked**2:
            return
        self.steps(data, STEPS_LIMIT)

    def steps(self, data: bytes, limit: int) -> int:
        """Returns the bound in steps; raises TooMuchHashing if it is above the limit.

        Of data that is not msgpack, or truncated, a part is counted: as much as can be decoded before that is noticed.
        """
        total = passed = at = 0
        end = len(data)
        inside, outer = _Container(self.place, is_map=False, left=1), list[_Container]()
        while True:
            if not inside.left or at >= end:
                product = inside.keys * inside.steps
                total += product
                if total > limit:
                    raise TooMuchHashing(f"inserting its keys could take more than {limit} steps")
                if not outer:
                    return total
                # Two sets are compared by searching the elements of one in the other.
                passed += product * inside.place.is_set
                before, inside = inside.before, outer.pop()
                if inside.is_at_key():
                    inside.add(passed - before)
            elif _IS_CONTAINER[tag := data[at]]:
                outer.append(inside)
                inside, at = inside.enter(data, at, passed)
                numbers, at = _pass_numbers(inside, data, at)
                passed += self.item_steps * (1 + numbers)
                end = end if len(outer) < _DEEPEST else at
            else:
                start, at = at, _end_of(data, at)
                text_steps = (at - start) // _TEXT_OF_STEP
                passed += self.item_steps + text_steps
                inside.pass_item(tag, start, text_steps)

    def _squares(self, data: bytes | memoryview, place: Place, levels: int) -> int:
        """Returns the sum of the squared sizes of parts, which contain all keys whose hashes are not secret.

        If it is at most the square of `unchecked`, then the steps are below the limit. It is computed much faster.
        """
        if place.has_no_keys:
            return 0
        if data[0] in MAPS and place.has_number_keys:
            entries = _header(data, 0)[1]
            return min(len(data), math.ceil(entries * self.unchecked / math.isqrt(STEPS_LIMIT))) ** 2
        parts = _parts(data, place) if levels else None
        if parts is None:
            return len(data) ** 2
        inner = place.value if data[0] in MAPS else place.item
        small = self.unchecked // _SMALL_PART
        return sum(
            [
                len(part) ** 2 if len(part) <= small else self._squares(memoryview(part), inner, levels - 1)
                for part in parts
            ]
        )


def _parts(data: bytes | memoryview, place: Place) -> Collection[msgspec.Raw] | None:
    """Returns the items of an array, or the values of a map with texts as keys; None for others.

    An array of numbers has no parts.
    """
    start, size = _header(data, 0) if _IS_CONTAINER[data[0]] else (0, 0)
    if place.is_set or place.text_steps or not 0 < size <= _MOST_PARTS:
        return None
    try:
        if data[0] in ARRAYS:
            run = NUMBERS.match(data, start)
            return [] if run and run.end() == len(data) else _LISTS.decode(data)
        parts = _OF_TEXTS.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    # Of several values with one key, only the last is a part.
    return parts.values() if len(parts) == size else None


def _header(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns the offset after the header of a container, and the number of its items or entries."""
    tag = data[at]
    return size_at(data, at) if tag in SIZE_BYTES else (at + 1, tag % 16)


def _end_of(data: bytes, at: int) -> int:
    width = WIDTHS[data[at]]
    return at + width if width else sum(size_at(data, at))


def _pass_numbers(inside: _Container, data: bytes, at: int) -> tuple[int, int]:
    """Counts the numbers of one width with which an array begins; returns how many, and the offset after them."""
    run = NUMBERS.match(data, at) if inside.left > _FEW and not inside.is_map else None
    if run is None:
        return 0, at
    width = RUN_WIDTHS[run.lastindex or 0]
    numbers = min(len(run[0]) // width, inside.left)
    inside.left -= numbers
    if inside.place.is_set:
        inside.add(NUMBER * numbers, numbers)
    return numbers, at + numbers * width


def hashing_cost(value_type: object) -> HashingCost:
    """Returns the time for the keys of a declared type.

    Raises:
        TypeError: msgspec does not know the type.
    """
    values = inspect.type_info(list[value_type])  # type: ignore[valid-type]
    types = list(types_within(values))
    keys, has_sets = hashed_types(types), have_sets(types)
    return HashingCost(Place([values], {}), item_steps(keys), _unchecked(keys, has_sets))


def _unchecked(keys: Sequence[inspect.Type], has_sets: bool) -> int:
    """Returns a size up to which the steps of a value are below the limit, whatever its bytes are."""
    if not keys:
        return sys.maxsize
    if have_sets_in(keys):
        return 0
    # Each key has at least one byte, and in a dict a value of another byte. All keys together have at most as many
    # items as the value has bytes.
    return math.isqrt(STEPS_LIMIT * (1 if has_sets else 2) // largest_steps(keys))


PLAIN_KEYS = hashing_cost(Any)
"""Time for the keys of values that are decoded without a type."""
