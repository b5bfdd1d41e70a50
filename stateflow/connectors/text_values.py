"""Texts as values of declared types: strict forms, for whole columns of Arrow. Pure.

A text is read as the one value that it denotes, or refused: no readers' guesses, such as today's date for a time of
day. JSON and CSV share these forms.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException, InvalidOperation
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import ConfigError
from stateflow.types.columns.shapes import Leaf
from stateflow.types.declared_types import python_type_of

T = TypeVar("T")
U = TypeVar("U")

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_SPECIAL = r"(?i:NaN|[+-]?Inf(?:inity)?)"
_INTEGER = r"^[+-]?[0-9]+$"
_FLOAT, _DECIMAL = rf"^(?:{_NUMBER}|{_SPECIAL})$", rf"^{_NUMBER}$"
_TIME = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0*)?)?"
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE = "(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_LOCAL = rf"^{_DATE}(?:[T ]{_TIME})?$"
_INSTANT = rf"^{_DATE}(?:[T ]{_TIME}{_ZONE}?)?$"
_HAS_ZONE = rf"[T ].*{_ZONE}$"
_LASTING = r"([0-9]{1,9}) ([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.([0-9]{1,6})0*)?"
_INTERVAL = re.compile(rf"(-?){_LASTING}|INTERVAL '(-?){_LASTING}' DAY TO SECOND")
"""The second form is the one in which Spark writes intervals."""
_SECOND = 1_000_000
_MIDNIGHT = 719_162 * 86_400 * _SECOND
"""Microseconds between 0001-01-01 and 1970-01-01."""
_END = 2_932_897 * 86_400 * _SECOND
"""Microseconds between 1970-01-01 and 10000-01-01."""
_MOST_DAYS = 106_751_990
"""Days that fit 64 bits of microseconds."""
_LONGEST_NUMBER = 1000
_SHOWN = 100

_FIELDS = {
    "yyyy": ("y", "([0-9]{4})"),
    "uuuu": ("y", "([0-9]{4})"),
    "yy": ("y2", "([0-9]{2})"),
    "MM": ("M", "([0-9]{2})"),
    "M": ("M", "([0-9]{1,2})"),
    "dd": ("d", "([0-9]{2})"),
    "d": ("d", "([0-9]{1,2})"),
    "HH": ("H", "([0-9]{2})"),
    "H": ("H", "([0-9]{1,2})"),
    "mm": ("m", "([0-9]{2})"),
    "m": ("m", "([0-9]{1,2})"),
    "ss": ("s", "([0-9]{2})"),
    "s": ("s", "([0-9]{1,2})"),
    "X": ("z", "(Z|[+-][0-9]{2}(?:[0-9]{2})?)"),
    "XX": ("z", "(Z|[+-][0-9]{4})"),
    "XXX": ("z", "(Z|[+-][0-9]{2}:[0-9]{2})"),
    "x": ("z", "([+-][0-9]{2}(?:[0-9]{2})?)"),
    "xx": ("z", "([+-][0-9]{4})"),
    "xxx": ("z", "([+-][0-9]{2}:[0-9]{2})"),
    "Z": ("z", "([+-][0-9]{4})"),
}
"""Letters of Java's patterns of times, each with the part that it is and its regular expression."""
_LETTERS = ", ".join((*_FIELDS, "S"))
FORM_OPTIONS: Mapping[str, tuple[type, bool]] = {
    "dateformat": (datetime.date, False),
    "timestampformat": (datetime.datetime, True),
    "timestampntzformat": (datetime.datetime, False),
    "timeformat": (datetime.time, False),
}
"""Options with a pattern, in lower case: the Python type, and whether it has a time zone."""
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", re.DOTALL)


class WrongText(ValueError):
    """Texts that are not of the form of their column.

    Args:
        wrong: their positions in the column, each with the reason, in words that follow the column's name. Of texts
            that are wrong for several reasons, some may be missing until the others are corrected.

    Attributes:
        at: the position of the first one.
        reason: its reason.
    """

    def __init__(self, wrong: Mapping[int, str]) -> None:
        self.at, self.reason = min(wrong.items())
        self.wrong = wrong
        super().__init__(self.reason)


