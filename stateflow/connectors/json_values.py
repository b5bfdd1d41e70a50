"""Values of JSON as columns of declared types, strictly as RFC 8259: one decoder for lines of files and for records.

A value is read as it stands, or refused with a reason. Objects whose members are unique, and whose texts need no
further look, are decoded at once, by msgspec; all others one by one, by `_Value.exact`.
"""

from __future__ import annotations

import binascii
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from types import GenericAlias
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from stateflow.api.schema import Column
from stateflow.connectors.text_values import TextForms, WrongText, column_of_texts, convert_each
from stateflow.types.columns.conversion import with_nullable_parts
from stateflow.types.columns.shapes import Entries, Items, Leaf, Shape
from stateflow.types.declared_types import NOT_FINITE

_MOST_IGNORED = 256
"""Undeclared names of an object that decoding at once remembers."""
_MOST_UNUSED = 16
"""As many of these are kept when a batch has none of them."""
_MANY_VALUES = 1000
"""In smaller batches, names cost less than forgetting and learning them."""
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
"""Characters that msgspec refuses in the name of a member. Objects with such a name are decoded one by one."""
_NUMERIC = frozenset("+-.0123456789")
"""The first characters of decimal numbers."""
_PLAIN = (int, float, bool)
"""Python types whose values JSON has itself."""
_REASON = 300
_INT64 = range(-(1 << 63), 1 << 63)

_Values = Sequence[object]
_Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
_Decoder = Callable[[bytes], object]
_Raws = Callable[[bytes], dict[str, Raw]]


class WrongValue(ValueError):
    """A value that is not of the declared form; its text says why."""


class _Unclear(ValueError):
    """Values that must be decoded one by one."""


_REFUSED = (ValueError, OverflowError, RecursionError, msgspec.DecodeError, pa.ArrowException)
"""Errors of decoders for values that are not of the declared form."""


@dataclass
class _Seen:
    """The quotes of JSON that the values and names of columns need, and the objects that may have further members."""

    quotes: int = 0
    objects: list[tuple[_Object, _Values]] = field(default_factory=list)


class JsonObjects:
    """Decodes objects of JSON, with a member for each column. Further members are ignored; missing ones are null.

    The names of an object must be unique, also in objects that are values of a class. Of a key that a map has twice,
    the last value counts, as for Python's decoder.

    Args:
        columns: the columns.
        forms: the forms of dates and times.
    """

    def __init__(self, columns: Sequence[Column], forms: TextForms) -> None:
        arrow = pa.struct([pa.field(column.name, column.arrow_type) for column in columns])
        self._row = _Object([c.name for c in columns], [c.shape for c in columns], forms, arrow)
        self._decode: _Decoder = msgspec.json.Decoder(self._row.kind).decode

    def decode(self, values: Sequence[bytes]) -> tuple[list[pa.Array], dict[int, str]]:
        """Returns the columns of values, and for each that is not such an object its position and the reason.

        The columns are null where a value is wrong.
        """
        try:
            return self._at_once(values), {}
        except _REFUSED:
            return self._one_by_one(values)

    def _at_once(self, values: Sequence[bytes]) -> list[pa.Array]:
        joined = b"\n".join(values)
        joined.decode()
        seen = _Seen()
        columns = self._row.columns(list(map(self._decode, values)), seen)
        quotes, forgets = _quotes_in(joined), False
        # Without more quotes than the declared members need, no member is ignored.
        has_ignored = seen.quotes != quotes
        for part, objects in seen.objects:
            unused = part.count_ignored(objects, seen) if has_ignored else part.known
            if len(unused) > _MOST_UNUSED and len(objects) >= _MANY_VALUES:
                # The names in an earlier batch may have been keys, which would slow down all later batches.
                part.forget(unused)
                forgets = True
        # A name that occurs twice has quotes that the decoded object does not need.
        if seen.quotes != quotes:
            raise _Unclear
        if forgets:
            self._decode = msgspec.json.Decoder(self._row.kind).decode
        return columns

    def _one_by_one(self, values: Sequence[bytes]) -> tuple[list[pa.Array], dict[int, str]]:
        rows, errors = [], dict[int, str]()
        for at, value in enumerate(values):
            row = None
            try:
                value.decode()
                row = self._row.exact(value)
            except _REFUSED as e:
                row, errors[at] = self._row.empty(), reason_of(e)
            rows.append(row)
        columns = self._columns(rows, 0, errors)
        # Names that are ignored are known now.
        self._decode = msgspec.json.Decoder(self._row.kind).decode
        return columns, errors

    def _columns(self, rows: list[object], begin: int, errors: dict[int, str]) -> list[pa.Array]:
        """Returns the columns of rows, of which the first has the position `begin`; adds those that are wrong."""
        while True:
            try:
                return self._row.columns(rows, _Seen())
            except WrongText as e:
                # All texts that are wrong for one reason are known at once.
                for at, reason in e.wrong.items():
                    rows[at], errors[begin + at] = self._row.empty(), reason[:_REASON]
            except _REFUSED as e:
                if len(rows) > 1:
                    break
                rows, errors[begin] = [self._row.empty()], reason_of(e)
        half = len(rows) // 2
        parts = self._columns(rows[:half], begin, errors), self._columns(rows[half:], begin + half, errors)
        return [pa.concat_arrays(pair) for pair in zip(*parts, strict=True)]


