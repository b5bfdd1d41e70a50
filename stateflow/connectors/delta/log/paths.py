"""Files that the log of a Delta table names: opened below the table's folder, without following links.

Any writer of the table can put a path into its log. An absolute one, one with ``..``, or one through a link would let
readers copy the rows of another table, and a VACUUM delete its files; a FIFO would let them wait without end.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote_to_bytes
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from stateflow.connectors.delta.data_files import disk_error
from stateflow.connectors.delta.log.listing import LOG_FOLDER
from stateflow.connectors.parquet_batches import read_batches
from stateflow.errors import CorruptFile
from stateflow.storage.no_follow import LinkedFolder, NotRegular, open_file, open_folder, open_root

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_UUID_CHARACTERS = 20
_INLINE, _BY_UUID = "i", "u"


def logged_parts(path: str) -> tuple[str, ...]:
    """Returns the names of the folders and the file of a path in a table's log, which is decoded once, as Delta does.

    Raises:
        CorruptFile: the path leads out of the table's folder, or into its log.
    """
    decoded = os.fsdecode(unquote_to_bytes(path))
    parts = tuple(decoded.split("/"))
    leads_away = any(part in ("", ".", "..") for part in parts) or "\0" in decoded or parts[0] == LOG_FOLDER
    if leads_away or _SCHEME.match(path):
        raise CorruptFile(
            "the log of a Delta table names a file that is not below the table's folder",
            hint="restore the log from a copy, or copy the rows to a new table; shallow clones are not supported",
            file=path[:500],
        )
    return parts


def plain_path(path: str) -> str:
    """Returns a path in a table's log as one relative to the table's folder. Raises CorruptFile as `logged_parts`."""
    return "/".join(logged_parts(path))


@contextmanager
def open_logged_file(table: Path, path: str) -> Iterator[BinaryIO]:
    """Opens a file that the log names.

    Args:
        table: the table's folder, which may be reached through links.
        path: as in the log.

    Raises:
        FileNotFoundError: it does not exist.
        CorruptFile: the path leads away, or through a link, or to something else than a regular file, or the content is
            damaged.
        ConfigError, StorageError: it cannot be read.
    """
    with _parent(table, path) as (folder, name), os.fdopen(open_file(folder, name), "rb") as file:
        yield file


@contextmanager
def open_logged_parquet(table: Path, path: str) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file that the log names. Raises as `open_logged_file`."""
    with _parquet(table, path) as (_, opened):
        yield opened


def read_parquet(table: Path, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file that the log names, in batches of bounded size. Raises as `open_logged_file`.

    Args:
        columns: those to read; None for all.
    """
    with _parquet(table, path) as (file, opened):
        yield from read_batches(file, opened, columns)


@contextmanager
def _parquet(table: Path, path: str) -> Iterator[tuple[BinaryIO, pq.ParquetFile]]:
    with open_logged_file(table, path) as file:
        try:
            # Times of 96 bits have nanoseconds, which years after 2262 do not have in 64 bits.
            options = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
            with pq.ParquetFile(file, **options) as opened:
                yield file, opened
        except pa.ArrowException as e:
            raise damaged_file(table, path, e) from e


def size_of(table: Path, path: str) -> int | None:
    """Returns the size of a file that the log names; None if it does not exist. Raises as `open_logged_file`."""
    try:
        with _parent(table, path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise NotRegular(errno.EINVAL, "something else than a file")
            return found.st_size
    except FileNotFoundError:
        return None


def remove_file(table: Path, path: str) -> None:
    """Deletes a file that the log names, if it exists. Raises as `open_logged_file`."""
    try:
        with _parent(table, path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


@contextmanager
def _parent(table: Path, path: str) -> Iterator[tuple[int, str]]:
    """Yields the open folder of a file, and the file's name; translates errors."""
    *folders, name = logged_parts(path)
    opened: list[int] = []
    try:
        opened.append(open_root(table))
        for each in folders:
            opened.append(open_folder(opened[-1], each))
        yield opened[-1], name
    except FileNotFoundError:
        raise
    except (LinkedFolder, NotRegular, IsADirectoryError, NotADirectoryError) as e:
        raise CorruptFile(
            "a file of a Delta table is a link, in a linked folder, or not a regular file",
            hint="replace it by a copy of the file",
            table=str(table),
            file=path[:500],
            found=e.strerror,
        ) from e
    except OSError as e:
        if e.errno is None:  # Arrow's, while the content was read, such as about a wrong checksum.
            raise damaged_file(table, path, e) from e
        raise disk_error(e, table / "/".join((*folders, name))) from e
    finally:
        for number in opened:
            os.close(number)


def damaged_file(table: Path, path: str, error: Exception) -> CorruptFile:
    """Returns the error of a file whose content cannot be read."""
    return CorruptFile(
        "a file of a Delta table is damaged",
        hint="restore the file from a copy, or delete its rows from the table",
        table=str(table),
        file=path[:500],
        reason=str(error)[:500],
    )


def vector_path(vector: Mapping[str, object]) -> str | None:
    """Returns the path of a deletion vector as in the log; None when it is in the log itself.

    Raises:
        CorruptFile: it is outside of the table's folder, or has no valid name.
    """
    kind, text = vector["storageType"], str(vector["pathOrInlineDv"])
    if kind == _INLINE:
        return None
    if kind != _BY_UUID:
        raise CorruptFile(
            "the log of a Delta table names a deletion vector by an absolute path",
            hint="let Spark remove the vectors: REORG TABLE ... APPLY (PURGE)",
            file=text[:500],
        )
    folder, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
    # Z85 is the encoding of Python's base85 with other characters for the digits.
    try:
        number = UUID(bytes=base64.b85decode(name.encode().translate(bytes.maketrans(_Z85, _B85))))
    except ValueError as e:
        raise CorruptFile("a deletion vector of the Delta table has no valid name", name=text[:200]) from e
    file = f"deletion_vector_{number}.bin"
    path = f"{folder}/{file}" if folder else file
    logged_parts(path)
    return path
