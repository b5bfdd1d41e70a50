"""Compares operator state: the elements of lists as multisets, over all subtasks, and broadcast state by key."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from stateflow.checkpoint.operator_parts import read_parts
from stateflow.compare.merge import Difference
from stateflow.compare.states import DecodedKey, StatePair
from stateflow.compare.stored_entries import Side
from stateflow.state.handles import StateSchema
from stateflow.types.key_encoding import decode_key, encode_key

PREFIX = "_operator/"
"""Prefix of the names of operator states."""
RAW, RAW_KEYED = "_raw", "_raw_keyed"
"""Names of raw operator state, and of raw keyed state, whose key is the key group."""


@dataclass
class _Content:
    """The operator state of all subtasks.

    Attributes:
        lists: the stored elements of list states by name, with their numbers.
        maps: the stored entries of broadcast states by name.
        kinds: kind of each state by name.
        schemas: schemas of the declared states by name.
    """

    lists: dict[str, Counter[bytes]] = field(default_factory=lambda: defaultdict(Counter))
    maps: dict[str, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    kinds: dict[str, str] = field(default_factory=dict)
    schemas: dict[str, StateSchema] = field(default_factory=dict)


def operator_differences(old: Side | None, new: Side | None) -> Iterator[tuple[StatePair, Difference]]:
    """Yields the elements and entries of operator state that differ, with their state.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
    """
    before, after = _read(old), _read(new)
    kinds = sorted({*before.kinds.items(), *after.kinds.items()})
    for name, kind in kinds:
        # A state whose kind has changed has its content under both kinds.
        pair = StatePair(name, kind, before.schemas.get(name), after.schemas.get(name))
        if before.kinds.get(name, kind) != kind or after.kinds.get(name, kind) != kind:
            pair = StatePair(name, kind)
        found = _of_lists if kind in _LISTS else _of_maps
        for difference in found(pair, before, after):
            yield pair, difference


def decode_operator_key(key: bytes) -> DecodedKey:
    """Decodes the key of a difference: that of a broadcast state's entry, a key group, or nothing for a list."""
    return DecodedKey((), map_key=decode_key(key)[0] if key else None)


_SPLIT, _UNION, _BROADCAST, _RAW, _RAW_KEYED = "split-list", "union-list", "broadcast", "raw", "raw-keyed"
_LISTS = {_SPLIT, _UNION, _RAW}


def _read(side: Side | None) -> _Content:
    found = _Content()
    if side is None:
        return found
    found.schemas = {f"{PREFIX}{schema.name}": schema for schema in side.operator.operator_states}
    for _, content in read_parts(side.storage, side.operator.parts):
        for kind, lists in ((_SPLIT, content.lists), (_UNION, content.unions)):
            for name, elements in lists.items():
                found.kinds[f"{PREFIX}{name}"] = kind
                found.lists[f"{PREFIX}{name}"].update(elements)
        for name, entries in content.broadcasts.items():
            found.kinds[f"{PREFIX}{name}"] = _BROADCAST
            found.maps[f"{PREFIX}{name}"].update(entries)
        if content.raw:
            found.kinds[RAW] = _RAW
            found.lists[RAW].update(content.raw)
        if content.raw_keyed:
            found.kinds[RAW_KEYED] = _RAW_KEYED
            found.maps[RAW_KEYED].update({encode_key((group,)): piece for group, piece in content.raw_keyed})
    return found


def _of_lists(pair: StatePair, before: _Content, after: _Content) -> Iterator[Difference]:
    old = before.lists[pair.name] if before.kinds.get(pair.name) == pair.kind else Counter[bytes]()
    new = after.lists[pair.name] if after.kinds.get(pair.name) == pair.kind else Counter[bytes]()
    removed, added = old - new, new - old
    if removed and added and pair.kind != _RAW:
        removed, added = _without_equal(pair, removed, added)
    yield from (Difference(b"", element, None) for element in sorted(removed.elements()))
    yield from (Difference(b"", None, element) for element in sorted(added.elements()))


def _without_equal(
    pair: StatePair, removed: Counter[bytes], added: Counter[bytes]
) -> tuple[Counter[bytes], Counter[bytes]]:
    """Returns the elements without those that equal one on the other side, although their bytes differ."""
    owners: dict[str, list[bytes]] = defaultdict(list)
    for element in added.elements():
        owners[pair.values.identity(element)].append(element)
    left, equal = Counter(removed), Counter[bytes]()
    for element in removed.elements():
        same = owners[pair.values.identity(element)]
        if same:
            left[element] -= 1
            equal[same.pop()] += 1
    return +left, added - equal


def _of_maps(pair: StatePair, before: _Content, after: _Content) -> Iterator[Difference]:
    old = before.maps[pair.name] if before.kinds.get(pair.name) == pair.kind else {}
    new = after.maps[pair.name] if after.kinds.get(pair.name) == pair.kind else {}
    for key in sorted({key for key, _ in old.items() ^ new.items()}):
        first, second = old.get(key), new.get(key)
        both = first is not None and second is not None
        if not both or pair.kind == _RAW_KEYED or not pair.values.equal(first or b"", second or b""):
            yield Difference(key, first, second)