def _quotes_in(text: bytes) -> int:
    """Returns the number of quotes around strings in valid JSON."""
    if b"\\" not in text:
        return text.count(b'"')
    # Without escaped backslashes, a backslash before a quote escapes it.
    left = text.replace(b"\\\\", b"")
    return left.count(b'"') - left.count(b'\\"')


def reason_of(error: Exception) -> str:
    """Returns why a value cannot be decoded."""
    if isinstance(error, RecursionError):
        return "the value has too many levels"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} of the value is not UTF-8"
    # What follows is often another object, on the same line.
    return str(error).replace("JSON is malformed: trailing characters", "it has more after its first object")[:_REASON]


# -- a value of each shape --------------------------------------------------------------------------------------------


class _Scalar:
    """A value without parts.

    Attributes:
        kind: the type that msgspec decodes it as.
    """

    def __init__(self, shape: Leaf, forms: TextForms) -> None:
        self._shape, self._forms = shape, forms
        self._is_plain = shape.kind in _PLAIN or pa.types.is_int64(shape.arrow)
        self._is_decimal = shape.kind is Decimal
        own = shape.kind if shape.kind in _PLAIN else int
        self.kind: object = Raw if self._is_decimal else own if self._is_plain else str
        self._decode: _Decoder = msgspec.json.Decoder(self.kind).decode

    @property
    def arrow(self) -> pa.DataType:
        return self._shape.arrow

    def column(self, values: _Values, seen: _Seen) -> pa.Array:
        """Returns the column of decoded values. Raises WrongText, or OverflowError for an integer out of range."""
        if self._is_plain:
            return pa.array(values, self._shape.arrow)
        if self._is_decimal:
            raws = cast(Sequence[Raw | None], values)
            texts = [None if raw is None or (text := bytes(raw)) == b"null" else text for raw in raws]
            seen.quotes += sum(text.count(b'"') for text in texts if text is not None)
            column = pa.array([text if text is None else text.strip(b'"') for text in texts], pa.binary())
            return column_of_texts(self._shape, column.cast(pa.string()), self._forms)
        column = pa.array(values, pa.string())
        seen.quotes += 2 * (len(column) - column.null_count)
        if self._shape.kind is bytes:
            return pa.array(convert_each(cast(Sequence[str | None], values), _base64), pa.binary())
        return column_of_texts(self._shape, column, self._forms)

    def exact(self, raw: bytes) -> object:
        """Returns a value, as `column` takes it. Raises WrongValue or msgspec.DecodeError."""
        is_text = raw[:1] == b'"'
        if self._is_decimal:
            return self._exact_decimal(raw, is_text)
        if self._shape.kind is float and is_text:
            text = _text(raw)
            if text not in NOT_FINITE:
                raise WrongValue(f"{text[:100]!r} is a text, not a number")
            return NOT_FINITE[text]
        if self._shape.kind is str and not is_text:
            return raw.strip().decode()
        value = self._decode(raw)
        if type(value) is int and value not in _INT64:
            raise WrongValue(f"{value} is out of the range of 64-bit integers")
        return value

    def _exact_decimal(self, raw: bytes, is_text: bool) -> Raw:
        text = _text(raw) if is_text else raw.strip().decode()
        if text[:1] not in _NUMERIC:
            # `column` would take these for null, or a text in quotes.
            raise WrongValue(f"{text[:100]!r} is not a decimal number")
        return Raw(text.encode())


