"""Regular joins whose results are retracted: outer joins, and joins of changelog streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import cast

import msgspec

from stateflow.api.changelog import Changelog, with_kind
from stateflow.api.column_origins import Origins, origins_of
from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, RuntimeContext
from stateflow.api.joins.functions import Untyped, has_null
from stateflow.api.joins.pairs import ComparedPairs
from stateflow.api.joins.regular_join import EveryPair, KeptRows, Matching
from stateflow.api.schema import RowIdentity, RowSchema
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig

LEFT_UNMATCHED, RIGHT_UNMATCHED = "left-unmatched", "right-unmatched"
"""Names of the states with the rows that have had no partner yet; part of the stored format."""
_Pair = Callable[[Untyped, Untyped], object]
"""Takes a row and its partner, or None in place of either; returns the row to emit."""


@dataclass(frozen=True)
class JoinKind:
    """Which rows without a partner are emitted.

    Attributes:
        left, right: whether rows of this side without a partner are emitted.
    """

    left: bool
    right: bool


@dataclass(frozen=True)
class _OuterSide:
    """The rows of one side.

    Attributes:
        matched: those that have had a partner; all rows of a side whose rows without a partner are not emitted.
        unmatched: those without a partner, which were emitted with None; None for a side that has none.
    """

    matched: ListState[object]
    unmatched: ListState[object] | None


class OuterJoin(KeyedCoProcessFunction[object, object, object]):
    """Calls a function with each pair of rows, and with each row without a partner.

    Args:
        function: takes a left and a right row, one of which may be None, and returns the row to emit.
        row_kind: the field of that row that gets its `RowKind`.
    """

    _left: _OuterSide
    _right: _OuterSide

    def __init__(self, rows: KeptRows, kind: JoinKind, function: _Pair, row_kind: str) -> None:
        self.function = function
        self._rows = rows
        self._kind = kind
        self._row_kind = row_kind

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return origins_of(self.function)

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._rows.descriptors
        ttl, classes = self._rows.ttl, (self._rows.left.row_class, self._rows.right.row_class)
        names, is_outer = (LEFT_UNMATCHED, RIGHT_UNMATCHED), (self._kind.left, self._kind.right)
        unmatched = [
            ctx.get_list_state(ListStateDescriptor(name, row_class, ttl=ttl)) if outer else None
            for name, row_class, outer in zip(names, classes, is_outer, strict=True)
        ]
        self._left = _OuterSide(ctx.get_list_state(left), unmatched[0])
        self._right = _OuterSide(ctx.get_list_state(right), unmatched[1])
        self._pairs = ComparedPairs()
        self.hot_keys = self._pairs.hot

    def process_element1(self, row: object, ctx: Context) -> Iterator[object]:
        return self._arrive(row, ctx, self._left, self._right, self.function)

    def process_element2(self, row: object, ctx: Context) -> Iterator[object]:
        return self._arrive(row, ctx, self._right, self._left, lambda own, other: self.function(other, own))

    def _arrive(self, row: object, ctx: Context, own: _OuterSide, other: _OuterSide, pair: _Pair) -> Iterator[object]:
        if has_null(ctx.get_current_key()):
            # It never gets a partner, so its result is never deleted, and it is not stored.
            if own.unmatched is not None:
                yield with_kind(pair(row, None), self._row_kind, RowKind.INSERT)
            return
        partners = list(other.matched.get())
        waiting = [] if other.unmatched is None else list(other.unmatched.get())
        self._pairs.add(ctx.get_current_key(), len(partners) + len(waiting))
        if own.unmatched is not None and not partners and not waiting:
            own.unmatched.add(row)
            yield with_kind(pair(row, None), self._row_kind, RowKind.INSERT)
            return
        own.matched.add(row)
        if waiting and other.unmatched is not None:
            other.unmatched.clear()
            other.matched.add_all(waiting)
        for partner in waiting:
            yield with_kind(pair(None, partner), self._row_kind, RowKind.DELETE)
        for partner in (*partners, *waiting):
            yield with_kind(pair(row, partner), self._row_kind, RowKind.INSERT)


LEFT_COUNTED, RIGHT_COUNTED = "left-counted", "right-counted"
"""Names of the states with the rows of each side; part of the stored format."""
_Partner = tuple[bytes, "CountedRow"]
"""The identity of a row and the row."""


class CountedRow:
    """A row that a join keeps: the attributes of the class that `counted_class` returns.

    Attributes:
        row: the row, of kind `INSERT`.
        count: how many rows of equal content there are.
        alone: how many of them were emitted without a partner, and not retracted; 0 if they have a partner.
    """

    row: Untyped
    count: int
    alone: int

    def __init__(self, row: object, count: int, alone: int) -> None:
        self.row = row
        self.count = count
        self.alone = alone


def counted_class(row_class: type[object]) -> type[CountedRow]:
    """Returns the class of the kept rows of a side, which is part of the stored format."""
    fields = [("row", row_class), ("count", int), ("alone", int)]
    return cast("type[CountedRow]", msgspec.defstruct("CountedRow", fields, frozen=True))


@dataclass(frozen=True)
class ChangelogInput:
    """The rows of one side.

    Attributes:
        schema: the columns.
        changelog: how rows correct earlier ones; without upsert key and row kind, they only append.
    """

    schema: RowSchema
    changelog: Changelog = field(default_factory=Changelog)

    @cached_property
    def identity(self) -> RowIdentity:
        """The columns that a row has in common with the row that it retracts or replaces."""
        names = self.changelog.keys or [name for name in self.schema.names if name != self.changelog.row_kind]
        return RowIdentity.of(map(self.schema.column, names))

    @property
    def arguments(self) -> str:
        """The settings that the digests in the state depend on."""
        return f"{'upsert key' if self.changelog.keys else 'content'}: {self.identity.text}"

    def kind(self, row: object) -> RowKind:
        """Returns the kind of a row."""
        name = self.changelog.row_kind
        return RowKind(getattr(row, name)) if name else RowKind.INSERT

    def inserted(self, row: object) -> object:
        """Returns the row as it is kept, so that a row that is retracted later gives the same results."""
        name = self.changelog.row_kind
        return with_kind(row, name, RowKind.INSERT) if name else row


class _RowsByValues:
    """The rows of one side and of the current key, by the values of columns that are equal in each pair.

    Args:
        rows: the rows.
        columns: the columns.
    """

    def __init__(self, rows: MapState[bytes, CountedRow], columns: Sequence[str]) -> None:
        self._rows, self._columns = rows, columns
        self._key: object = None
        self._found: dict[object, dict[bytes, CountedRow]] | None = None

    def values(self, row: object) -> object:
        """Returns the values of a row; None if one is null or NaN, which are equal to nothing."""
        found = tuple(getattr(row, name) for name in self._columns)
        return None if any(value is None or value != value for value in found) else found

    def begin(self, key: object) -> None:
        """Forgets the rows of another key."""
        if key != self._key:
            self._key, self._found = key, None

    def of(self, values: object) -> list[_Partner]:
        """Returns the rows with values, in the order of the state."""
        if self._found is None:
            self._found = {}
            for identity, kept in self._rows.items():
                self.put(identity, kept)
        found = self._found.get(values, {}) if values is not None else {}
        return [(identity, found[identity]) for identity in sorted(found)]

    def put(self, identity: bytes, kept: CountedRow) -> None:
        """Adds a row, or replaces the one of its identity, which has the same values."""
        if self._found is not None:
            self._found.setdefault(self.values(kept.row), {})[identity] = kept

    def remove(self, identity: bytes, kept: CountedRow) -> None:
        """Removes a row."""
        if self._found is not None:
            self._found.get(self.values(kept.row), {}).pop(identity, None)


@dataclass(frozen=True)
class _Side:
    """The rows of one side in the state.

    Attributes:
        is_outer: whether its rows are emitted without a partner.
        made: the class of its kept rows.
        by_values: finds the rows that a row of the other side may be joined with; None if any may be.
    """

    given: ChangelogInput
    is_outer: bool
    made: type[CountedRow]
    rows: MapState[bytes, CountedRow]
    by_values: _RowsByValues | None

    def put(self, identity: bytes, kept: CountedRow) -> None:
        """Stores a row."""
        self.rows.put(identity, kept)
        if self.by_values is not None:
            self.by_values.put(identity, kept)

    def remove(self, identity: bytes, kept: CountedRow) -> None:
        """Removes a row."""
        self.rows.remove(identity)
        if self.by_values is not None:
            self.by_values.remove(identity, kept)

    def put_alone(self, identity: bytes, kept: CountedRow, alone: int) -> None:
        """Stores how many of equal rows were emitted without a partner."""
        self.put(identity, self.made(kept.row, kept.count, alone))

    def possible_partners(self, other: _Side, row: object) -> list[_Partner]:
        """Returns the rows of this side that a row of the other side may be joined with."""
        if self.by_values is None or other.by_values is None:
            return list(self.rows.items())
        return self.by_values.of(other.by_values.values(row))

    def alone(self, partners: list[_Partner]) -> int:
        """Returns how many of a new row are emitted without a partner: one or none."""
        return int(self.is_outer and not partners)


@dataclass(frozen=True)
class _Arrival:
    """The side of the current row, and how a row of it and one of the other side are joined.

    Attributes:
        is_left: whether the current row is one of the left side.
        is_joinable: whether rows of the key have partners; false for a key with a null.
        count: counts the pairs that are compared.
    """

    own: _Side
    other: _Side
    pair: _Pair
    is_left: bool
    matching: Matching
    is_joinable: bool
    count: Callable[[int], None]

    def partners(self, row: object) -> list[_Partner]:
        """Returns the rows of the other side that a row of this side is joined with."""
        if not self.is_joinable:
            return []
        others = self.other.possible_partners(self.own, row)
        self.count(len(others))
        is_joined = self.matching(row, [kept.row for _, kept in others], self.is_left)
        return [each for each, found in zip(others, is_joined, strict=True) if found]

    def left_alone(self, partners: list[_Partner]) -> list[_Partner]:
        """Returns those rows of the other side that no row of this side is joined with."""
        if isinstance(self.matching, EveryPair):
            return partners if self.own.rows.is_empty() else []
        every = None if self.own.by_values is not None else [kept.row for kept in self.own.rows.values()]
        return [each for each in partners if not self._has_partner(each[1].row, every)]

    def _has_partner(self, row: object, own: list[Untyped] | None) -> bool:
        """Returns whether a row of the other side is joined with one of this side; `own` are its rows, if known."""
        if own is None:
            own = [kept.row for _, kept in self.own.possible_partners(self.other, row)]
        return any(self.matching(row, own, not self.is_left))


@dataclass(frozen=True)
class JoinedPairs:
    """Which rows a join emits.

    Attributes:
        kind: which rows without a partner are emitted.
        row_kind: the field of the emitted rows that gets their `RowKind`.
        matching: the condition over both rows.
    """

    kind: JoinKind
    row_kind: str
    matching: Matching = field(default_factory=EveryPair)


class ChangelogJoin(KeyedCoProcessFunction[object, object, object]):
    """Calls a function with each pair of rows, and in outer joins with each row without a partner.

    The function is called again with the same rows when their result is retracted, so it must be deterministic.

    Args:
        inputs: the left and the right side.
        function: takes a left and a right row, one of which may be None, and returns the row to emit.
        ttl: for how long a row is kept; None for ever.
    """

    _left: _Side
    _right: _Side

    def __init__(
        self,
        inputs: tuple[ChangelogInput, ChangelogInput],
        pairs: JoinedPairs,
        function: _Pair,
        ttl: StateTtlConfig | None,
    ) -> None:
        self.function = function
        self._inputs = inputs
        self._kind = pairs.kind
        self._row_kind = pairs.row_kind
        self._matching = pairs.matching
        self._ttl = ttl

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return origins_of(self.function)

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._inputs
        self._left = self._side(ctx, LEFT_COUNTED, left, self._kind.left)
        self._right = self._side(ctx, RIGHT_COUNTED, right, self._kind.right)
        self._pairs = ComparedPairs()
        self.hot_keys = self._pairs.hot

    def process_element1(self, row: object, ctx: Context) -> Iterator[object]:
        return self._arrive(row, self._arrival(ctx, self._left, self._right, self.function))

    def process_element2(self, row: object, ctx: Context) -> Iterator[object]:
        return self._arrive(
            row, self._arrival(ctx, self._right, self._left, lambda own, other: self.function(other, own))
        )

    def _arrival(self, ctx: Context, own: _Side, other: _Side, pair: _Pair) -> _Arrival:
        key = ctx.get_current_key()
        for side in (own, other):
            if side.by_values is not None:
                side.by_values.begin(key)
        count = partial(self._pairs.add, key)
        return _Arrival(own, other, pair, own is self._left, self._matching, not has_null(key), count)

    def _side(self, ctx: RuntimeContext, name: str, given: ChangelogInput, is_outer: bool) -> _Side:
        # Here, because a class that is made at run time cannot be sent to tasks.
        made = counted_class(given.schema.row_class)
        rows = ctx.get_map_state(MapStateDescriptor(name, bytes, made, ttl=self._ttl, arguments=given.arguments))
        columns = [pair[name != LEFT_COUNTED] for pair in self._matching.equal]
        # With a time to live, rows expire between two others, and live longer when they are read.
        by_values = _RowsByValues(rows, columns) if columns and self._ttl is None else None
        return _Side(given, is_outer, made, rows, by_values)

    def _arrive(self, row: object, at: _Arrival) -> Iterator[object]:
        if not at.is_joinable and not at.own.is_outer:
            return
        given = at.own.given
        kind, identity = given.kind(row), given.identity.digest(row)
        kept = at.own.rows.get(identity)
        if kind.is_retraction:
            # A row that is not kept has expired, or was never added: it has no result that could be retracted.
            if kept is not None:
                yield from self._remove(identity, kept, kind, at)
            return
        added = given.inserted(row)
        if kept is None:
            yield from self._add(identity, at.own.made(added, 1, 0), kind, at)
        elif not given.changelog.keys:
            partners = at.partners(kept.row)
            more = at.own.made(kept.row, kept.count + 1, kept.alone + at.own.alone(partners))
            at.own.put(identity, more)
            yield from self._results(more, partners, kind, at)
        else:
            yield from self._replace(identity, kept, added, at)

    def _add(self, identity: bytes, kept: CountedRow, kind: RowKind, at: _Arrival) -> Iterator[object]:
        """Adds a row that has no equal; it may be the first partner of rows of the other side."""
        own, other = at.own, at.other
        partners = at.partners(kept.row)
        kept = own.made(kept.row, kept.count, own.alone(partners))
        own.put(identity, kept)
        for of, partner in partners:
            if partner.alone:
                other.put_alone(of, partner, 0)
                yield from self._emit(at.pair(None, partner.row), RowKind.DELETE, partner.alone)
        yield from self._results(kept, partners, kind, at)

    def _remove(self, identity: bytes, kept: CountedRow, kind: RowKind, at: _Arrival) -> Iterator[object]:
        """Retracts one row; it may have been the last partner of rows of the other side."""
        own, other = at.own, at.other
        partners = at.partners(kept.row)
        yield from self._results(kept, partners, kind, at)
        if kept.count > 1:
            own.put(identity, own.made(kept.row, kept.count - 1, max(kept.alone - 1, 0)))
            return
        own.remove(identity, kept)
        if other.is_outer:
            for of, partner in at.left_alone(partners):
                other.put_alone(of, partner, partner.count)
                yield from self._emit(at.pair(None, partner.row), RowKind.INSERT, partner.count)

    def _replace(self, identity: bytes, kept: CountedRow, row: object, at: _Arrival) -> Iterator[object]:
        """Replaces the row of an upsert key."""
        replaced = at.own.made(row, 1, kept.alone)
        is_joined_anew = self._lost_partners(kept, at)
        if kept.row == row and not is_joined_anew:
            at.own.put(identity, replaced)
        elif isinstance(at.matching, EveryPair) and not is_joined_anew:
            # The row has the same partners as before.
            at.own.put(identity, replaced)
            partners = at.partners(row)
            yield from self._results(kept, partners, RowKind.UPDATE_BEFORE, at)
            yield from self._results(replaced, partners, RowKind.UPDATE_AFTER, at)
        else:
            yield from self._remove(identity, kept, RowKind.UPDATE_BEFORE, at)
            yield from self._add(identity, at.own.made(row, 1, 0), RowKind.UPDATE_AFTER, at)

    def _lost_partners(self, kept: CountedRow, at: _Arrival) -> bool:
        """Returns whether all partners of a row of an outer side have expired: its result cannot be retracted."""
        is_possible = self._ttl is not None and at.own.is_outer and not kept.alone
        return is_possible and not at.partners(kept.row)

    def _results(self, kept: CountedRow, partners: list[_Partner], kind: RowKind, at: _Arrival) -> Iterator[object]:
        """Emits or retracts the results of a row: with each partner, or without one."""
        if self._kind.left or self._kind.right:
            # As in Flink: a result may appear without another one that it replaces.
            kind = RowKind.DELETE if kind.is_retraction else RowKind.INSERT
        if kept.alone:
            yield from self._emit(at.pair(kept.row, None), kind, 1)
            return
        for _, partner in partners:
            yield from self._emit(at.pair(kept.row, partner.row), kind, partner.count)

    def _emit(self, row: object, kind: RowKind, count: int) -> Iterator[object]:
        result = with_kind(row, self._row_kind, kind)
        for _ in range(count):
            yield result
