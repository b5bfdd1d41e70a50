# ruff: noqa: RUF001 - digits that are not ASCII
"""Files of JSON, CSV and text: each value is read as it stands, or the file is corrupt, at a position and for a reason.

Right values are those of Python's `json` and `csv` (strict), RFC 8259 and RFC 4180.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import random
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import FileSource, precision
from stateflow.api.input_files import CannotRead, CorruptContent, FileShare, file_uri
from stateflow.api.schema import RowSchema
from stateflow.connectors.files.reader_options import text_format
from stateflow.connectors.files.text_files import DecodedFormat, WrongContent
from stateflow.connectors.json_values import JsonObjects
from stateflow.connectors.text_values import TextForms
from stateflow.errors import ConfigError
from stateflow.runtime.spark.inputs import BatchFiles, FileReader
from stateflow.runtime.task.row_conversion import to_rows
from tests.support.errors import raises
from tests.support.memory import count_calls

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
Price = Annotated[Decimal, precision(12, scale=2)]


class Item(msgspec.Struct):
    sku: str | None = None
    quantity: int | None = None


class Flat(msgspec.Struct):
    whole: int | None = None
    number: float | None = None
    text: str | None = None
    flag: bool | None = None
    day: date | None = None
    local: datetime | None = None
    instant: Instant | None = None
    price: Price | None = None
    at: time | None = None
    lasting: timedelta | None = None


class Nested(msgspec.Struct):
    whole: int | None = None
    text: str | None = None
    item: Item | None = None
    items: list[Item | None] | None = None
    named: dict[str, int | None] | None = None
    by_number: dict[int, str] | None = None


class Dated(msgspec.Struct):
    whole: int
    day: date | None
    note: str


class Line(msgspec.Struct):
    value: str


class Pair(msgspec.Struct):
    a: str | None
    b: str | None


FORMS = TextForms()


def decode(data: bytes, row_class: type[Any], format: str = "json", blocks: int = 1 << 20, **options: Any) -> list[Any]:
    """The rows of a file. Raises WrongContent."""
    schema = RowSchema.of(row_class)
    decoder = text_format(format, options, "/in")
    parts = (data[at : at + blocks] for at in range(0, len(data), blocks))
    batches = decoder.decode(parts, "/in/a", schema, is_start=True)
    return [row for batch in batches for row in to_rows(batch.columns, schema)]


def outcome(data: bytes, row_class: type[Any], format: str = "json", **options: Any) -> list[Any] | None:
    """The rows of a file; None if it is corrupt."""
    try:
        return decode(data, row_class, format, **options)
    except WrongContent as e:
        assert e.line > 0 and e.reason
        return None


# -- values: by declared type, in JSON and CSV ------------------------------------------------------------------------

MIDNIGHT = datetime(2026, 1, 31)  # noqa: DTZ001 - without a zone, as its column


def no(*texts: str) -> list[tuple[str, Any]]:
    """Texts that are not values."""
    return [(text, None) for text in texts]


NOON = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - without a zone, as its column
AT_NOON = NOON.replace(tzinfo=UTC)
BOTH: dict[str, list[tuple[str, Any]]] = {
    # The texts are values of CSV, and strings of JSON.
    "day": [
        ("2026-01-31", date(2026, 1, 31)), ("0001-01-01", date(1, 1, 1)), ("9999-12-31", date(9999, 12, 31)),
        *no("2026-02-30", "0000-01-01", "12345-01-01", "2026-1-1", "31.01.2026", "20260131", "12"),
        *no("10:00:00", "2026-01-31T00:00:00", "２０２６-01-31", " 2026-01-31", "today"),
    ],
    "local": [
        ("2026-01-31T12:00:00", NOON), ("2026-01-31 12:00", NOON), ("2026-01-31", MIDNIGHT),
        ("2026-01-31T12:00:00.123456000", NOON.replace(microsecond=123456)),
        *no("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+02:00", "12:00:00", "1700000000000"),
    ],
    "instant": [
        ("2026-01-31T12:00:00Z", AT_NOON),
        ("2026-01-31T14:00:00+02:00", AT_NOON),
        ("2026-01-31T12:00", AT_NOON),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        *no("10:00:00", "1700000000000", "1700000000", "+12345-01-01T00:00:00Z", "2026", "2026-01"),
        *no("9999-12-31T23:59:59-02:00", "0001-01-01T00:00:00+02:00", "0000-06-01T00:00:00Z"),
        *no("2026-01-31T23:59:60Z", "2026-01-31T24:00:00Z", "2026-01-31T12:00:00.1234567Z"),
        *no("2026-01-31T12:00:00 Europe/Berlin", "2026-02-30T12:00:00Z", "2026-01-31T12:00:00+99"),
    ],
    "price": [
        ("12.5", Decimal("12.50")), ("-0", Decimal(0)), ("1e2", Decimal(100)), ("12.505", Decimal("12.51")),
        *no("12,50", "1.234,50", "1,234.50", "1_000", "NaN", "Infinity", " 12.5", "１２", "12.5 €"),
        *no("12345678901.5", "9999999999.995", "1e999999999", "", "0x10", "1e", "--1"),
    ],
    "at": [
        ("12:30:00", time(12, 30)), ("12:30:00.000001", time(12, 30, 0, 1)), ("23:59", time(23, 59)),
        *no("24:00:00", "12:30:60", "12:30:00Z", "12:30:00.0000001", "1:30", "2026-01-31T12:00:00"),
    ],
    "lasting": [
        ("1 02:03:04.5", timedelta(1, 7384, 500000)),
        ("INTERVAL '-1 02:03:04.5' DAY TO SECOND", -timedelta(1, 7384, 500000)),
        ("-0 00:00:01", timedelta(seconds=-1)),
        *no("PT5S", "5", "1 24:00:00", "0 00:60:00", "999999999 00:00:00", "0 00:00:00.1234567"),
    ],
}  # fmt: skip
OF_JSON: dict[str, list[tuple[str, Any]]] = {
    "whole": [
        ("5", 5), ("-0", 0), ("-9223372036854775808", -(1 << 63)),
        *no("5.0", "5e0", '"5"', "007", "+5", "9223372036854775808", "1" * 400, "true", "1_0"),
    ],
    "number": [
        ("1.5", 1.5), ("5", 5.0), ("12345678901234567890123", 1.2345678901234568e22), ('"Infinity"', float("inf")),
        *no("1e999", "NaN", "Infinity", '"1.5"', "1.", ".5", "+1", "0x10", "1,5", '"inf"'),
    ],
    "text": [
        ("5", "5"), ("12.50", "12.50"), ('[1, {"a": 2.50}]', '[1, {"a": 2.50}]'), ('"\\u00e9\\ud83d\\ude00"', "é😀"),
        ('"\\u0000"', "\x00"), ('"\\\\\\""', '\\"'), ("true", "true"),
        *no('"\\ud800"', '"\\udc00"', '"\\ud83d"', '"\\x"', '"a', "'a'", '"\x01"'),
    ],
    "flag": [("true", True), *no('"true"', "True", "1", "tru")],
    "instant": no("1700000000000", "1700000000", "0", "true", "{}"),
    "price": [("12.5", Decimal("12.50")), ("12", Decimal(12)), *no("true", "[]", "012", "NaN")],
}  # fmt: skip
OF_CSV: dict[str, list[tuple[str, Any]]] = {
    "whole": [
        ("5", 5), ("-0", 0), ("007", 7), ("+5", 5),
        *no("5.0", "1_000", "５", " 5", "5 ", "9223372036854775808", "1e3", "0x5", "five"),
    ],
    "number": [
        ("1.5", 1.5), ("5", 5.0), ("-Infinity", float("-inf")), ("inf", float("inf")), (".5", 0.5), ("1e-999", 0.0),
        *no("1e999", '"1,5"', "1_0", "1d", "0x1p3", " 1", "１"),
    ],
    "text": [
        ("x", "x"), ('"say ""hi"" now"', 'say "hi" now'), ("a\\b", "a\\b"), ('"a\r\nb, c"', "a\r\nb, c"), ('""', ""),
        *no('"a', 'a"b', '"a"b', 'a"', '"a" '),
    ],
    "flag": [("true", True), ("FALSE", False), *no("1", "yes", "t")],
}  # fmt: skip


def cases() -> list[tuple[str, bytes, str, Any]]:
    """Format, content, column and value; None if the content is corrupt."""
    found: list[tuple[str, bytes, str, Any]] = []
    for name, texts in [*BOTH.items(), *OF_JSON.items()]:
        is_text = name in BOTH and texts is BOTH[name]
        for text, value in texts:
            raw = json.dumps(text, ensure_ascii=False) if is_text else text
            found.append(("json", f'{{"{name}": {raw}}}\n'.encode(), name, value))
    for name, texts in [*BOTH.items(), *OF_CSV.items()]:
        before = list(Flat.__struct_fields__).index(name)
        for text, value in texts:
            field = f'"{text}"' if name in BOTH and "," in text else text
            if field:
                found.append(("csv", ("," * before + field + "," * (9 - before) + "\n").encode(), name, value))
    return found


def test_a_text_is_its_value_or_the_file_is_corrupt() -> None:
    wrong = []
    for format, content, name, value in cases():
        rows = outcome(content, Flat, format)
        expected = None if value is None else [Flat(**{name: value})]
        if rows != expected:
            wrong.append((format, content, rows, expected))
    assert not wrong
    (row,) = decode(b'{"number": -0.0}', Flat)
    assert str(row.number) == "-0.0"
    (row,) = decode(b'{"number": "NaN"}', Flat)
    assert row.number != row.number


# -- JSON -------------------------------------------------------------------------------------------------------------

ACCEPTED = rb"""
{}
 {"whole" : 1 , "text":"a"} 
{"whole": null}
{"Whole": 1, "x": [[[]], {"a": [1, 2.5e-3, "\u00e9"]}, false]}
{"wh\u006fle": 1}
{"x": 123456789012345678901234567890, "y": -0, "z": 1E400}
{"": 1}
{"a\tb": 1, "whole": 2, "a\"b": {"c\\d": 3}}
{"item": {"sku": "a", "b\u0000": 1}}
""".strip(b"\n").split(b"\n")
ACCEPTED.append(b'{"text": "\xc3\xa9\xf0\x9f\x98\x80\xe2\x80\xa8\x7f"}')
# Two semicolons are between them.
REFUSED = rb"""
{"whole": 1}{"whole": 2};;{"whole": 1} x;;{"whole": 1},;;[1];;[{"whole": 1}];;1;;"a";;null;;{;;{"whole"};;
{"whole": };;{"whole": 1,};;{whole: 1};;{'whole': 1};;{"whole": 1 /* x */};;{"x": 01};;{"x": 1.};;{"x": .1};;{"x": +1};;
{"x": -};;{"x": 1e};;{"x": NaN};;{"x": nul};;{"x": "\a"};;{"x": "\u12"};;{"x": "\ud800"};;{"x": [1,]};;{"x": [1 2]};;
{"x": ";;{"whole": 1, "whole": 1};;{"x": 1, "x": 2};;{"whole": 1, "wh\u006fle": 2};;{"item": {"sku": "a", "sku": "b"}};;
{"items": [{"q": 1, "q": 1}]};;{"by_number": {"1": "a", "01": "b"}};;{"by_number": {"x": "a"}};;{"item": []};;
{"items": {}};;{"named": [1]};;{"named": {"a": "1"}};;{"items": [{"quantity": 1.5}]}""".replace(b"\n", b"").split(b";;")
REFUSED += [b'{"x": "\t"}', b'{"x": "\xff"}', b'{"x": "\xc0\x80"}', b'{"x": "\xed\xa0\x80"}', b'{"\xff": 1}', b"\x00"]
REFUSED += [b"\xfe\xff\x00{\x00}", b'{"x": ' + b"[" * 100_000, b'{"text": ' + b'{"a":' * 100_000]


@pytest.mark.parametrize("line", ACCEPTED)
def test_an_object_of_json_is_read(line: bytes) -> None:
    assert len(decode(line, Nested)) == 1


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: repr(line[:30]))
def test_what_is_not_one_object_with_unique_names_is_corrupt(line: bytes) -> None:
    with pytest.raises(WrongContent) as caught:
        decode(b'{"whole": 0}\n\n' + line + b"\n", Nested)
    assert caught.value.line == 3


def _strict(text: str) -> Any:
    """A value of JSON by Python's decoder, which refuses what RFC 8259 does not have, and fields that occur twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs if name in {*Nested.__struct_fields__, *Item.__struct_fields__}]
        assert len(set(names)) == len(names)
        return dict(pairs)

    def refuse(_: str) -> None:
        raise ValueError

    found = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()
    return found


names = st.sampled_from(["whole", "text", "item", "items", "named", "x", "sku", "quantity"])
items = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "sku": st.none() | st.text(max_size=3),
        "quantity": st.none() | st.integers(-9, 9),
        "z": st.text(max_size=2),
    },
)
objects = st.fixed_dictionaries(
    {},
    optional={
        "whole": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "text": st.none() | st.text(max_size=5),
        "item": items,
        "items": st.none() | st.lists(items, max_size=3),
        "named": st.none() | st.dictionaries(st.text(max_size=2), st.none() | st.integers(-9, 9), max_size=3),
        "x": st.recursive(st.integers() | st.text(max_size=3), lambda of: st.lists(of, max_size=2), max_leaves=4),
    },
)