class _List:
    def __init__(self, shape: Items, forms: TextForms) -> None:
        self._item = _value_of(shape.item, forms)
        self.arrow = with_nullable_parts(shape.arrow)
        self._decode: Callable[[bytes], list[Raw]] = msgspec.json.Decoder(list[Raw]).decode

    @property
    def kind(self) -> object:
        return GenericAlias(list, (_or_null(self._item.kind),))

    def column(self, values: _Values, seen: _Seen) -> pa.Array:
        values, places = _present(values)
        present = cast(Sequence[list[object]], values)
        ends = np.cumsum([0, *map(len, present)])
        with _of_whole(places, ends):
            items = self._item.column([item for value in present for item in value], seen)
        found = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=self.arrow)
        return found if places is None else found.take(places)

    def exact(self, raw: bytes) -> object:
        items = self._decode(raw)
        return [_exact(self._item, bytes(item), f"[{at}]") for at, item in enumerate(items)]


class _Map:
    def __init__(self, shape: Entries, forms: TextForms) -> None:
        assert isinstance(shape.key, Leaf)
        self._key, self._forms = shape.key, forms
        self._item = _value_of(shape.value, forms)
        self.arrow = with_nullable_parts(shape.arrow)
        self._decode: _Raws = msgspec.json.Decoder(dict[str, Raw]).decode

    @property
    def kind(self) -> object:
        return GenericAlias(dict, (str, _or_null(self._item.kind)))

    def column(self, values: _Values, seen: _Seen) -> pa.Array:
        values, places = _present(values)
        present = cast(Sequence[dict[str, object]], values)
        sizes = [0, *map(len, present)]
        texts = pa.array([key for value in present for key in value], pa.string())
        seen.quotes += 2 * len(texts)
        ends = np.cumsum(sizes)
        with _of_whole(places, ends):
            keys = column_of_texts(self._key, texts, self._forms)
            if not pa.types.is_string(self._key.arrow):
                _check_unique_keys(keys, ends.tolist())
            items = self._item.column([item for value in present for item in value.values()], seen)
        found = pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, items, type=self.arrow)
        return found if places is None else found.take(places)

    def exact(self, raw: bytes) -> object:
        return {key: _exact(self._item, bytes(item), f"[{key[:50]!r}]") for key, item in self._decode(raw).items()}


def _check_unique_keys(keys: pa.Array, ends: Sequence[int]) -> None:
    """Raises WrongText for maps with two keys that denote the same value, such as 1 and 01: positions are of keys."""
    values = keys.to_pylist()
    bounds = [bound for bound in pairwise(ends) if len(set(values[slice(*bound)])) < bound[1] - bound[0]]
    if bounds:
        raise WrongText({begin: "two keys of a map are equal" for begin, _ in bounds})


@contextmanager
def _of_whole(places: pa.Array | None, ends: _Numbers | None = None) -> Iterator[None]:
    """Raises WrongText of parts as one of the values that have them.

    Args:
        places: as `_present` returns them with the values that are not null.
        ends: the ends of these values in the column of their items, after 0; None if each has one part.
    """
    try:
        yield
    except WrongText as e:
        parts = sorted(e.wrong)
        values = np.array(parts) if ends is None else np.searchsorted(ends, parts, side="right") - 1
        if places is not None:
            values = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))[values]
        wrong = dict[int, str]()
        for value, part in zip(values.tolist(), parts, strict=True):
            wrong.setdefault(value, e.wrong[part])
        raise WrongText(wrong) from e