@dataclass(frozen=True)
class TextForms:
    """The forms of dates and times that options declare, as regular expressions; by default ISO 8601.

    Attributes:
        patterns: by Python type, and by whether a datetime has a time zone: a regular expression, and the replacement
            that makes the text one of ISO 8601.
    """

    patterns: Mapping[tuple[type, bool], tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, object]) -> TextForms:
        """Returns the forms that options declare, by their names in lower case; others are ignored.

        Raises:
            ConfigError: a pattern is not supported.
        """
        found = {}
        for name, kind in FORM_OPTIONS.items():
            if name in options:
                try:
                    found[kind] = form_of(str(options[name]))
                except ValueError as e:
                    raise ConfigError(
                        "the pattern of an option is not supported",
                        hint=f"use {_LETTERS}, texts in quotes, and brackets around optional parts",
                        option=name,
                        value=str(options[name])[:_SHOWN],
                        reason=str(e),
                    ) from e
        return cls(found)


def form_of(pattern: str) -> tuple[str, str]:
    """Returns the regular expression of one of Java's patterns, such as ``dd.MM.yyyy HH:mm``, and its replacement.

    Raises:
        ValueError: a letter is not supported, a part occurs twice, or year, month and day, or the time, are missing.
    """
    expression, parts, groups, open_sections = "", dict[str, str](), 0, 0
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text in "[]":
            open_sections += 1 if text == "[" else -1
            if open_sections < 0:
                raise ValueError("a section in brackets is closed before it begins")
            expression += "(?:" if text == "[" else ")?"
            continue
        if token[2] is None:
            quoted = text if token[1] is None else token[1].replace("''", "'") or "'"
            expression += re.escape(quoted)
            continue
        name, part = ("f", f"([0-9]{{1,{len(text)}}})") if set(text) == {"S"} else _FIELDS.get(text, ("", ""))
        if not name or name in parts:
            raise ValueError(f"the letters {text} are not supported" if not name else f"{text} occurs twice")
        groups += 1
        expression += part
        parts[name] = f"\\{groups}"
    if open_sections:
        raise ValueError("a section in brackets is not closed")
    return f"^{expression}$", _iso(parts)


def _iso(parts: Mapping[str, str]) -> str:
    year = parts.get("y") or (f"20{parts['y2']}" if "y2" in parts else "")
    date = f"{year}-{parts.get('M', '')}-{parts.get('d', '')}"
    has_date, has_time = all((year, "M" in parts, "d" in parts)), "H" in parts and "m" in parts
    if not (has_date or (has_time and date == "--")):
        raise ValueError("it needs year, month and day, or hour and minute")
    time = f"{parts['H']}:{parts['m']}:{parts.get('s', '00')}" if has_time else ""
    fraction = f".{parts['f']}" if "f" in parts else ""
    return f"{date if has_date else ''}{'T' if has_date and has_time else ''}{time}{fraction}{parts.get('z', '')}"


def column_of_texts(shape: Leaf, texts: pa.Array, forms: TextForms = TextForms()) -> pa.Array:
    """Returns the column of the values that texts denote, of the type `shape.arrow`. Nulls stay null.

    Raises:
        WrongText: a text is not of the form of the type, or its value has no place in the column.
    """
    convert = _CONVERTERS.get(python_type_of(shape.arrow))
    if convert is None:
        raise TypeError(f"the type {shape.arrow} has no form as text")
    return convert(shape, texts, forms)


def convert_each(values: Iterable[T | None], convert: Callable[[T], U]) -> list[U | None]:
    """Returns values one by one converted. Raises WrongText with each for which `convert` raises ValueError."""
    found, wrong = list[U | None](), dict[int, str]()
    for at, value in enumerate(values):
        try:
            found.append(None if value is None else convert(value))
        except ValueError as e:
            wrong[at] = str(e)
    if wrong:
        raise WrongText(wrong)
    return found


def _checked(texts: pa.Array, pattern: str, wanted: str) -> pa.Array:
    """Returns the texts. Raises WrongText for those that do not match a pattern."""
    _refuse(texts, pc.invert(pc.match_substring_regex(texts, pattern)), f"is not {wanted}")
    return texts


def _refuse(texts: pa.Array, is_wrong: pa.Array, why: str) -> None:
    """Raises WrongText for texts that are wrong."""
    wrong = _positions(is_wrong)
    if wrong:
        raise _wrong(texts, wrong, why)


def _positions(is_wrong: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.fill_null(is_wrong, False)).to_pylist()
    return found