def _expected(found: dict[str, Any]) -> Nested:
    def item(value: Any) -> Item | None:
        return None if value is None else Item(value.get("sku"), value.get("quantity"))

    items = found.get("items")
    return Nested(
        found.get("whole"), found.get("text"), item(found.get("item")),
        None if items is None else list(map(item, items)), found.get("named"),
    )  # fmt: skip


@given(
    st.lists(objects, max_size=5),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 40),
)
def test_rows_that_another_writer_has_written_are_read_back(
    rows: list[dict[str, Any]], is_ascii: bool, separators: tuple[str, str], end: str, blocks: int
) -> None:
    lines = [json.dumps(row, ensure_ascii=is_ascii, separators=separators) for row in rows]
    data = end.join(lines).encode()
    assert decode(data, Nested, blocks=blocks) == list(map(_expected, rows))


@pytest.mark.long(reason="draws many lines")
@given(
    objects,
    st.integers(0, 200),
    st.sampled_from([*'"{}[]:,\\ \n0-1.enu', "", '"x":', '"whole":1,', "\\u0061"]),
    st.booleans(),
)
@example({"text": "ab"}, 9, '"', False)
def test_a_changed_line_is_read_as_by_python_or_is_corrupt(
    row: dict[str, Any], at: int, by: str, replaces: bool
) -> None:
    text = json.dumps(row)
    at %= len(text) + 1
    changed = text[:at] + by + text[at + replaces :]
    found = outcome(changed.encode(), Nested)
    if found is not None and "\n" not in changed:
        assert found == ([_expected(_strict(changed))] if changed.strip() else [])
    columns = RowSchema.of(Nested).columns
    together, errors = JsonObjects(columns, FORMS).decode([b"{}", changed.encode(), text.encode()])
    # Whatever else is decoded at once, and whatever was decoded before.
    exactly = [JsonObjects(columns, FORMS)._one_by_one([value]) for value in (b"{}", changed.encode(), text.encode())]
    assert list(errors) == [at for at, (_, wrong) in enumerate(exactly) if wrong]
    assert [column.to_pylist() for column in together] == [
        [value for parts, _ in exactly for value in parts[at].to_pylist()] for at in range(len(columns))
    ]