class _Object:
    """A value with a member for each field of a class; further members are ignored, missing ones are null.

    Attributes:
        known: names of members that are ignored, which the class of `kind` has.
    """

    def __init__(self, names: Sequence[str], fields: Sequence[Shape], forms: TextForms, arrow: pa.DataType) -> None:
        self._names = tuple(names)
        self._fields = [_value_of(shape, forms) for shape in fields]
        self.arrow = arrow
        self._ignored: dict[str, None] = {}
        self.known: list[str] = []
        self._decode: _Raws = msgspec.json.Decoder(dict[str, Raw]).decode
        self._class: Callable[..., object] = object

    @property
    def kind(self) -> object:
        """A class whose attributes are numbered, since members may have any name."""
        names = [*self._names, *self._ignored]
        self.known = list(self._ignored)
        kinds = [*(_or_null(part.kind) for part in self._fields), *(Raw for _ in self._ignored)]
        self._class = msgspec.defstruct(
            "Object",
            [(f"f{at}", operator.or_(kind, UnsetType), UNSET) for at, kind in enumerate(kinds)],
            rename={f"f{at}": name for at, name in enumerate(names)},
            forbid_unknown_fields=True,
        )
        return self._class

    def columns(self, values: _Values, seen: _Seen) -> list[pa.Array]:
        """Returns a column for each field of objects."""
        found = []
        for at, part in enumerate(self._fields):
            attribute = f"f{at}"
            members = [getattr(value, attribute) for value in values]
            missing = members.count(UNSET)
            if missing:
                members = [None if member is UNSET else member for member in members]
            seen.quotes += 2 * (len(members) - missing)
            try:
                found.append(part.column(members, seen))
            except WrongText as e:
                raise _within(self._names[at], e) from e
        if self.known:
            seen.objects.append((self, values))
        return found

    def forget(self, names: Sequence[str]) -> None:
        """Removes names of members that are ignored: the next class of `kind` is without them."""
        for name in names:
            self._ignored.pop(name, None)

    def count_ignored(self, values: _Values, seen: _Seen) -> list[str]:
        """Adds the quotes of members that are ignored. Returns the members that no value has."""
        unused = []
        for at, name in enumerate(self.known, len(self._fields)):
            members = [bytes(m) for value in values if (m := getattr(value, f"f{at}")) is not UNSET]
            seen.quotes += 2 * len(members) + _quotes_in(b"\n".join(members))
            if not members:
                unused.append(name)
        return unused

    def column(self, values: _Values, seen: _Seen) -> pa.Array:
        present, places = _present(values)
        fields = [self.arrow.field(at) for at in range(self.arrow.num_fields)]
        with _of_whole(places):
            columns = self.columns(present, seen)
        found = pa.StructArray.from_arrays(columns, fields=fields)
        return found if places is None else found.take(places)

    def exact(self, raw: bytes) -> object:
        members = self._decode(raw)
        if _quotes_in(raw) != 2 * len(members) + sum(_quotes_in(bytes(member)) for member in members.values()):
            raise WrongValue("an object has a name twice")
        for name in members.keys() - set(self._names):
            # The newest ones are kept: earlier objects may have had keys as names.
            self._ignored.pop(name, None)
            if not _ESCAPED.search(name):
                self._ignored[name] = None
        while len(self._ignored) > _MOST_IGNORED:
            del self._ignored[next(iter(self._ignored))]
        found = {
            f"f{at}": _exact(part, bytes(members[name]), f".{name}")
            for at, (name, part) in enumerate(zip(self._names, self._fields, strict=True))
            if name in members
        }
        return self._class(**found)

    def empty(self) -> object:
        """Returns an object without members."""
        return self._class()


_Value = _Scalar | _List | _Map | _Object


def _value_of(shape: Shape, forms: TextForms) -> _Value:
    if isinstance(shape, Leaf):
        return _Scalar(shape, forms)
    if isinstance(shape, Items):
        return _List(shape, forms)
    if isinstance(shape, Entries):
        return _Map(shape, forms)
    return _Object(shape.names, shape.fields, forms, with_nullable_parts(shape.arrow))


def _or_null(kind: object) -> object:
    # Raw has null, too.
    return kind if kind is Raw else operator.or_(kind, None)


def _present(values: _Values) -> tuple[_Values, pa.Array | None]:
    """Returns the values that are not null, and for each value its place among these; None if none is null."""
    is_null = np.fromiter((value is None for value in values), bool, len(values))
    if not is_null.any():
        return values, None
    return [v for v in values if v is not None], pa.array(np.cumsum(~is_null) - 1, mask=is_null)


def _exact(part: _Value, raw: bytes, path: str) -> object:
    """Returns a member or an item. Raises WrongValue with its path."""
    if raw.strip() == b"null":
        return None
    try:
        return part.exact(raw)
    except (WrongValue, msgspec.DecodeError) as e:
        text = str(e).replace(" - at `$`", "")
        raise WrongValue(f"{path}{'' if text[:1] in '.[' else ': '}{text}") from e


def _within(name: str, error: WrongText) -> WrongText:
    return WrongText({at: f".{name}{'' if r[:1] in '.[' else ': '}{r}" for at, r in error.wrong.items()})


def _text(raw: bytes) -> str:
    found: str = _decode_text(raw)
    return found


_decode_text = msgspec.json.Decoder(str).decode


def _base64(value: str) -> bytes:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as e:
        raise ValueError(f"{value[:100]!r} is not Base64: {e}") from None
