"""Files of JSON, CSV and text, decoded strictly: a value is read as it stands, or the file is corrupt.

A format decodes the bytes of a file, or of a range of it, to batches of the declared columns. Who reads the bytes is
another question: a task from a local file, or Spark from any other file.

CSV is read as RFC 4180 defines it, and with the options of Spark's reader that this module implements. Arrow divides
blocks into fields, after a check of all quotes that Arrow would read without an error. Blocks that do not pass, and
dialects that Arrow does not have, are divided by `CsvRecords.records`, which finds the line and the reason.

Names of folders, such as ``day=2026-01-31``, have values of columns, too, as in Spark's partition discovery. Only
declared columns are taken from names: another folder is a folder.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, groupby, islice, pairwise
from typing import BinaryIO, Protocol
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from stateflow.api.input_files import CorruptContent, FileChanged, FileFormat, FileShare, open_object_share, plain_path
from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.json_values import JsonObjects, reason_of
from stateflow.connectors.text_values import TextForms, WrongText, column_of_texts
from stateflow.types.columns.shapes import Leaf

_BLOCK = 4 << 20
_LINE = 1 << 16
_THREADS = 4
_ROWS = 1 << 14
_LONGEST = 256 << 20
"""The longest line or record, in bytes."""
_LARGEST_DOCUMENT = 1 << 30
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_SPARK_CODECS = (".deflate", ".lz4", ".snappy")
"""Names of files that only Spark can decompress."""
_BOM = codecs.BOM_UTF8
_UTF8 = "utf-8"


class WrongContent(ValueError):
    """Content that is not of the declared form.

    Args:
        line: number of the line, or of the element of a document, from 1.
        reason: what is wrong, in words.
        unit: what is counted.
    """

    def __init__(self, line: int, reason: str, unit: str = "line") -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason
        self.unit = unit


CountedColumns = tuple[int, list[pa.Array]]
"""The number of rows, and their columns."""


class RowDecoder(Protocol):
    """Decodes the bytes of a file in blocks, from its first row or from any other on."""

    def rows(self, blocks: Iterator[bytes], columns: Sequence[Column], is_start: bool) -> Iterator[CountedColumns]:
        """Yields the rows, at most some thousands at once.

        Args:
            blocks: parts of the file in UTF-8, of any sizes, that together have whole rows.
            columns: the columns that the file has.
            is_start: whether the first block begins with the first byte of the file.

        Raises:
            WrongContent: the content is not of the declared form.
        """
        ...


@dataclass(frozen=True)
class DecodedFormat:
    """A format whose files are decoded here; a `FileFormat`.

    Attributes:
        decoder: the format.
        base: URI of the folder below which names of folders have values of columns.
        encoding: Python's name of the encoding of the files.
        quote: the byte that quotes ends of lines; empty if none does.
        is_csv: whether ends of lines may be within a row, or the first line may be a header.
        splits: whether several tasks may read ranges of one file.
    """

    decoder: RowDecoder
    base: str
    encoding: str = _UTF8
    quote: bytes = b""
    splits: bool = True
    is_csv: bool = False

    def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """See `FileFormat.read`: a row belongs to the share that has its first byte.

        With `quote`, shares begin and end with rows, as `row_starts` finds them.

        Raises:
            FileChanged: the file no longer exists, or was written again.
            CorruptContent: it is not of the declared form.
        """
        with _opened(share) as file:
            begin, blocks, is_start = 0, _decompressed(share.path, file), True
            if self.splits:
                begin, end = share.begin, share.end
                if not self.quote:
                    begin, end = _first_row(file, begin), _first_row(file, end)
                blocks = _blocks(file, begin, min(end, share.size))
                # Empty lines may come before the header.
                is_start = begin == 0 or (self.is_csv and _is_blank(_blocks(file, 0, begin)))
            try:
                yield from self.decode(blocks, share.uri, schema, is_start=is_start)
            except WrongContent as e:
                line = e.line + _count(_blocks(file, 0, begin), b"\n")
                raise CorruptContent(share.path, e.reason, f"{e.unit} {line}") from e

    def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
        """See `FileFormat.row_starts`. Counts the quotes of a file once, if ends of lines may be in quotes."""
        if not self.quote or not positions:
            return positions
        count = partial(_count_quotes, path, self.quote)
        with ThreadPoolExecutor(_THREADS) as threads:
            before = accumulate(threads.map(count, pairwise([0, *positions])))
            with open(path, "rb") as file:
                return [_first_row(file, at, self.quote, quotes) for at, quotes in zip(positions, before, strict=True)]

    @property
    def has_lines(self) -> bool:
        """Whether each line can be decoded alone."""
        return self.splits and not self.is_csv

    def rows_of_spark(self, schema: RowSchema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of files that Spark reads: of their lines if `has_lines`, else of their whole content.

        Args:
            schema: the columns.
            batches: bytes, URI of the file, and position of the part of the file that has them.

        Raises:
            CorruptContent: a file is not of the declared form.
        """
        end = b"\n" if self.has_lines else b""
        for (uri, begin), blocks in groupby(_runs(batches, end), lambda run: run[0]):
            try:
                yield from self.decode((block for _, block in blocks), uri, schema, is_start=begin == 0)
            except WrongContent as e:
                after = f" after byte {begin}" if begin else ""
                raise CorruptContent(uri, e.reason, f"{e.unit} {e.line}{after}") from e

    def decode(
        self, blocks: Iterator[bytes], uri: str, schema: RowSchema, *, is_start: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of bytes of a file, which are whole rows. Raises WrongContent and CorruptContent."""
        yield from with_folders(uri, self.base, schema, partial(self._decode, blocks, is_start))

    def _decode(self, blocks: Iterator[bytes], is_start: bool, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        texts = blocks if self.encoding == _UTF8 else _in_utf8(blocks, self.encoding)
        for _, found in self.decoder.rows(texts, schema.columns, is_start):
            yield pa.RecordBatch.from_arrays(found, schema=schema.arrow)


def _runs(batches: Iterable[pa.RecordBatch], end: bytes) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Yields URI and position of each part of a file, with a block of its bytes, of rows that Spark has read."""
    for batch in batches:
        values, files, begins = (column.to_pylist() for column in batch.columns)
        for part, rows in groupby(zip(files, begins, values, strict=True), lambda row: (row[0], row[1])):
            yield part, b"".join(value + end for _, _, value in rows)


def can_decompress(path: str) -> bool:
    """Returns whether a task can read a file, as its name says."""
    return not path.endswith(_SPARK_CODECS)


def is_divisible(path: str) -> bool:
    """Returns whether ranges of a file can be read."""
    return not _compression(path)


def _compression(path: str) -> str:
    return _CODECS.get(os.path.splitext(path)[1], "")


# -- bytes ------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(share: FileShare) -> Iterator[BinaryIO]:
    if share.is_object:
        with open_object_share(share) as file:
            yield file
        return
    try:
        opened = open(share.path, "rb")
    except FileNotFoundError as e:
        raise FileChanged(f"{share.path} does not exist") from e
    with opened:
        size = os.fstat(opened.fileno()).st_size
        if size != share.size:
            raise FileChanged(f"{share.path} has {size} bytes, and had {share.size} when the batch was planned")
        yield opened


def _decompressed(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yields the bytes of a whole file. Raises WrongContent if it is not of the format of its name, or truncated."""
    if not can_decompress(path):
        raise WrongContent(1, "Hadoop has compressed it as the end of its name says: use .gz, .bz2 or .zst in a bucket")
    codec = _compression(path)
    stream = pa.CompressedInputStream(file, codec) if codec else file
    while True:
        try:
            block = stream.read(_BLOCK)
        except OSError as e:
            if e.errno is not None:
                raise
            raise WrongContent(1, f"it cannot be decompressed: {e}") from e
        if not block:
            return
        yield block


def _blocks(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    file.seek(begin)
    while begin < end and (block := file.read(min(_BLOCK, end - begin))):
        begin += len(block)
        yield block


def _first_row(file: BinaryIO, at: int, quote: bytes = b"", quotes: int = 0) -> int:
    """Returns the first byte of the first row that begins at or after a position, or the size of the file.

    A row ends with the end of a line before which the number of quotes is even.

    Args:
        quote: the byte that quotes ends of lines; empty if none does.
        quotes: the number of quotes before the position.
    """
    if at == 0:
        return 0
    file.seek(position := at - 1)
    # The byte before the position may end a row; as a quote, it is counted already.
    block = file.read(_LINE)
    quotes -= block[:1] == quote
    while block:
        begin = 0
        while (found := block.find(b"\n", begin)) >= 0:
            quotes += block.count(quote, begin, found) if quote else 0
            begin = found + 1
            if quotes % 2 == 0:
                return position + begin
        quotes += block.count(quote, begin) if quote else 0
        position += len(block)
        block = file.read(_LINE)
    return position


def _is_blank(blocks: Iterable[bytes]) -> bool:
    """Returns whether there are only ends of lines, perhaps after a byte order mark."""
    return not any(block.strip(b"\r\n") for block in without_bom(iter(blocks)))


def _count_quotes(path: str, quote: bytes, part: tuple[int, int]) -> int:
    """Returns how often a byte is in a part of a file. NumPy counts faster than `bytes.count`, in several threads."""
    with open(path, "rb") as file:
        blocks = (np.frombuffer(block, np.uint8) for block in _blocks(file, *part))
        return sum(int(np.count_nonzero(block == ord(quote))) for block in blocks)


def _count(blocks: Iterable[bytes], byte: bytes) -> int:
    return sum(block.count(byte) for block in blocks)


def _in_utf8(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    line = 1
    try:
        for block in blocks:
            text = decoder.decode(block)
            line += text.count("\n")
            yield text.encode()
        yield decoder.decode(b"", True).encode()
    except UnicodeError as e:
        raise WrongContent(line, f"it is not text in {encoding}, at this line or after it: {e}") from e


def whole_rows(blocks: Iterable[bytes], end: Callable[[bytes], int]) -> Iterator[bytes]:
    """Yields the same bytes as blocks that end with a row.

    Args:
        end: returns the number of bytes of the whole rows that a block begins with.
    """
    left: list[bytes] = []
    size = 0
    for block in blocks:
        left.append(block)
        size += len(block)
        # Joined again only when there is twice as much: a long row is looked at a few times, not once for each block.
        if len(left) > 1 and size < 2 * len(left[0]):
            continue
        joined = b"".join(left)
        at = end(joined)
        if at:
            yield joined[:at]
        left, size = [joined[at:]], len(joined) - at
        if size > _LONGEST:
            raise WrongContent(1, f"a line is longer than {_LONGEST} bytes")
    if size:
        yield b"".join(left)


@dataclass(frozen=True)
class Lines:
    """How a file is divided into lines.

    Attributes:
        separator: the bytes that end a line; empty for LF, CR LF and CR.
    """

    separator: bytes = b""

    def blocks(self, blocks: Iterator[bytes], is_start: bool) -> Iterator[tuple[int, list[bytes]]]:
        """Yields blocks of lines, each with the number of lines before it. Raises WrongContent."""
        last = self.separator or b"\n"
        number = 0
        given = without_bom(blocks) if is_start else blocks
        for text in whole_rows(given, lambda text: text.rfind(last) + len(last) if last in text else 0):
            if not self.separator and b"\r" in text:
                text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            lines = text.split(last)
            if not lines[-1]:
                lines.pop()
            yield number, lines
            number += len(lines)


@dataclass(frozen=True)
class JsonLines:
    """A `RowDecoder` of one object of JSON on each line. Empty lines are skipped."""

    forms: TextForms
    lines: Lines = Lines()

    def rows(self, blocks: Iterator[bytes], columns: Sequence[Column], is_start: bool) -> Iterator[CountedColumns]:
        """See `RowDecoder.rows`."""
        objects = JsonObjects(columns, self.forms)
        for before, lines in self.lines.blocks(blocks, is_start):
            for begin in range(0, len(lines), _ROWS):
                part = lines[begin : begin + _ROWS]
                filled = [line for line in part if line.strip()]
                found, errors = objects.decode(filled)
                if errors:
                    at, reason = min(errors.items())
                    numbers = [number for number, line in enumerate(part, before + begin + 1) if line.strip()]
                    raise WrongContent(numbers[at], reason)
                yield len(filled), found


@dataclass(frozen=True)
class JsonDocument:
    """A `RowDecoder` of one document of JSON in each file: an object, or an array of objects."""

    forms: TextForms

    def rows(self, blocks: Iterator[bytes], columns: Sequence[Column], is_start: bool) -> Iterator[CountedColumns]:
        """See `RowDecoder.rows`."""
        text = _whole(without_bom(blocks))
        if not text.strip():
            return
        try:
            text.decode()
            elements = list(map(bytes, _array(text))) if text.lstrip()[:1] == b"[" else [text]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise WrongContent(1, reason_of(e), "document") from e
        objects = JsonObjects(columns, self.forms)
        for begin in range(0, len(elements), _ROWS):
            part = elements[begin : begin + _ROWS]
            found, errors = objects.decode(part)
            if errors:
                at, reason = min(errors.items())
                raise WrongContent(begin + at + 1, reason, "object")
            yield len(part), found


_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True)
class TextLines:
    """A `RowDecoder` of lines of text, or of whole files, as one column."""

    lines: Lines = Lines()
    is_whole: bool = False

    def rows(self, blocks: Iterator[bytes], columns: Sequence[Column], is_start: bool) -> Iterator[CountedColumns]:
        """See `RowDecoder.rows`."""
        column = text_column(columns)
        parts = [(0, [_whole(without_bom(blocks))])] if self.is_whole else self.lines.blocks(blocks, is_start)
        for before, lines in parts:
            for begin in range(0, len(lines), _ROWS):
                texts = _texts(lines[begin : begin + _ROWS], before + begin)
                # Only names of folders have the other columns, and this file is not in such a folder.
                yield len(texts), [texts if c is column else pa.nulls(len(texts), c.arrow_type) for c in columns]


def text_column(columns: Sequence[Column]) -> Column | None:
    """Returns the column of the lines of text files: the first text that is called ``value``, or the first one."""
    texts = [column for column in columns if column.arrow_type == pa.string()]
    return next((column for column in texts if column.name == "value"), texts[0] if texts else None)


def _texts(lines: Sequence[bytes], before: int) -> pa.Array:
    found = pa.array(lines, pa.binary())
    try:
        return found.cast(pa.string())
    except pa.ArrowException:
        for number, line in enumerate(lines, before + 1):
            try:
                line.decode()
            except UnicodeDecodeError as e:
                raise WrongContent(number, f"byte {e.start + 1} of the line is not UTF-8") from e
        raise


def without_bom(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the bytes of a file without a byte order mark."""
    first = b""
    for block in blocks:
        first += block
        if len(first) >= len(_BOM):
            break
    yield first.removeprefix(_BOM)
    yield from blocks


def _whole(blocks: Iterator[bytes]) -> bytes:
    parts: list[bytes] = []
    size = 0
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size > _LARGEST_DOCUMENT:
            raise WrongContent(1, f"it is larger than {_LARGEST_DOCUMENT} bytes, and is read as a whole", "document")
    return b"".join(parts)


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
        if block.startswith(_BOM):
            # Arrow would remove it, from a block that begins here: the value would depend on the division of the file.
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


_NULL = "__HIVE_DEFAULT_PARTITION__"


FolderValues = tuple[tuple[Column, str | None], ...]
"""Columns with their values as text; None for null."""


@dataclass(frozen=True)
class InFolders:
    """Files of a format, with columns from the names of their folders.

    Attributes:
        format: reads the other columns.
        base: URI of the folder below which names have values.
    """

    format: FileFormat
    base: str

    @property
    def splits(self) -> bool:
        """See `FileFormat`."""
        return self.format.splits

    def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
        """See `FileFormat`."""
        return self.format.row_starts(path, positions)

    def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """See `FileFormat.read`."""
        yield from with_folders(share.uri, self.base, schema, partial(self.format.read, share))


def with_folders(
    file: str, base: str, schema: RowSchema, read: Callable[[RowSchema], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file, with columns from the names of its folders.

    Args:
        file: percent-encoded URI of the file.
        base: URI of the folder below which names have values.
        schema: all columns.
        read: yields the rows of the file with the columns that it is given.

    Raises:
        CorruptContent: a value in a name does not have the type of its column.
    """
    values = folder_values(file, base, schema)
    if not values:
        yield from read(schema)
        return
    given = {column.name: _scalar(column, text, file) for column, text in values}
    for batch in read(without_columns(schema, values)):
        rows = len(batch)
        arrays = [pa.repeat(given[n], rows) if n in given else batch.column(n) for n in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def folder_values(file: str, base: str, schema: RowSchema) -> FolderValues:
    """Returns the values that the names of a file's folders have.

    Args:
        file: percent-encoded URI of the file.
        base: URI of the folder below which names have values.
        schema: the columns that names can have.

    Raises:
        CorruptContent: a value does not have the type of its column.
    """
    path, root = plain_path(file), plain_path(base).rstrip("/") + "/"
    if "=" not in path or not path.startswith(root):
        return ()
    folders = [part.partition("=") for part in path.removeprefix(root).split("/")[:-1]]
    # Spark writes names of folders with the codes of special characters, and takes names of columns in any case.
    texts = {unquote(name).lower(): unquote(text) for name, equals, text in folders if equals}
    columns = [c for c in schema.columns if c.name.lower() in texts and isinstance(c.shape, Leaf)]
    found = [(column, texts[column.name.lower()]) for column in columns]
    values = tuple((column, None if text == _NULL else text) for column, text in found)
    for column, value in values:
        _scalar(column, value, file)
    return values


def without_columns(schema: RowSchema, values: FolderValues) -> RowSchema:
    """Returns the other columns; all columns if names have all, because a batch without columns has no rows."""
    names = {column.name for column, _ in values}
    left = tuple(column for column in schema.columns if column.name not in names)
    return replace(schema, columns=left) if left else schema


def _scalar(column: Column, text: str | None, file: str) -> pa.Scalar:
    assert isinstance(column.shape, Leaf)
    try:
        return column_of_texts(column.shape, pa.array([text], pa.string()))[0]
    except WrongText as e:
        raise CorruptContent(file, f"{column.name}: {e.reason}", "name of a folder") from e