def test_of_a_key_that_a_dict_has_twice_the_last_value_counts() -> None:
    line = b'{"named": {"a": 1, "b": 2, "\\u0061": 3}, "x": {"y": 1, "y": 2}, "text": {"z": 1, "z": 2}}'
    (row,) = decode(line, Nested)
    assert row == Nested(named={"a": 3, "b": 2}, text='{"z": 1, "z": 2}')


def test_a_wrong_part_makes_its_own_row_wrong() -> None:
    values = [b'{"by_number": {"1": "a"}}', b'{"by_number": {"x": "b", "2": "c"}}', b"{}"]
    (*_, column), errors = JsonObjects(RowSchema.of(Nested).columns, FORMS).decode(values)
    assert list(errors) == [1] and column.to_pylist() == [[(1, "a")], None, None]


def test_the_work_for_wrong_values_is_as_for_right_ones() -> None:
    columns = RowSchema.of(Flat).columns
    for wrong in (b'{"local": "2026-02-30", "text": "a"}', b'{"local": "2026-01-01", "day": "x"}'):
        right = b'{"local": "2026-01-01", "day": "2026-01-01"}'
        calls = [
            count_calls(partial(JsonObjects(columns, TextForms()).decode, lines))
            for lines in ([b"{", *[right] * 999], [wrong] * 1000)
        ]
        assert calls[1] < 2 * calls[0]


