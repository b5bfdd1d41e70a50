"""Columns whose values the names of folders have, such as ``day=2026-01-31``, as in Spark's partition discovery.

Only declared columns are taken from names: another folder is a folder. A file that is in no such folder has the column
in its content, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from urllib.parse import unquote

import pyarrow as pa

from stateflow.api.input_files import CorruptContent, FileFormat, FileShare, file_uri, plain_path
from stateflow.api.schema import Column, RowSchema

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

    def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """See `FileFormat.read`."""
        values = folder_values(file_uri(PurePath(share.path)), self.base, schema)
        if not values:
            yield from self.format.read(share, schema)
            return
        given = {column.name: _scalar(column, text, share.path) for column, text in values}
        for batch in self.format.read(share, without_columns(schema, values)):
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
    # Spark writes names of folders with the codes of special characters.
    texts = {unquote(name): unquote(text) for name, equals, text in folders if equals}
    found = tuple((c, None if texts[c.name] == _NULL else texts[c.name]) for c in schema.columns if c.name in texts)
    for column, text in found:
        _scalar(column, text, path)
    return found


def without_columns(schema: RowSchema, values: FolderValues) -> RowSchema:
    """Returns the other columns."""
    names = {column.name for column, _ in values}
    return replace(schema, columns=tuple(c for c in schema.columns if c.name not in names)) if names else schema


def _scalar(column: Column, text: str | None, path: str) -> pa.Scalar:
    try:
        return pa.scalar(text, pa.string()).cast(column.arrow_type)
    except (pa.ArrowException, NotImplementedError) as e:
        raise CorruptContent(path, f"a folder's name has a value that is not a {column.spark_type}: {text}") from e
