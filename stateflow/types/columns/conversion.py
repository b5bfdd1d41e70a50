"""Conversion between Arrow columns and Python objects of declared types, and the size of each row of a column.

Both directions work on whole columns: the fields of all objects of a class are one column each, and the items of all
lists are one column.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import numbers
import re
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape

NULL = "it is null"
PER_MILLISECOND = {"ms": 1, "us": 1000, "ns": 1_000_000}
"""How many of its units a timestamp column has in a millisecond."""
_UUID = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_COMPARISONS = {"gt": pc.greater, "ge": pc.greater_equal, "lt": pc.less, "le": pc.less_equal}
"""Functions of Arrow by constraint; false for NaN, as in Python."""
Maker = Callable[..., object]
"""Creates an object from the values of its fields, in order."""


_ACCEPTED: dict[type, tuple[type, ...]] = {
    int: (numbers.Integral,),
    float: (numbers.Real,),
    bool: (bool, np.bool_),
    bytes: (bytes, bytearray, memoryview),
    list: (list, tuple),
}
"""The types of values that a column of a type accepts; by default the type itself."""
_UNITS_OF_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
_EXCLUDED: dict[type, tuple[type, ...]] = {int: (bool,), float: (bool,), datetime.date: (datetime.datetime,)}
"""Subclasses of accepted types that a column does not accept."""


def maker_of(row_class: Callable[..., object], names: tuple[str, ...]) -> Maker:
    """Returns the function that creates objects of a class.

    Args:
        names: names of the fields.
    """
    if not _has_keyword_fields(cast(Hashable, row_class)):
        return row_class
    return lambda *values: row_class(**dict(zip(names, values, strict=True)))


@cache
def _has_keyword_fields(row_class: Callable[..., object]) -> bool:
    parameters = inspect.signature(row_class).parameters.values()
    return any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters)


# -- from Python to Arrow ---------------------------------------------------------------------------------------------


def to_column(shape: Shape, values: Sequence[object], *, exact: bool = False) -> pa.Array:
    """Returns the column of values, whose type is `shape.arrow`.

    Args:
        shape: the declared type.
        values: the values.
        exact: whether to refuse a datetime of which the column would drop the time zone or nanoseconds. State may have
            stored such values, and is read in UTC.

    Raises:
        TypeError: a value is not of the declared type, or None where the type is not nullable.
        ValueError, OverflowError, AttributeError: a value cannot be represented.
    """
    kinds = set(map(type, values))
    if type(None) not in kinds:
        return _column_of(shape, values, kinds, exact)
    if not shape.nullable:
        raise TypeError("None in a column that is not nullable")
    kinds.discard(type(None))
    if isinstance(shape, Leaf):
        return _column_of(shape, values, kinds, exact)
    present = [value for value in values if value is not None]
    is_null = np.fromiter((value is None for value in values), bool, len(values))
    # A position per value: the next of those that are present, and null for the others.
    return _column_of(shape, present, kinds, exact).take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))


def _column_of(shape: Shape, values: Sequence[Any], kinds: set[type], exact: bool) -> pa.Array:
    if isinstance(shape, Leaf):
        _check_kinds(shape.kind, kinds)
        if exact and shape.kind is datetime.datetime:
            _check_datetimes(values, is_zoned=shape.arrow.tz is not None)
        return pa.array(_scalars(shape, values), shape.arrow)
    if isinstance(shape, Record):
        columns = [
            _child(f".{name}", field, map(attrgetter(name), values), exact)
            for name, field in zip(shape.names, shape.fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(shape.arrow))
    ends = pa.array(np.cumsum([0, *map(len, values)]), pa.int32())
    if isinstance(shape, Items):
        _check_kinds(list, kinds)
        items = _child("[]", shape.item, chain.from_iterable(values), exact)
        return pa.ListArray.from_arrays(ends, items, type=shape.arrow)
    _check_kinds(dict, kinds)
    keys = _child(" (key)", shape.key, chain.from_iterable(values), exact)
    items = _child("[]", shape.value, chain.from_iterable(value.values() for value in values), exact)
    return pa.MapArray.from_arrays(ends, keys, items, type=shape.arrow)


def _child(path: str, shape: Shape, values: Iterable[object], exact: bool) -> pa.Array:
    """Returns the column of a part; an error names its path, such as ``.items[].price``."""
    try:
        return to_column(shape, list(values), exact=exact)
    except (TypeError, ValueError, OverflowError, AttributeError) as e:
        raise TypeError(f"{path}{'' if str(e)[:1] in '.[ ' else ': '}{e}") from e


def _check_kinds(wanted: type, kinds: set[type]) -> None:
    """Raises TypeError for values that Arrow would silently convert, such as 1.5 to 1, or 7 to a date."""
    accepted, excluded = _ACCEPTED.get(wanted, (wanted,)), _EXCLUDED.get(wanted, ())
    for kind in kinds:
        if not issubclass(kind, accepted) or issubclass(kind, excluded):
            raise TypeError(f"a value has the type {kind.__name__}")


def to_stored_scalar(value: object) -> object:
    """Returns a scalar as columns and keys contain it: the value of an Enum's member, and the text of a UUID."""
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, uuid.UUID) else value