def test_a_document_is_one_object_or_one_array_of_objects() -> None:
    text = b'\xef\xbb\xbf[\n {"whole": 1,\n "text": "a"}, {"whole": 2}\n]\n'
    assert decode(text, Nested, multiLine="true") == [Nested(1, "a"), Nested(2)]
    assert decode(b'{\n"whole": 3}', Nested, multiLine="true") == [Nested(3)]
    assert decode(b" \n", Nested, multiLine="true") == []
    for wrong in (b"[{}] {}", b"{}\n{}", b"[{}, 1]", b"[{},]", b'[{"x": "\xff"}]', b"[[{}]]", b"[{}", b"[" * 100_000):
        assert outcome(wrong, Nested, multiLine="true") is None


# -- CSV --------------------------------------------------------------------------------------------------------------

fields = st.text(st.sampled_from("a\" ,;\n\r\\é\0'"), max_size=4)


@given(
    st.lists(st.tuples(fields, fields), max_size=6),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 30),
    st.booleans(),
)
def test_csv_of_another_writer_is_read_back(
    rows: list[tuple[str, str]], quoting: Any, end: str, blocks: int, has_header: bool
) -> None:
    # Python's writer does not quote what ends lines of other files.
    end = "\r\n" if quoting == csv.QUOTE_MINIMAL else end
    buffer = io.StringIO(newline="")
    written = csv.writer(buffer, quoting=quoting, lineterminator=end)
    written.writerows([("A", "b")] * has_header + rows)
    found = decode(buffer.getvalue().encode(), Pair, "csv", blocks, header=str(has_header))
    # Only quotes distinguish an empty text from null.
    empty = "" if quoting == csv.QUOTE_ALL else None
    assert found == [Pair(a or empty, b or empty) for a, b in rows]


