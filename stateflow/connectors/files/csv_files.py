"""CSV, as RFC 4180 defines it, and with the options of Spark's reader that this module implements.

Arrow divides blocks into fields, after a check of all quotes that Arrow would read without an error. Blocks that do not
pass, and dialects that Arrow does not have, are divided by `CsvRecords.records`, which finds the line and the reason.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from stateflow.api.schema import Column
from stateflow.connectors.files.text_files import CountedColumns, WrongContent, whole_rows, without_bom
from stateflow.connectors.text_values import TextForms, WrongText, column_of_texts
from stateflow.types.columns.shapes import Leaf

_ROWS = 1 << 14
_END_OF_LINE = re.compile("\r\n|\n|\r")
_BLANKS = re.compile("[ \t]*")
NAN, INFINITY, NEGATIVE_INFINITY = "NaN", "Infinity", "-Infinity"

_Field = tuple[str | None, int]
"""A field, and the position after it."""


class _Unfinished(Exception):
    """The text ends within a field."""


class _Misplaced(Exception):
    """A quote is at a wrong place: the position, and the reason."""


@dataclass(frozen=True)
class CsvRecords:
    """A `RowDecoder` of CSV. Empty lines are skipped, as by Spark.

    Attributes:
        forms: the forms of dates and times.
        separator: divides fields.
        quote: a character around fields, which is doubled within them; empty if there is none.
        escape: a character before quotes, and itself, in quoted fields, instead of a doubled quote; empty without.
        comment: the first character of lines that are skipped; empty without.
        header: whether the first record has the names of the columns.
        checks_header: whether these must be the declared ones, in any case.
        null: a text that is null, in addition to an empty field without quotes.
        empty: the value of an empty field in quotes.
        nan: the text of NaN in columns of floats.
        infinity: the text of Infinity there.
        negative_infinity: the text of -Infinity there.
        trims_start: whether blanks before a field are removed.
        trims_end: whether blanks after a field are removed.
    """

    forms: TextForms
    separator: str = ","
    quote: str = '"'
    escape: str = ""
    comment: str = ""
    header: bool = False
    checks_header: bool = True
    null: str = ""
    empty: str = ""
    nan: str = NAN
    infinity: str = INFINITY
    negative_infinity: str = NEGATIVE_INFINITY
    trims_start: bool = False
    trims_end: bool = False

    @property
    def has_even_quotes(self) -> bool:
        """Whether the end of a line ends a record if, and only if, the number of quotes before it is even."""
        return len(self.quote.encode()) <= 1 and not self.escape and not self.comment

    def rows(self, blocks: Iterator[bytes], columns: Sequence[Column], is_start: bool) -> Iterator[CountedColumns]:
        """See `RowDecoder.rows`."""
        has_header, line = is_start and self.header, 1
        for block in whole_rows(without_bom(blocks) if is_start else blocks, self._end):
            rest, first = block, line
            if has_header:
                first, rest = self._without_header(block, columns, line)
                has_header = rest is block
            texts = self._by_arrow(rest, len(columns))
            if texts is None:
                texts = self._one_by_one(rest, columns, first)
            for begin in range(0, len(texts[0]) if texts else 0, _ROWS):
                part = [text.slice(begin, _ROWS) for text in texts]
                yield len(part[0]), [self._column(rest, first, begin, c, t) for c, t in zip(columns, part, strict=True)]
            line += block.count(b"\n") or block.count(b"\r")

    def _without_header(self, block: bytes, columns: Sequence[Column], line: int) -> tuple[int, bytes]:
        """Returns a block after its first record, and the number of its line; the block itself if it has no record."""
        text = _decoded(block, line)
        for number, fields, end in self.records(text, line):
            names, declared = [field or "" for field in fields], [column.name for column in columns]
            if self.checks_header and [n.lower() for n in names] != [n.lower() for n in declared]:
                raise WrongContent(number, f"the header has the columns {names}, and {declared} are declared")
            return line + text.count("\n", 0, end), text[end:].encode()
        return line, block

    def _column(self, block: bytes, line: int, begin: int, column: Column, texts: pa.Array) -> pa.Array:
        shape = column.shape
        assert isinstance(shape, Leaf)
        if self.null:
            texts = _replaced(texts, self.null, None)
        if shape.kind not in (str, bytes):
            # Writers that quote all fields write nulls so.
            texts = _replaced(texts, "", None)
        elif self.empty:
            texts = _replaced(texts, "", self.empty)
        if shape.kind is float:
            given = self.nan, self.infinity, self.negative_infinity
            for text, usual in zip(given, (NAN, INFINITY, NEGATIVE_INFINITY), strict=True):
                texts = texts if text == usual else _replaced(texts, text, usual)
        try:
            return column_of_texts(shape, texts, self.forms)
        except WrongText as e:
            number, *_ = next(islice(self.records(_decoded(block, line), line), begin + e.at, None))
            raise WrongContent(number, f"{column.name}: {e.reason}") from e

    # -- by Arrow

    def _by_arrow(self, block: bytes, columns: int) -> list[pa.Array] | None:
        """Returns the fields of a block by column; None if only `records` finds them."""
        is_short = len(self.separator.encode()) == 1
        trims = self.trims_start or self.trims_end
        if not (is_short and self.has_even_quotes and not trims and block and self._has_plain_quotes(block)):
            return None
        names = list(map(str, range(columns)))
        # At the end of a file without this, Arrow takes an empty last field for one in quotes if another one is.
        ended = block if block.endswith(b"\n") else block + b"\n"
        quote = self.quote or False
        try:
            table = csv.read_csv(
                pa.BufferReader(ended),
                csv.ReadOptions(use_threads=False, block_size=len(ended) + 1, column_names=names),
                csv.ParseOptions(
                    delimiter=self.separator, quote_char=quote, double_quote=bool(quote), newlines_in_values=True
                ),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowException:
            return None
        return [column.combine_chunks() for column in table.columns]

    def _has_plain_quotes(self, block: bytes) -> bool:
        """Returns whether each quote opens or closes a field, or is one of a pair within a field."""
        if not self.quote or self.quote.encode() not in block:
            return True
        found = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(found == ord(self.quote))
        if len(quotes) % 2:
            return False
        ends = np.isin(found, np.frombuffer(b"\n\r" + self.separator.encode(), np.uint8))
        opening, closing = quotes[::2], quotes[1::2]
        begins_field = (opening == 0) | ends[opening - 1]
        ends_field = (closing == len(found) - 1) | ends[np.minimum(closing + 1, len(found) - 1)]
        # A pair of quotes in a field: the first one closes, the second one opens.
        is_pair = closing[:-1] + 1 == opening[1:]
        return bool(
            begins_field[0]
            and ends_field[-1]
            and np.all(begins_field[1:] | is_pair)
            and np.all(ends_field[:-1] | is_pair)
        )

    def _end(self, block: bytes) -> int:
        """Returns the number of bytes of the whole records that a block begins with."""
        if not self.has_even_quotes:
            return self._end_of_records(block)
        end, quote = block.rfind(b"\n") + 1, self.quote.encode()
        if not quote or block.count(quote, 0, end) % 2 == 0:
            return end
        found = np.frombuffer(block, np.uint8)
        lines = np.flatnonzero(found == ord("\n"))
        quotes = np.searchsorted(np.flatnonzero(found == ord(quote)), lines)
        outside = lines[quotes % 2 == 0]
        return int(outside[-1]) + 1 if len(outside) else 0

    def _end_of_records(self, block: bytes) -> int:
        # The block may end within a character.
        text = block.decode(errors="surrogateescape")
        ends = deque((end for *_, end in self.records(text, 1, is_last=False)), maxlen=1)
        return len(text[: ends[0]].encode(errors="surrogateescape")) if ends else 0

    # -- one by one

    def _one_by_one(self, block: bytes, columns: Sequence[Column], line: int) -> list[pa.Array]:
        rows = []
        for number, fields, _ in self.records(_decoded(block, line), line):
            if len(fields) != len(columns):
                raise WrongContent(number, f"{len(fields)} fields, and {len(columns)} columns are declared")
            rows.append(fields)
        return [pa.array([row[at] for row in rows], pa.string()) for at in range(len(columns))]

    def records(self, text: str, line: int, is_last: bool = True) -> Iterator[tuple[int, list[str | None], int]]:
        """Yields the records of a text: the number of the line, the fields, and the position after the record.

        An empty field without quotes is None.

        Args:
            text: whole records, or the beginning of a file.
            line: number of the first line.
            is_last: whether the text ends with a record; otherwise one that is not finished is left out.

        Raises:
            WrongContent: a quote is at a wrong place.
        """
        at = 0
        while at < len(text):
            if self.comment and text.startswith(self.comment, at):
                at, line = _after_line(text, at), line + 1
                continue
            begin, fields = at, list[str | None]()
            try:
                while True:
                    field, at = self._field(text, at, is_last)
                    fields.append(field)
                    if not text.startswith(self.separator, at):
                        break
                    at += len(self.separator)
            except _Unfinished:
                return
            except _Misplaced as e:
                raise WrongContent(line + text.count("\n", begin, e.args[0]), e.args[1]) from e
            if not is_last and at >= len(text) - 1:
                return
            at = _after_line(text, at)
            if fields != [None]:
                yield line, fields, at
            line += text.count("\n", begin, at) or 1

    def _field(self, text: str, at: int, is_last: bool) -> _Field:
        if self.trims_start:
            at = _after_blanks(text, at)
        if self.quote and text.startswith(self.quote, at):
            return self._quoted(text, at + 1, is_last)
        found = self._end_of_field.search(text, at)
        end = found.start() if found else len(text)
        field = text[at:end].rstrip(" \t") if self.trims_end else text[at:end]
        if self.quote and self.quote in field:
            raise _Misplaced(at, "a quote is in a field that does not begin with a quote")
        return field or None, end

    def _quoted(self, text: str, at: int, is_last: bool) -> _Field:
        parts, begin = list[str](), at
        while True:
            found = self._special.search(text, at)
            if found is None:
                if not is_last:
                    raise _Unfinished
                raise _Misplaced(begin, "a quote is not closed")
            parts.append(text[at : found.start()])
            at = found.end()
            following = text[at : at + 1]
            if found[0] == self.escape:
                is_escape = following in (self.quote, self.escape) and following != ""
                parts.append(following if is_escape else self.escape)
                at += is_escape
            elif following == self.quote and not self.escape:
                parts.append(self.quote)
                at += 1
            else:
                break
        at = _after_blanks(text, at) if self.trims_end else at
        if at < len(text) and not self._end_of_field.match(text, at):
            raise _Misplaced(at, "text follows a closing quote")
        return "".join(parts), at

    @cached_property
    def _end_of_field(self) -> re.Pattern[str]:
        return re.compile(f"{re.escape(self.separator)}|[\r\n]")

    @cached_property
    def _special(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(c) for c in (self.quote, self.escape) if c))


def _decoded(block: bytes, line: int) -> str:
    try:
        return block.decode()
    except UnicodeDecodeError as e:
        begin = block.rfind(b"\n", 0, e.start) + 1
        number = line + block.count(b"\n", 0, e.start)
        raise WrongContent(number, f"byte {e.start - begin + 1} of the line is not UTF-8") from e


def _after_line(text: str, at: int) -> int:
    found = _END_OF_LINE.search(text, at)
    return found.end() if found else len(text)


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _replaced(texts: pa.Array, given: str, by: str | None) -> pa.Array:
    return pc.if_else(pc.equal(texts, given), pa.scalar(by, pa.string()), texts)