def _scalars(shape: Leaf, values: Sequence[Any]) -> Sequence[object]:
    """Returns the values as Arrow accepts them."""
    if shape.is_converted:
        return list(map(to_stored_scalar, values))
    if shape.kind is datetime.time and any(value is not None and value.tzinfo for value in values):
        raise ValueError("a time has a time zone")
    return values


def _check_datetimes(values: Sequence[datetime.datetime | None], is_zoned: bool) -> None:
    """Raises ValueError for a datetime of which Arrow would drop the time zone or nanoseconds."""
    for value in values:
        if value is not None and value.tzinfo is not None and not is_zoned:
            raise ValueError("a datetime has a time zone, and the declared type has none")
        if getattr(value, "nanosecond", 0):
            raise ValueError("a datetime has nanoseconds")


# -- from Arrow to Python ---------------------------------------------------------------------------------------------


def to_objects(shape: Shape, column: pa.Array) -> Sequence[object]:
    """Returns the values of a column, None for null.

    Args:
        column: a column whose type is `shape.arrow`; parts may be nullable that are not declared so.

    Raises:
        ValueError: a value does not have the declared type, such as a text that is not a member of an Enum; or two
            texts are the same key of a map.
        OverflowError: a time is out of the range of Python's.
    """
    if isinstance(shape, Leaf):
        return _objects_of(shape, column)
    if column.null_count == 0:
        return _nested(shape, column)
    present = iter(_nested(shape, column.drop_null()))
    return [next(present) if is_valid else None for is_valid in column.is_valid().to_pylist()]


def _nested(shape: Items | Entries | Record, column: pa.Array) -> Sequence[object]:
    """Returns the values of a column without nulls."""
    if isinstance(shape, Record):
        fields = [to_objects(part, column.field(at)) for at, part in enumerate(shape.fields)]
        maker = maker_of(shape.row_class, shape.names)
        return list(map(maker, *fields)) if fields else [maker() for _ in range(len(column))]
    bounds, within = _bounds(column)
    if isinstance(shape, Items):
        items = to_objects(shape.item, column.values.slice(*within))
        return [list(items[start:end]) for start, end in bounds]
    keys = to_objects(shape.key, column.keys.slice(*within))
    values = to_objects(shape.value, column.items.slice(*within))
    found = [dict(zip(keys[start:end], values[start:end], strict=True)) for start, end in bounds]
    if isinstance(shape.key, Leaf) and shape.key.is_converted:
        # Several texts are the same UUID.
        for (start, end), entries in zip(bounds, found, strict=True):
            if len(entries) < end - start:
                raise ValueError("two keys of a map are equal")
    return found


def _objects_of(shape: Leaf, column: pa.Array) -> Sequence[object]:
    values = to_list(column)
    if not shape.is_converted:
        return values
    made = {value: shape.kind(value) for value in set(values) if value is not None}
    return [made[value] if value is not None else None for value in values]


def to_list(column: pa.Array) -> Sequence[object]:
    """Returns the values of a column as Arrow's Python objects, None for null.

    Numbers and timestamps without nulls are converted by NumPy, which is faster.
    """
    kind = column.type
    if column.null_count == 0:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers: Sequence[object] = column.to_numpy(zero_copy_only=False).tolist()
            return numbers
        if pa.types.is_timestamp(kind):
            return _timestamps(column, zoned=kind.tz is not None)
    values: Sequence[object] = column.to_pylist()
    return values


def _timestamps(column: pa.Array, zoned: bool) -> Sequence[object]:
    values: list[datetime.datetime] = column.to_numpy(zero_copy_only=False).astype("datetime64[us]").tolist()
    if int in map(type, values):
        # What NumPy returns for these.
        raise OverflowError("a timestamp is out of the range of years from 1 to 9999")
    return [v.replace(tzinfo=datetime.UTC) for v in values] if zoned else values