def _wrong(texts: pa.Array, positions: Sequence[int], why: str) -> WrongText:
    return WrongText({at: f"{texts[at].as_py()[:_SHOWN]!r} {why}" for at in positions})


def _cast(texts: pa.Array, kind: pa.DataType, why: str, given: pa.Array | None = None) -> pa.Array:
    """Returns texts as another type. Raises WrongText for those that Arrow refuses.

    Args:
        why: the reason, after the text.
        given: the texts before they were prepared, for errors.
    """
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        raise _wrong(texts if given is None else given, _refused(texts, kind), why) from None


def _refused(texts: pa.Array, kind: pa.DataType) -> list[int]:
    """Returns the positions of the texts that Arrow refuses to cast, by halving the parts that have one."""
    found, parts = [], [(0, len(texts))]
    while parts:
        begin, count = parts.pop()
        try:
            texts.slice(begin, count).cast(kind)
        except pa.ArrowException:
            half = count // 2
            if half:
                parts += [(begin, half), (begin + half, count - half)]
            else:
                found.append(begin)
    return found


def _without_plus(texts: pa.Array) -> pa.Array:
    has_plus = pc.starts_with(texts, "+")
    return pc.utf8_ltrim(texts, "+") if pc.any(has_plus).as_py() else texts


def _integers(shape: Leaf, texts: pa.Array, _: TextForms) -> pa.Array:
    checked = _checked(texts, _INTEGER, "an integer")
    return _cast(_without_plus(checked), pa.int64(), "is out of the range of 64-bit integers", texts)


def _floats(shape: Leaf, texts: pa.Array, _: TextForms) -> pa.Array:
    found = _cast(_checked(texts, _FLOAT, "a number"), pa.float64(), "is not a number")
    if pc.any(pc.is_inf(found)).as_py():
        is_number = pc.match_substring_regex(texts, "[0-9]")
        _refuse(texts, pc.and_(pc.is_inf(found), is_number), "is out of the range of 64-bit floats")
    return found


def _decimals(shape: Leaf, texts: pa.Array, _: TextForms) -> pa.Array:
    checked = _checked(texts, _DECIMAL, "a decimal number")
    try:
        return checked.cast(shape.arrow)
    except pa.ArrowException:
        # More digits than the column has, which are rounded as Spark does.
        return pa.array(convert_each(checked.to_pylist(), partial(_decimal, shape)), shape.arrow)


def _decimal(shape: Leaf, text: str) -> Decimal:
    digits, scale = shape.arrow.precision, shape.arrow.scale
    try:
        if len(text) > _LONGEST_NUMBER:
            raise InvalidOperation
        return Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=digits))
    except DecimalException:
        raise ValueError(f"{text[:_SHOWN]!r} does not fit decimal({digits},{scale})") from None


def _booleans(shape: Leaf, texts: pa.Array, _: TextForms) -> pa.Array:
    checked = _checked(texts, "^(?i:true|false)$", "true or false")
    return pc.equal(pc.utf8_lower(checked), "true")


def _same(shape: Leaf, texts: pa.Array, _: TextForms) -> pa.Array:
    return texts


def _bytes(shape: Leaf, texts: pa.Array, _: TextForms) -> pa.Array:
    return texts.cast(pa.binary())


def _dates(shape: Leaf, texts: pa.Array, forms: TextForms) -> pa.Array:
    iso = _in_iso(texts, forms, (datetime.date, False))
    found = _cast(_checked(iso, f"^{_DATE}$", "a date such as 2026-01-31"), pa.date32(), "is not a date", texts)
    _refuse_years(texts, iso)
    return found


def _timestamps(shape: Leaf, texts: pa.Array, forms: TextForms) -> pa.Array:
    is_zoned = shape.arrow.tz is not None
    iso = _in_iso(texts, forms, (datetime.datetime, is_zoned))
    wanted = f"a timestamp such as 2026-01-31T10:00:00{'Z' if is_zoned else ', without a time zone'}"
    checked = _checked_time(texts, iso, _INSTANT if is_zoned else _LOCAL, wanted)
    if is_zoned:
        has_zone = pc.match_substring_regex(checked, _HAS_ZONE)
        checked = pc.if_else(has_zone, checked, pc.binary_join_element_wise(checked, "Z", ""))
        is_date = pc.match_substring_regex(checked, f"^{_DATE}Z$")
        if pc.any(is_date).as_py():
            checked = pc.replace_substring_regex(checked, f"^({_DATE})Z$", r"\1T00:00:00Z")
    found = _cast(checked, pa.timestamp("us", "UTC" if is_zoned else None), "is not a valid time", texts)
    numbers = found.cast(pa.int64())
    # An offset may move an instant into the next or previous year.
    is_out = pc.or_(pc.less(numbers, -_MIDNIGHT), pc.greater_equal(numbers, _END))
    _refuse(texts, is_out, "is not in the years from 1 to 9999")
    return found.cast(shape.arrow)


