"""Columns whose values the names of folders have, such as ``day=2026-01-31``, as in Spark's partition discovery.

Only declared columns are taken from names: another folder is a folder. A file that is in no such folder has the column
in its content, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from urllib.parse import unquote

import pyarrow as pa

from stateflow.api.input_files import CorruptContent, FileFormat, FileShare, file_uri, plain_path
from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.text_values import WrongText, column_of_texts
from stateflow.types.columns.shapes import Leaf

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
        yield from with_folders(file_uri(PurePath(share.path)), self.base, schema, partial(self.format.read, share))


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