_FIRST_DAY, _END_DAY = -719_162, 2_932_897
"""0001-01-01 and 10000-01-01 in days since 1970."""


def first_time_out_of_range(column: pa.Array) -> int | None:
    """Returns the position of the first date or timestamp before the year 1, or after 9999, as Python's; else None."""
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return None
    unit = 1 if pa.types.is_date32(kind) else _UNITS_OF_DAY[kind.unit]
    numbers = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    is_out = pc.or_(pc.less(numbers, _FIRST_DAY * unit), pc.greater_equal(numbers, _END_DAY * unit))
    at: int = pc.index(is_out, True).as_py()
    return None if at < 0 else at


# -- nulls, and values of other types ---------------------------------------------------------------------------------


def path_of_null(shape: Shape, column: pa.Array) -> str | None:
    """Returns the path, such as ``.items[].price``, to a null that is not declared; None without one.

    Nulls of the column itself are not considered.
    """
    rows = column.drop_null() if column.null_count else column
    for path, part, values in _parts(shape, rows):
        if values.null_count and not part.nullable:
            return path
        inner = path_of_null(part, values)
        if inner is not None:
            return path + inner
    return None


def misfit_of(shape: Shape, column: pa.Array) -> tuple[str, str] | None:
    """Returns where a value is not one of the declared type, as a path, and why; None if all values are.

    The reason for an undeclared null is `NULL`.
    """
    if column.null_count and not shape.nullable:
        return "", NULL
    if isinstance(shape, Leaf):
        reason = _misfit_of_scalars(shape, column)
        return None if reason is None else ("", reason)
    rows = column.drop_null() if column.null_count else column
    broken = None if isinstance(shape, Record) else _broken(shape.constraints, rows)
    if broken is None and isinstance(shape, Entries) and _has_equal_keys(rows):
        broken = "two keys of a map are equal"
    if broken is not None:
        return "", broken
    for path, part, values in _parts(shape, rows):
        found = misfit_of(part, values)
        if found is not None:
            return path + found[0], found[1]
    return None


def _misfit_of_scalars(shape: Leaf, column: pa.Array) -> str | None:
    """Returns why a value is not one of a scalar type."""
    try:
        if shape.is_converted:
            return _unreadable(shape.kind, column.filter(pc.invert(_has_usual_form(shape.kind, column))))
        if shape.kind is decimal.Decimal and len(column):
            return _too_large(column)
        at = first_time_out_of_range(column)
        if at is not None:
            return f"{column[at].cast(pa.string())} is not within the years from 1 to 9999"
        if pa.types.is_string(column.type):
            # Spark and Arrow read texts of files without a look at their bytes.
            column.validate(full=True)
        return _broken(shape.constraints, column.drop_null())
    except (UnicodeDecodeError, pa.ArrowInvalid) as e:
        return f"it is not UTF-8: {e}"


def _broken(constraints: Sequence[tuple[str, object]], column: pa.Array) -> str | None:
    """Returns which constraint a value without nulls breaks."""
    broken = (
        f"a value does not have {name} {bound!r}" for name, bound in constraints if not _holds(name, bound, column)
    )
    return next(broken, None)


def _has_usual_form(kind: type[object], column: pa.Array) -> pa.Array:
    """Returns whether a value is the text of a UUID in its usual form, or the value of a member of an Enum, or null."""
    if issubclass(kind, uuid.UUID):
        return pc.fill_null(pc.match_substring_regex(column, _UUID), True)
    members = pa.array([None, *(member.value for member in cast(type[enum.Enum], kind))], column.type)
    return pc.is_in(column, value_set=members)


def _unreadable(kind: type, values: pa.Array) -> str | None:
    for value in pc.unique(values).to_pylist():
        try:
            kind(value)
        except (ValueError, TypeError, AttributeError) as e:
            return f"{value!r}: {e}"
    return None


def _too_large(column: pa.Array) -> str | None:
    """Returns why a decimal has more digits than its type; Arrow does not check decimals of files."""
    kind, bounds = column.type, pc.min_max(column).as_py()
    limit = decimal.Decimal(1).scaleb(kind.precision - kind.scale)
    # Not `abs`, which rounds to 28 digits.
    largest = max((value.copy_abs() for value in bounds.values() if value is not None), default=decimal.Decimal())
    return f"{largest} has more digits than {kind}" if largest >= limit else None


