"""Batches of rows of a Parquet file, which take bounded memory whatever the file contains.

A file of a few kilobytes may have any number of rows, and a text of a megabyte in each of them: equal values are stored
once, and zeros compress well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 1 << 16
"""Rows of a batch, if they are small."""
_BYTES = 32 << 20
_LARGEST_CHUNK = 1 << 30
_PORTION_ROWS = 1 << 20


def read_batches(
    source: BinaryIO | pa.NativeFile,
    file: pq.ParquetFile,
    columns: Sequence[str] | None = None,
    *,
    groups: Iterable[int] | None = None,
    rows: int = ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows in their order.

    A batch takes about 32 MiB. A single row with a large list or dict may take more.

    Args:
        source: the open file.
        file: the same file, as Arrow has opened it.
        columns: names of the columns to read; None for all.
        groups: numbers of the row groups to read; None for all.
        rows: most rows of a batch.

    Raises:
        pyarrow.ArrowException: the file cannot be read.
    """
    for group in range(file.num_row_groups) if groups is None else groups:
        most = max(1, min(rows, _rows_within_limit(source, file, group, columns)))
        yield from file.iter_batches(most, row_groups=[group], columns=columns, use_threads=False)


def middle_of_group(file: pq.ParquetFile, group: int, size: int) -> int:
    """Returns the middle of a row group, by which it is in one share of its file, whatever the footer says.

    Args:
        size: size of the file in bytes.
    """
    found = file.metadata.row_group(group)
    columns = [found.column(at) for at in range(found.num_columns)]
    begin = min((_first_page(column) for column in columns), default=0)
    middle: int = begin + sum(column.total_compressed_size for column in columns) // 2
    return min(max(middle, 0), max(size - 1, 0))


def _first_page(column: pq.ColumnChunkMetaData) -> int:
    data: int = column.data_page_offset
    return min(data, column.dictionary_page_offset) if column.has_dictionary_page else data


def group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yields batches together, as many as take about 32 MiB: each call of Arrow has a cost of its own."""
    some: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        some.append(batch)
        size, rows = size + batch.nbytes, rows + len(batch)
        if size >= _BYTES or rows >= _PORTION_ROWS:
            yield some
            some, size, rows = [], 0, 0
    if some:
        yield some


def _rows_within_limit(
    source: BinaryIO | pa.NativeFile, file: pq.ParquetFile, group: int, columns: Sequence[str] | None
) -> int:
    """Returns how many rows of a row group take no more memory than a batch may take."""
    found = file.metadata.row_group(group)
    count, bytes_per_row = max(1, found.num_rows), 0.0
    shared: dict[str, float] = {}
    for at in range(found.num_columns):
        chunk = found.column(at)
        name = chunk.path_in_schema.split(".")[0]
        if columns is not None and name not in columns:
            continue
        stored = max(chunk.total_uncompressed_size, 0)
        if stored > _LARGEST_CHUNK and stored > 1000 * chunk.total_compressed_size:
            raise pa.ArrowInvalid(f"the column {name} of a row group decompresses to {stored} bytes")
        # At least the 8 bytes of a number, which may be stored once for many rows.
        bytes_per_row += max(stored, 8 * chunk.num_values) / count
        if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page:
            shared[chunk.path_in_schema] = chunk.num_values / count
    if shared:
        bytes_per_row += _longest_of_dictionaries(source, file, group, list(shared)) * max(shared.values())
    return int(_BYTES / max(bytes_per_row, 1.0))


def _longest_of_dictionaries(
    source: BinaryIO | pa.NativeFile, file: pq.ParquetFile, group: int, paths: Sequence[str]
) -> int:
    """Returns the bytes of the longest values of the dictionaries of some columns together.

    Arrow reads a dictionary before the first row, and here without the texts of rows.
    """
    names = list(dict.fromkeys(path.split(".")[0] for path in paths))
    opened = pq.ParquetFile(source, metadata=file.metadata, read_dictionary=paths)
    rows = opened.iter_batches(1, row_groups=[group], columns=names, use_threads=False)
    first = next(rows, None)
    return 0 if first is None else sum(map(_longest, first.columns))


def _longest(values: pa.Array) -> int:
    if isinstance(values, pa.DictionaryArray):
        return int(pc.max(pc.binary_length(values.dictionary)).as_py() or 0)
    if isinstance(values, pa.StructArray):
        return sum(_longest(values.field(at)) for at in range(values.type.num_fields))
    if isinstance(values, pa.MapArray):
        return _longest(values.keys) + _longest(values.items)
    return _longest(values.values) if isinstance(values, pa.ListArray) else 0