@given(st.text(st.sampled_from('a",\n\r b'), max_size=14), st.integers(1, 14))
@example('"",', 14)
@example('"a\n","b"\n', 3)
def test_csv_that_is_read_has_the_fields_that_python_finds(text: str, blocks: int) -> None:
    found = outcome(text.encode(), Pair, "csv")
    cut = None
    try:
        cut = decode(text.encode(), Pair, "csv", blocks)
    except WrongContent:
        pass
    assert cut == found
    if found is not None:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
        assert [(row.a or "", row.b or "") for row in found] == list(map(tuple, rows))


@pytest.mark.parametrize(
    ("content", "options", "rows"),
    [
        (b"1;a\n", {"sep": ";"}, [("1", "a")]), (b"1\ta\n", {"delimiter": "\\t"}, [("1", "a")]),
        (b"1||a\n", {"sep": "||"}, [("1", "a")]), (b"1||a\n", {}, None),
        (b"'a, ''b'''\xc3\xa9,x\n", {"quote": "'"}, None), (b"'a, ''b''',x\n", {"quote": "'"}, [("a, 'b'", "x")]),
        (b'a",5" x\n', {"quote": ""}, [('a"', '5" x')]),
        (b'"a\\"b\\\\","c\\d"\n', {"escape": "\\"}, [('a"b\\', "c\\d")]), (b'"a\\"b",c\n', {}, None),
        (b'"a""b",c\n', {"escape": '"'}, [('a"b', "c")]), (b'# "\n1,a\n#', {"comment": "#"}, [("1", "a")]),
        (b"NA,x\n,NA\n", {"nullValue": "NA"}, [(None, "x"), (None, None)]),
        (b'"",x\n', {"emptyValue": "?"}, [("?", "x")]),
        (b' 1 , "a" \n', {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}, [("1", "a")]),
        (b' 1 ,"a"\n', {}, [(" 1 ", "a")]), (b'1, "a"\n', {}, None), (b"a,b\n1,x\n", {"header": "true"}, [("1", "x")]),
        (b"\xef\xbb\xbfA,B\n1,x\n", {"header": "true"}, [("1", "x")]), (b"b,a\n1,x\n", {"header": "true"}, None),
        (b"a\n1,x\n", {"header": "true"}, None),
        (b"b,a\n1,x\n", {"header": "true", "enforceSchema": "true"}, [("1", "x")]), (b"", {"header": "true"}, []),
        (b"1,2,3\n", {}, None), (b"1\n", {}, None), (b"caf\xe9,x\n", {}, None),
        (b"caf\xe9,x\n", {"encoding": "ISO-8859-1"}, [("café", "x")]),
        ("é,x\n".encode("utf-16"), {"encoding": "UTF-16"}, [("é", "x")]), ("é,x\n".encode("utf-16"), {}, None),
        (b"caf\xc3\xa9\xff,x\n", {"encoding": "ascii"}, None),
    ],
)  # fmt: skip
def test_options_of_csv_keep_their_meaning(content: bytes, options: dict[str, str], rows: list[Any] | None) -> None:
    assert outcome(content, Pair, "csv", **options) == (rows and [Pair(*row) for row in rows] if rows else rows)