def _holds(name: str, bound: object, column: pa.Array) -> bool:
    """Returns whether all values meet a constraint of `msgspec.Meta`."""
    if name in _COMPARISONS:
        return bool(pc.all(_COMPARISONS[name](column, pa.scalar(bound, column.type)), min_count=0).as_py())
    if name == "enum":
        return bool(pc.all(pc.is_in(column, value_set=pa.array(bound, column.type)), min_count=0).as_py())
    if name == "multiple_of":
        return bool((np.fmod(column.to_numpy(zero_copy_only=False), cast(float, bound)) == 0).all())
    if name == "pattern":
        matches = re.compile(str(bound)).search
        return all(matches(text) is not None for text in pc.unique(column).to_pylist())
    compared = pc.greater_equal if name == "min_length" else pc.less_equal
    return bool(pc.all(compared(_lengths(column), bound), min_count=0).as_py())


def _has_equal_keys(column: pa.Array) -> bool:
    """Returns whether a map without nulls has a key twice, which Arrow, and readers of files, do not look at."""
    sizes = _lengths(column).to_numpy()
    _, (first, count) = _bounds(column)
    codes = column.keys.slice(first, count).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    entries = np.repeat(np.arange(len(sizes)), sizes) * (count + 1) + codes
    return len(np.unique(entries)) < count


def _lengths(column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type):
        return pa.array(np.diff(column.offsets.to_numpy()))
    return pc.binary_length(column) if pa.types.is_binary(column.type) else pc.utf8_length(column)


def _parts(shape: Shape, column: pa.Array) -> list[tuple[str, Shape, pa.Array]]:
    """Returns path, shape and column of the parts of a nested column without nulls."""
    if isinstance(shape, Record):
        named = zip(shape.names, shape.fields, strict=True)
        return [(f".{name}", part, column.field(at)) for at, (name, part) in enumerate(named)]
    if isinstance(shape, Leaf):
        return []
    _, within = _bounds(column)
    if isinstance(shape, Items):
        return [("[]", shape.item, column.values.slice(*within))]
    return [(" (key)", shape.key, column.keys.slice(*within)), ("[]", shape.value, column.items.slice(*within))]


def _bounds(column: pa.Array) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Returns where the items of each list or dict begin and end, and offset and number of all items.

    A column may be a slice of a longer one: bounds count from the first item of this column.
    """
    offsets = column.offsets.to_numpy()
    first = int(offsets[0]) if len(offsets) else 0
    ends = (offsets - first).tolist()
    return list(pairwise(ends)), (first, ends[-1] if ends else 0)


def with_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns a column as another Arrow type, which differs only in which parts may be null."""
    return column if column.type.equals(kind) else column.cast(kind)


def with_nullable_parts(kind: pa.DataType) -> pa.DataType:
    """Returns an Arrow type whose parts are all nullable."""
    return with_scalars(kind, lambda scalar: scalar)


def with_scalars(kind: pa.DataType, replaced: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns an Arrow type with other scalars; all parts are nullable.

    Args:
        replaced: returns the type that replaces a scalar type.
    """
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([pa.field(field.name, with_scalars(field.type, replaced)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(with_scalars(kind.key_type, replaced), with_scalars(kind.item_type, replaced))
    if pa.types.is_list(kind):
        return pa.list_(with_scalars(kind.value_type, replaced))
    return replaced(kind)


def arrow_types_within(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yields an Arrow type and the types of all its parts, entries of maps included."""
    yield kind
    for at in range(kind.num_fields):
        yield from arrow_types_within(kind.field(at).type)


Sizes = NDArray[np.int64]
_OFFSET = 4
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def row_bytes(column: pa.Array) -> Sizes:
    """Returns about how many bytes each row of a column takes in memory, without its validity bit."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [row_bytes(column.field(at)) for at in range(kind.num_fields)]
        return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(len(column), np.int64)
    if pa.types.is_map(kind):
        # Keys and items are those of the whole array, of which this may be a slice.
        offsets = column.offsets.to_numpy()
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "item"])
        return _of_lists(np.diff(offsets), entries.slice(offsets[0], offsets[-1] - offsets[0]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(_non_null_lengths(pc.list_value_length(column)), column.flatten())
    if any(is_kind(kind) for is_kind in _TEXTS):
        return _non_null_lengths(pc.binary_length(column)) + _OFFSET
    return np.full(len(column), -(-column.nbytes // max(len(column), 1)), np.int64)


def _non_null_lengths(column: pa.Array) -> Sizes:
    found: Sizes = column.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _of_lists(lengths: Sizes, elements: pa.Array) -> Sizes:
    until = np.append(0, np.cumsum(row_bytes(elements)))
    ends = np.cumsum(lengths)
    found: Sizes = until[ends] - until[ends - lengths] + _OFFSET
    return found