def _checked_time(texts: pa.Array, iso: pa.Array, pattern: str, wanted: str) -> pa.Array:
    """Returns texts with at most six digits after the point of the seconds. Raises WrongText."""
    is_wrong = pc.invert(pc.match_substring_regex(iso, pattern))
    is_finer = pc.match_substring_regex(iso, r":[0-9]{2}\.[0-9]{7}")
    _refuse(texts, pc.and_(is_wrong, is_finer), "is finer than microseconds")
    _refuse(texts, is_wrong, f"is not {wanted}")
    if pc.any(pc.match_substring_regex(iso, r"\.[0-9]{7}")).as_py():
        return pc.replace_substring_regex(iso, r"(\.[0-9]{6})0+", r"\1")
    return iso


def _times(shape: Leaf, texts: pa.Array, forms: TextForms) -> pa.Array:
    iso = _in_iso(texts, forms, (datetime.time, False))
    checked = _checked_time(texts, iso, f"^{_TIME}$", "a time of day such as 12:30:00")
    days = pc.binary_join_element_wise("1970-01-01T", checked, "")
    micros = _cast(days, pa.timestamp("us"), "is not a valid time of day", texts).cast(pa.int64())
    return pc.multiply(micros, 1000).cast(shape.arrow)


def _durations(shape: Leaf, texts: pa.Array, _: TextForms) -> pa.Array:
    return pa.array(convert_each(texts.to_pylist(), _duration), shape.arrow)


def _duration(text: str) -> datetime.timedelta:
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:_SHOWN]!r} is not a duration such as 1 02:03:04.5")
    sign, days, *parts, fraction = found.groups(default="")[-6 if found[2] is None else 0 :][:6]
    hours, minutes, seconds = map(int, parts)
    if hours > 23 or minutes > 59 or seconds > 59 or int(days) > _MOST_DAYS:
        raise ValueError(f"{text[:_SHOWN]!r} is not a valid duration")
    size = datetime.timedelta(int(days), seconds, int(fraction.ljust(6, "0")), 0, minutes, hours)
    return -size if sign else size


def _in_iso(texts: pa.Array, forms: TextForms, kind: tuple[type, bool]) -> pa.Array:
    """Returns texts of the declared pattern in the form of ISO 8601. Raises WrongText."""
    form = forms.patterns.get(kind)
    if form is None:
        return texts
    pattern, replacement = form
    iso = pc.replace_substring_regex(_checked(texts, pattern, "of the declared pattern"), pattern, replacement)
    # Sections that the text does not have: without a time it is midnight, without a minute the full hour.
    iso = pc.replace_substring_regex(iso, r"T:+(?:00)?([.]?[Z+-][0-9:]*|[.])?$", r"T00:00:00\1")
    iso = pc.replace_substring_regex(iso, r"((?:^|T)[0-9]{1,2})::(?:00)?", r"\1:00:00")
    iso = pc.replace_substring_regex(iso, r"[:.]+([Z+-][0-9:]*)?$", r"\1")
    for _ in range(2):
        # Fields of one digit; neighbours share a character, so that one pass does not reach all.
        iso = pc.replace_substring_regex(iso, r"(^|[-T:])([0-9])([-T:.Z+]|$)", r"\1" "0" r"\2\3")
    return iso


def _refuse_years(texts: pa.Array, iso: pa.Array) -> None:
    _refuse(texts, pc.starts_with(iso, "0000"), "is not in the years from 1 to 9999")


_Convert = Callable[[Leaf, pa.Array, TextForms], pa.Array]
_CONVERTERS: Mapping[type | None, _Convert] = {
    int: _integers,
    float: _floats,
    bool: _booleans,
    str: _same,
    bytes: _bytes,
    datetime.date: _dates,
    datetime.datetime: _timestamps,
    datetime.time: _times,
    datetime.timedelta: _durations,
    Decimal: _decimals,
}