class Numbers(msgspec.Struct):
    day: date | None
    number: float | None


def test_forms_of_dates_and_numbers_are_options() -> None:
    assert outcome(b",1\n,1e999\n", Numbers, "csv") is None
    (row,) = decode(b"1.2.2026,-\n", Numbers, "csv", dateFormat="d.M.yyyy", nanValue="-")
    assert row.day == date(2026, 2, 1) and row.number != row.number
    assert outcome(b"2026-02-01,1\n", Numbers, "csv", dateFormat="d.M.yyyy") is None
    assert outcome(b"31.02.2026,1\n", Numbers, "csv", dateFormat="d.M.yyyy") is None
    # Writers that quote all fields write nulls so.
    assert decode(b'"",""\n', Numbers, "csv") == [Numbers(None, None)]
    given: dict[str, Any] = {"timestampFormat": "dd/MM/yyyy HH:mm[:ss[.SSS]][XXX]"}
    for text in ("31/01/2026 12:00", "31/01/2026 12:00:00.000", "31/01/2026 14:00:00+02:00"):
        assert decode(json.dumps({"instant": text}).encode(), Flat, **given) == [Flat(instant=AT_NOON)]
    assert outcome(b'{"instant": "31/13/2026 12:00"}', Flat, **given) is None
    # As java.time resolves them: a day without a time is its beginning, an hour without a minute the full hour.
    given = {"timestampFormat": "yyyy-MM-dd[ H[:mm[:ss[.SSS]]]][XXX]"}
    for text, seconds in (
        ("2026-01-31", 0),
        ("2026-01-31Z", 0),
        ("2026-01-31 12", 43_200),
        ("2026-01-31 7Z", 25_200),
        ("2026-01-31 12:30", 45_000),
        ("2026-01-31 12:30:05.250+02:00", 37_805.25),
    ):
        (row,) = decode(json.dumps({"instant": text}).encode(), Flat, **given)
        assert row.instant == datetime(2026, 1, 31, tzinfo=UTC) + timedelta(seconds=seconds), text
    assert outcome(b'{"instant": "2026-01-31 "}', Flat, **given) is None


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("json", {"mode": "PERMISSIVE"}), ("csv", {"mode": "DROPMALFORMED"}), ("csv", {"mode": ""}),
        ("json", {"allowComments": "true"}), ("json", {"primitivesAsString": "true"}),
        ("csv", {"unescapedQuoteHandling": "STOP_AT_DELIMITER"}), ("csv", {"inferSchema": "true"}),
        ("csv", {"quote": "ab"}), ("csv", {"header": "yes"}), ("csv", {"sep": ""}), ("csv", {"lineSep": ";"}),
        ("json", {"encoding": "no such"}),
        *(("csv", {"encoding": codec}) for codec in ("hex", "rot13", "zip", "idna", "unicode_escape", "undefined")),
        ("csv", {"timestampFormat": "yyyy-MM-dd][ HH:mm"}), ("json", {"timestampFormat": "EEE, d MMM yyyy"}),
        ("csv", {"dateFormat": "yyyy"}), ("parquet", {"ignoreCorruptFiles": "true"}),
        ("json", {"ignoreMissingFiles": "TRUE"}),
    ],
)  # fmt: skip
def test_options_that_would_weaken_or_that_are_not_implemented_are_refused(
    format: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        FileSource("/in", schema=Flat, format=format, **options)


def test_columns_that_a_format_does_not_have_are_refused() -> None:
    with raises(ConfigError, columns=["item", "items", "named", "by_number"]):
        FileSource("/in", schema=Nested, format="csv")
    with raises(ConfigError, row_class="Count"):
        FileSource("/in", schema=msgspec.defstruct("Count", [("number", int)]), format="text")


# -- text -------------------------------------------------------------------------------------------------------------


def test_lines_of_text() -> None:
    assert decode("\ufeffé\n\nb\r\nc\rd".encode(), Line, "text") == list(map(Line, ["é", "", "b", "c", "d"]))
    assert decode(b"a|b\n|c", Line, "text", lineSep="|") == list(map(Line, ["a", "b\n", "c"]))
    assert decode(b"a\nb\n", Line, "text", wholetext="true") == [Line("a\nb\n")]
    with pytest.raises(WrongContent) as caught:
        decode(b"a\nb\ncaf\xe9\n", Line, "text", blocks=2)
    assert caught.value.line == 3


# -- files ------------------------------------------------------------------------------------------------------------

CONTENTS: list[tuple[str, type[Any], bytes, dict[str, Any]]] = [
    ("json", Nested, b"".join(b'{"whole": %d}\n' % n + b"\n" * (n % 3) for n in range(20)) + b'{"whole": 20}', {}),
    ("csv", Pair, b"".join(b'"%d\n","""a\r\n""\n"\n' % n + b"x,y\n" * (n % 2) for n in range(20)) + b"1,2", {}),
    ("csv", Pair, codecs.BOM_UTF8 + b"\n\r\n\n\none,two\n\na,b\n", {"header": "true", "enforceSchema": "true"}),
    ("text", Line, b"".join(b"%d\n" % n + b"\r" * (n % 3 == 1) for n in range(20)) + b"end", {}),
    # Two files in one: the second mark is a character of a value, wherever the file is divided.
    ("csv", Pair, 2 * (codecs.BOM_UTF8 + b"a,b\n1,2\n"), {}),
    ("text", Line, 2 * (codecs.BOM_UTF8 + b"a\nb\n"), {}),
]


def _share(path: Path, begin: int = 0, end: int | None = None) -> FileShare:
    size = path.stat().st_size
    return FileShare(str(path), begin, max(1, size) if end is None else end, size)


def _read(format: DecodedFormat, share: FileShare, row_class: type[Any]) -> list[Any]:
    schema = RowSchema.of(row_class)
    return [row for batch in format.read(share, schema) for row in to_rows(batch.columns, schema)]


@pytest.mark.long(reason="reads a file in shares of every size")
@pytest.mark.parametrize(("format", "row_class", "content", "options"), CONTENTS)
def test_shares_of_a_file_have_each_row_once_and_in_order(
    tmp_path: Path, format: str, row_class: type[Any], content: bytes, options: dict[str, Any]
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    reader = text_format(format, options, str(tmp_path))
    assert reader.splits
    whole = decode(content, row_class, format, **options)
    assert whole
    chosen = random.Random(1)
    cuts = [[], list(range(1, len(content))), *(sorted(chosen.sample(range(1, len(content)), 3)) for _ in range(100))]
    for cut in cuts:
        bounds = pairwise([0, *reader.row_starts(str(path), cut), len(content)])
        parts = [row for begin, end in bounds for row in _read(reader, _share(path, begin, end), row_class)]
        assert parts == whole


@pytest.mark.parametrize(
    ("format", "row_class", "line"),
    [
        ("json", Nested, b'{"whole": 1} 2\n'),
        ("csv", Pair, b'"a"b,c\n'),
        ("csv", Pair, b"1\n"),
        ("text", Line, b"\xff\n"),
    ],
)
def test_an_error_has_file_and_line_in_each_share(
    tmp_path: Path, format: str, row_class: type[Any], line: bytes
) -> None:
    right = {"json": b"{}\n", "csv": b"1,2\n", "text": b"a\n"}[format]
    path = tmp_path / "a"
    path.write_bytes(right * 7 + line + right)
    reader = text_format(format, {}, "")
    for begin in reader.row_starts(str(path), (0, 3, len(right) * 7)):
        with pytest.raises(CorruptContent) as caught:
            _read(reader, _share(path, begin), row_class)
        assert (caught.value.path, caught.value.position) == (str(path), "line 8") and caught.value.reason


def test_dividing_a_file_between_rows_reads_its_bytes_once(tmp_path: Path) -> None:
    path, row = tmp_path / "a.csv", b'"a\n""b","' + b"\n" * 990 + b'"\n'
    path.write_bytes(row * 20_000)
    size = path.stat().st_size
    reader = text_format("csv", {}, "")
    cuts = [size * at // 64 for at in range(1, 64)]
    before = _bytes_read()
    assert list(reader.row_starts(str(path), cuts)) == [-(-cut // len(row)) * len(row) for cut in cuts]
    assert size <= _bytes_read() - before < 1.5 * size
    divided = FileReader.of(BatchFiles([file_uri(path)], reader, lambda: pytest.fail()), RowSchema.of(Pair), 64)
    bounds = [(share.begin, share.end) for (share,) in divided.partitions]
    assert bounds == list(pairwise([0, *reader.row_starts(str(path), cuts), size]))


def _bytes_read() -> int:
    """Returns how many bytes this process has read from files."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])  # type: ignore[index]


def test_compressed_files_are_read_whole_or_are_corrupt(tmp_path: Path) -> None:
    content = b"".join(b'{"whole": %d}\n' % n for n in range(5000))
    expected = decode(content, Nested)
    source = FileSource(tmp_path, schema=Nested, format="json")
    for ending, data in {
        "gz": gzip.compress(content) + gzip.compress(b""),
        "bz2": bz2.compress(content[:70]) + bz2.compress(content[70:]),
        "zst": pa.compress(content, codec="zstd", asbytes=True),
    }.items():
        path = tmp_path / f"a.json.{ending}"
        path.write_bytes(data)
        reader = source.file_format([path.as_uri()])
        assert isinstance(reader, DecodedFormat) and not reader.splits
        assert _read(reader, _share(path), Nested) == expected
        for wrong in (data[:-9] if ending != "gz" else data[:-25], data + b"more", b"no " + data):
            path.write_bytes(wrong)
            with pytest.raises(CorruptContent):
                _read(reader, _share(path), Nested)
    assert source.file_format([(tmp_path / "a.snappy").as_uri()]) is None
    assert source.file_format(["s3a://bucket/a.json"]) is None


def test_a_file_that_vanished_or_was_written_again_is_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"{}\n")
    share = _share(path)
    path.write_bytes(b"{}\n{}\n")
    for _ in range(2):
        with pytest.raises(CannotRead):
            _read(text_format("json", {}, ""), share, Nested)
        path.unlink(missing_ok=True)


class Lined(msgspec.Struct):
    day: date | None
    value: str


class Day(msgspec.Struct):
    day: date


def test_names_of_folders_are_values_of_columns(tmp_path: Path) -> None:
    note, null = "Note=" + quote("a/b%", safe=""), "__HIVE_DEFAULT_PARTITION__"
    of_day: list[tuple[str, str, bytes, list[Any]]] = [
        (f"p=1/day=2026-01-31/{note}/a.csv", "p=1", b"5\n", [Dated(5, date(2026, 1, 31), "a/b%")]),
        (f"p=1/day={null}/note=x/a.json", "p=1", b'{"whole": 5, "note": "y"}\n', [Dated(5, None, "x")]),
        ("p=1/DAY=2026-01-31/a.text", "p=1", b"x\n", [Lined(date(2026, 1, 31), "x")]),
        ("p=1/a.text", "p=1", b"x\ny\n", [Lined(None, "x"), Lined(None, "y")]),
        ("day=2026-01-31/a.json", ".", b"{}\n{}\n", [Day(date(2026, 1, 31))] * 2),
    ]
    for name, base, content, rows in of_day:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        reader = text_format(path.suffix[1:], {}, str(tmp_path / base))
        assert _read(reader, _share(path), type(rows[0])) == rows
    wrong = tmp_path / "day=soon" / "a.json"
    wrong.parent.mkdir()
    wrong.write_bytes(b'{"whole": 5}\n')
    with pytest.raises(CorruptContent):
        _read(text_format("json", {}, str(tmp_path)), _share(wrong), Dated)
