"""The fuzz target for files of JSON, CSV and text, in any cut into blocks, and with options that change the way."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stateflow import precision
from stateflow.api.schema import RowSchema
from stateflow.connectors.files.source import text_format
from stateflow.connectors.files.text_files import WrongContent
from stateflow.errors import CorruptInput
from tests.fuzz.mutations import changed_bytes
from tests.fuzz.target import Target


class Flat(msgspec.Struct):
    """Columns that each format but text has."""

    number: int | None
    size: float | None
    text: str | None
    day: date | None
    time: Annotated[datetime, msgspec.Meta(tz=True)] | None
    price: Annotated[Decimal, precision(12, scale=2)] | None


class Nested(msgspec.Struct):
    """Columns of JSON alone."""

    row: Flat | None
    rows: list[Flat | None] | None
    by_name: dict[str, int | None] | None


class Line(msgspec.Struct):
    """The column of text."""

    value: str


_FLAT = (
    b'{"number": 1, "size": 2.5, "text": "a\\u00e9", "day": "2026-01-31", "time": "2026-01-31T10:00:00Z", "price": 1.5}'
)
_PARTS = (
    b'"',
    b"\\",
    b"\n",
    b"\r",
    b",",
    b"{",
    b"[",
    b"\xff",
    b"\xef\xbb\xbf",
    b"1e999",
    b'"x": 1,',
    b"[" * 5000,
    b"null",
)
_FILES: list[tuple[str, type[Any], dict[str, str], bytes]] = [
    ("json", Flat, {}, _FLAT + b"\n\n" + _FLAT),
    ("json", Flat, {"timestampFormat": "dd.MM.yyyy HH:mm[:ss]"}, b'{"time": "31.01.2026 10:00"}\n'),
    ("json", Nested, {}, b'{"row": ' + _FLAT + b', "rows": [' + _FLAT + b', null], "by_name": {"a": 1}, "x": [1]}\n'),
    ("json", Flat, {"multiLine": "true"}, b"[" + _FLAT + b",\n" + _FLAT + b"]"),
    ("csv", Flat, {}, b'1,2.5,"a ""b"",\r\n",2026-01-31,2026-01-31 10:00:00+02:00,1.5\n,,,,,\n'),
    ("csv", Flat, {"header": "true"}, b"number,size,text,day,time,price\n1,NaN,,2026-01-31,,1\n"),
    ("csv", Flat, {"escape": "\\", "comment": "#", "sep": "||"}, b'# "\n1||2.5||"a\\"b"||||||\n'),
    ("csv", Flat, {"encoding": "UTF-16"}, "1,2.5,é,,,\n".encode("utf-16")),
    ("text", Line, {}, "é\r\nb\rc\n".encode()),
]


@contextmanager
def decoded_file(_: Path) -> Iterator[Target]:
    """Changes the bytes of a file; a file that is corrupt counts as refused."""

    def mutate(rng: random.Random) -> tuple[int, bytes, int]:
        at = rng.randrange(len(_FILES))
        content = _FILES[at][-1]
        return at, changed_bytes(rng, content, [content, *_PARTS]), rng.choice([1, 3, 7, 1 << 20])

    def read(given: tuple[int, bytes, int]) -> None:
        at, content, size = given
        format, row_class, options, _ = _FILES[at]
        schema = RowSchema.of(row_class)
        blocks = (content[begin : begin + size] for begin in range(0, len(content), size))
        try:
            batches = text_format(format, options, "/in").decode(blocks, "/in/a", schema, is_start=True)
            deque((batch.validate(full=True) for batch in batches), maxlen=0)
        except WrongContent as e:
            raise CorruptInput("a file is corrupt", reason=e.reason, line=e.line) from e

    yield Target(mutate, read)
