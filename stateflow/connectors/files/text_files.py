"""Files of JSON, CSV and text, decoded strictly: a value is read as it stands, or the file is corrupt.

A format decodes the bytes of a file, or of a range of it, to batches of the declared columns. Who reads the bytes is
another question: a task from a local file, or Spark from any other file.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise
from pathlib import PurePath
from typing import BinaryIO, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.api.input_files import CorruptContent, FileChanged, FileShare, file_uri
from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.files.folder_columns import with_folders
from stateflow.connectors.json_values import JsonObjects, reason_of
from stateflow.connectors.text_values import TextForms

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
        with _opened(share.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != share.size:
                raise FileChanged(f"{share.path} has {size} bytes, and had {share.size} when the batch was planned")
            begin, blocks, is_start = 0, _decompressed(share.path, file), True
            if self.splits:
                begin, end = share.begin, share.end
                if not self.quote:
                    begin, end = _first_row(file, begin), _first_row(file, end)
                blocks = _blocks(file, begin, min(end, size))
                # Empty lines may come before the header.
                is_start = begin == 0 or (self.is_csv and _is_blank(_blocks(file, 0, begin)))
            try:
                yield from self.decode(blocks, file_uri(PurePath(share.path)), schema, is_start=is_start)
            except WrongContent as e:
                line = e.line + _count(_blocks(file, 0, begin), b"\n")
                raise CorruptContent(share.path, e.reason, f"{e.unit} {line}") from e

    def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
        """See `FileFormat.row_starts`. Reads the file once to count its quotes, if ends of lines may be in quotes."""
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


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError as e:
        raise FileChanged(f"{path} does not exist") from e


def _decompressed(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yields the bytes of a whole file. Raises WrongContent if it is not of the format of its name, or truncated."""
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


# -- lines ------------------------------------------------------------------------------------------------------------


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
