"""The file source.

Spark's own file source, or `BatchPlanner` for buckets, says which files a batch has; tasks or Spark read them in order.
"""

from __future__ import annotations

import glob
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa

from stateflow.api.datasets import Dataset, path_name
from stateflow.api.file_log import (
    BatchLimits,
    BatchPlanner,
    ListedFile,
    StoredFiles,
    encode_entry,
    files_since,
    logged_paths,
    may_be_listed,
)
from stateflow.api.input_files import (
    FAIL,
    NANOSECONDS,
    QUARANTINE,
    CorruptContent,
    FileFormat,
    FileShare,
    LostFile,
    OnCorruptFile,
    UnreadableFile,
    file_uri,
    hint_for,
    local_path,
    not_text,
    open_object_share,
    reason_in,
    unreadable_in,
)
from stateflow.api.schema import RowSchema
from stateflow.api.source import FROM_START, Arrange, Backlog, InitialPosition, Source, StartKind, StartPosition
from stateflow.clock import epoch_milliseconds
from stateflow.config.settings import LIMITS, SourceSettings
from stateflow.connectors.column_policy import (
    ColumnPolicy,
    FoundColumns,
    check_found_columns,
    check_header,
    check_source_columns,
)
from stateflow.connectors.files.reader_options import (
    DECODED,
    NAMING,
    PARSED,
    check_decoded,
    check_names_columns,
    check_reader,
    check_stored,
    is_for_spark,
    text_format,
)
from stateflow.connectors.files.text_files import (
    FolderValues,
    InFolders,
    can_decompress,
    folder_values,
    is_divisible,
    without_columns,
)
from stateflow.connectors.stream_reader import Position, StreamInput, ends_by_itself, load_stream
from stateflow.errors import ConfigError, StateflowError
from stateflow.helpers import check_choice, closest_first
from stateflow.storage import check_address, is_object_address, open_object, open_storage, split_object
from stateflow.types.columns.shapes import Items, Leaf, Record, Shape
from stateflow.types.declared_types import literal, quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader
    from pyspark.sql.types import StructField, StructType

_FOREVER = "36500d"
_UNSUPPORTED = {"cleansource", "sourcearchivedir", "maxfilespertrigger", "maxbytespertrigger", "latestfirst"}
_PATTERN_CHARACTERS = "*?[{"
_SAMPLED_FILES = 20
_FILES_AT_ONCE = 8
_SAMPLED_TEXTS, _SAMPLED_BYTES = 8, 1 << 16
"""Files of text, and bytes of each, whose lines are counted to estimate the rows of all."""
_UNREADABLE_HINT = "check that all files have the declared format, are complete, and can be read by this user"


_Reader = TypeVar("_Reader", "DataFrameReader", "DataStreamReader")
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class WaitingFile:
    """A file that was not read yet.

    Attributes:
        uri: percent-encoded, as in Spark's log of the source.
        modified_at: when it was written.
    """

    uri: str
    bytes: int
    modified_at: datetime


class FileSource(Source):
    """Files of one folder and the folders below it, oldest first, and by path if they have the same time.

    Spark identifies a file by its name: files must appear complete, and must never change. Spark remembers every name
    forever, for about 200 bytes of the driver's memory each: with its default `maxFileAge` it would silently skip a
    file whose timestamp is more than a week older than the newest.

    Args:
        path: the folder, or a pattern; a relative path is resolved against the working directory at the run's start.
            At ``s3://``, ``az://``, ``gs://`` and ``webhdfs://``, the storage is the one of a job root there.
        schema: row class of the rows.
        format: ``parquet``, ``json``, ``csv``, ``orc``, or ``text`` with a row class of one field ``value: str``.
        columns: how a start handles columns that were added to or removed from Parquet or ORC files. The start checks
            the columns that Spark finds, which it takes from one of the files. Other files, and those that arrive
            during a run, are not checked: a column that they lack is null, even if it must not be, and their further
            columns are ignored. JSON records may lack keys; CSV files must have exactly the declared columns.
        bounded: whether the files are complete: a run that has read all files that existed at its start has reached
            the end of the source, and fires every event-time timer. Otherwise more files may arrive.
        on_corrupt_file: ``"fail"`` ends the run with `CorruptInput`, which names the file and is not retried.
            ``"quarantine"`` skips the whole file: none of its rows is processed, the checkpoint of its batch records
            it, and ``stateflow status`` lists it. A file is corrupt when it cannot be read as declared.
        options: further options, named and defined as in Spark's readers. JSON, CSV and text are
            decoded by the source itself, strictly: it has the options that read-files.md lists.

    Raises:
        ConfigError: the format or an option does not exist, or the source does not support it or its value; or
            `columns` is given for a format for which it would have no effect.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        schema: type[object],
        format: str = "parquet",
        columns: ColumnPolicy | None = None,
        bounded: bool = False,
        on_corrupt_file: OnCorruptFile = "fail",
        **options: str,
    ) -> None:
        check_choice("on_corrupt_file", on_corrupt_file, (FAIL, QUARANTINE))
        unsupported = sorted(o for o in options if o.lower() in _UNSUPPORTED)
        if unsupported:
            raise ConfigError(
                "the file source does not support a reader option",
                hint="files that are moved or deleted cannot be read again after a restore; limits are settings",
                options=unsupported,
            )
        check_reader(format, options)
        if columns is not None:
            check_names_columns(format)
        check_address(str(path))
        # Airflow starts each run in another directory, where the same relative path would mean other files.
        self.path = _absolute(path)
        self.schema = RowSchema.of(schema)
        self.start_kinds = frozenset({StartKind.EARLIEST, StartKind.LATEST, StartKind.TIMESTAMP})
        self.format = format.lower()
        self.columns = columns or ColumnPolicy()
        self.bounded = bounded
        self.on_corrupt_file = on_corrupt_file
        self.options = options
        if self._stored is not None:
            check_stored(self.format, options)
        # Raises ConfigError for values that are not supported.
        self._text = text_format(self.format, options, self._base) if self.format in DECODED else None
        if self._text is not None:
            check_decoded(self.format, self.schema)

    @property
    def description(self) -> str:
        return f"FileSource[{self.format}:{self.path}]"

    def datasets(self, offset: str) -> Sequence[Dataset]:
        return (Dataset(*path_name(self.path), kind="FILE", file_format=self.format),)

    @property
    def ends_by_itself(self) -> bool:
        # Spark's own file source does in each version.
        return self._stored is None or ends_by_itself()

    @property
    def files_address(self) -> str:
        return self._address

    @property
    def limited_by(self) -> frozenset[str]:
        """See `Source.limited_by`: only Parquet files have the number of their rows in them."""
        counted = self.format == "parquet" and (self._local is not None or self._stored is not None)
        return frozenset(LIMITS if counted else {"max_files_per_batch"})

    def check_settings(self, limits: SourceSettings) -> None:
        """See `Source.check_settings`.

        Raises:
            ConfigError: the folder is missing, a name is not UTF-8, or a limit has no effect.
        """
        local = self._local
        if local is not None and not self._is_pattern and not local.is_dir():
            raise ConfigError(
                "the source's folder does not exist", hint="create it, or correct the path", path=self.path
            )
        for file in [] if local is None else _files(local):
            if not _is_utf_8(str(file)):
                raise ConfigError(
                    "the name of a file is not UTF-8: Spark would skip the file without a message",
                    hint="rename it",
                    path=self.path,
                    file=str(file).encode(errors="backslashreplace").decode(),
                )
        if self._stored is not None:
            # Raises ConfigError for an address that is not valid.
            open_storage(split_object(self.path)[0])
        _check_one_limit(limits)

    def check(self, spark: SparkSession) -> None:
        """Compares the declared columns with Parquet files, names in ORC files, and the header of a CSV file.

        Raises:
            SchemaMismatch: the columns differ; names the column.
            CorruptInput: a file cannot be read; names the file.
        """
        if self._stored is not None:
            # Lists them in any case: an address or credentials that are wrong end the run before its first batch.
            self._check_stored_columns(self._stored.list())
            return
        paths = self._sample()
        if paths:
            # Which types of ORC files Spark reads as others is not documented.
            typed, found = self.format == "parquet", self._stored_columns(spark, paths)
            check_source_columns(found, self.schema, self.columns, self.path, compares_types=typed)
        file = self._compared if self._compares_header else None
        if file is not None:
            check_header(read_columns(spark, file, self.format, self.options), self.schema, str(file))

    @property
    def unchecked(self) -> str:
        """See `Source.unchecked`."""
        if self.format in ("parquet", "text"):
            return ""
        if self.format == "orc":
            return "types of columns of the orc files"
        return f"columns of the {self.format} files" + ("" if self._compared is None else ", except for one file's")

    def warnings(self, spark: SparkSession) -> list[str]:
        """See `Source.warnings`: compares the first local file, for formats that `check` does not compare."""
        if self._stored is not None:
            return [] if self._stored.list() else [f"{self.path} has no files; check the address"]
        file = self._compared
        if file is None or _option(self.options, "header") == "true":
            return []
        try:
            values = folder_values(file_uri(file), self._base, self.schema)
        except CorruptContent as e:
            return [f"{file}: {e.position}: {e.reason}"]
        return column_warnings(
            spark, file, without_columns(self.schema, values), format=self.format, options=self.options
        )

    @property
    def _compares_header(self) -> bool:
        return (
            self.format == "csv"
            and _option(self.options, "header") == "true"
            and _option(self.options, "enforceschema") != "true"
        )

    @property
    def _compared(self) -> Path | None:
        """The file that `warnings` compares."""
        local = self._local
        if self.format not in PARSED or local is None:
            return None
        return first_small_file(_files(local))

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        """See `Source.stream`. Raises ConfigError for a limit that would have no effect."""
        reader = spark.readStream.option("maxFileAge", _FOREVER)
        for option, value in self._limits(limits).items():
            reader = reader.option(option, value)
        # Otherwise Spark skips files in other folders without a message.
        reader = reader.option("recursiveFileLookup", "true")
        return self._rows(self._as_declared(reader, self.schema).load(self._address))

    def stream_files(self, spark: SparkSession, limits: SourceSettings, log: Path) -> DataFrame | None:
        """See `Source.stream_files`: files in buckets."""
        if self._stored is None:
            return None
        _check_one_limit(limits)
        files, rows = limits.max_files_per_batch, limits.max_rows_per_batch
        size = None if rows is None else self._stored_row_bytes(self._stored)
        most = BatchLimits(files, None if size is None or rows is None else max(1, int(size * rows)))
        stream = _StoredInput(self.description, BatchPlanner(self._stored, most, log))
        # Each source of a run has its own log.
        name = f"stateflow_files_{hashlib.sha256(os.fsencode(log)).hexdigest()[:16]}"
        return load_stream(spark, name, self.schema.ddl, stream)

    def read_files(self, spark: SparkSession, files: Sequence[str], arrange: Arrange = lambda rows: rows) -> DataFrame:
        """See `Source.read_files`."""
        if self._text is not None:
            # It takes columns from names of folders itself.
            return self._rows(self._loaded(spark, self.schema, files), arrange)
        self._check_types(files)
        by_folder: dict[FolderValues, list[str]] = {}
        for file in files:
            by_folder.setdefault(folder_values(file, self._base, self.schema), []).append(file)
        frames = [self._read_folder(spark, values, own) for values, own in by_folder.items()]
        return arrange(reduce(lambda first, second: first.union(second), frames))

    def _check_types(self, files: Sequence[str]) -> None:
        from stateflow.connectors.files.parquet_files import check_types

        for file in files:
            path = local_path(file)
            if path is not None:
                named = folder_values(file, self._base, self.schema)
                check_types(Path(path), file, self.format, without_columns(self.schema, named))

    def _read_folder(self, spark: SparkSession, values: FolderValues, files: Sequence[str]) -> DataFrame:
        """Returns the rows of files whose folders have the same values of columns."""
        texts = {column: "NULL" if text is None else literal(text) for column, text in values}
        given = {column.name: f"CAST({text} AS {column.spark_type})" for column, text in texts.items()}
        rows = self._loaded(spark, without_columns(self.schema, values), files)
        return rows.selectExpr(*(f"{given.get(n, quote_name(n))} AS {quote_name(n)}" for n in self.schema.names))

    def _loaded(self, spark: SparkSession, schema: RowSchema, files: Sequence[str]) -> DataFrame:
        """Returns the frame of Spark's reader for some files."""
        # As Spark's own file source reads its files: their names are not patterns. Without `recursiveFileLookup`, Spark
        # takes several names as patterns nevertheless, and skips files that are not in a folder of a partition.
        own = {"__globPaths__": "false", "recursiveFileLookup": "true"}
        rows = self._as_declared(spark.read, schema).options(**own).load([unquote(file) for file in files])
        return rows if self._text is not None else _with_checked_texts(rows, schema)

    def _as_declared(self, reader: _Reader, schema: RowSchema) -> _Reader:
        """Returns a reader of Spark for the format, or for the bytes of files that `_rows` decodes."""
        if self._text is None:
            return reader.format(self.format).schema(schema.ddl).options(**self.options)
        kept = {name: value for name, value in self.options.items() if is_for_spark(name)}
        form = {"lineSep": "\n"} if self._text.has_lines else {"wholetext": "true"}
        return reader.format("text").options(**kept, **form)

    def _rows(self, frame: DataFrame, arrange: Arrange = lambda rows: rows) -> DataFrame:
        """Returns the rows of a frame of `_as_declared`."""
        if self._text is None:
            return arrange(frame)
        # Spark's readers of JSON and CSV cannot be made to refuse all that is not of the declared form.
        found = frame.selectExpr("CAST(value AS BINARY) AS value", "_metadata.file_path", "_metadata.file_block_start")
        decode = partial(self._text.rows_of_spark, self.schema.without_classes())
        return arrange(found).mapInArrow(decode, self.schema.ddl)

    def file_format(self, files: Sequence[str]) -> FileFormat | None:
        """See `Source.file_format`: local files of JSON, CSV and text, Parquet files without options, and objects."""
        from stateflow.connectors.files.parquet_files import ParquetFormat, StoredParquet, can_read

        if self._stored is not None:
            if self._text is None:
                return InFolders(StoredParquet(), self._base)
            # The driver would have to read all of a file with quotes to divide it.
            divided = self._text.splits and not self._text.quote and all(map(is_divisible, files))
            return replace(self._text, splits=divided)
        if self._text is not None:
            is_local = all(local_path(file) is not None and can_decompress(file) for file in files)
            divided = self._text.splits and all(map(is_divisible, files))
            return replace(self._text, splits=divided) if is_local else None
        is_plain = self.format == "parquet" and not self.options and can_read(self.schema)
        is_local = all(local_path(file) is not None for file in files)
        return InFolders(ParquetFormat(), self._base) if is_plain and is_local else None

    @property
    def is_table(self) -> bool:
        """Whether the files can be listed here: not at addresses of Hadoop, or by some of its patterns."""
        local, wanted = self._local, _option_as_given(self.options, "pathglobfilter")
        return self._stored is not None or not (
            local is None or _is_unclear(local) or any(c in wanted for c in _UNCLEAR)
        )

    def read_now(self, spark: SparkSession) -> DataFrame:
        """See `Source.read_now`: Spark reads local files, this process those in buckets."""
        if self._stored is None:
            self.check(spark)
            files = [file.uri for file in self.list_waiting(()) or ()]
            return self.read_files(spark, files) if files else spark.createDataFrame([], self.schema.ddl)
        listed = self._stored.list()
        self._check_stored_columns(listed)
        format = self.file_format([file.path for file in listed])
        assert format is not None

        def batches(file: ListedFile) -> list[pa.RecordBatch]:
            share = FileShare(file.path, 0, max(1, file.size), file.size, file.version)
            return list(format.read(share, self.schema))

        try:
            with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
                found = [batch for each in pool.map(batches, listed) for batch in each]
        except (CorruptContent, LostFile) as e:
            unreadable = unreadable_in(str(e))
            assert unreadable is not None
            raise unreadable.error() from e
        return spark.createDataFrame(pa.Table.from_batches(found, self.schema.arrow), self.schema.ddl)

    def find_truncated(self, files: Sequence[str]) -> dict[str, str]:
        """See `Source.find_truncated`: reads the footers of local Parquet files."""
        from stateflow.connectors.files.parquet_files import truncation_of

        if self.format != "parquet" or self._local is None:
            return {}
        reasons = {file: truncation_of(Path(path)) for file in files if (path := local_path(file)) is not None}
        return {file: reason for file, reason in reasons.items() if reason is not None}

    def holds(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Returns whether every file that was read since `offset` still exists; None if only Spark can look it up."""
        if self._stored is not None:
            read = files_since(offset, logs)
            try:
                now = {file.path: file.version for file in self._stored.list()} if read else {}
            except StateflowError:
                # A restore can also be planned where the bucket cannot be reached.
                return None
            return all(file.path in now and file.version in ("", now[file.path]) for file in read)
        paths = {file.path for file in files_since(offset, logs)}
        local = [local_path(path) for path in paths]
        return None if None in local else all(Path(path).is_file() for path in local if path is not None)

    def files_since(self, offset: str, logs: Sequence[bytes]) -> int | None:
        return len({file.path for file in files_since(offset, logs)})

    def has_new_input(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """See `Source.has_new_input`: lists files of disks and buckets. Unknown for local patterns with brackets."""
        if self._stored is not None:
            known = logged_paths(offset, logs)
            # A failure is a reason for a run, which reports it.
            with suppress(StateflowError):
                return None if known is None else any(file.path not in known for file in self._stored.list())
            return None
        return None if self._local is None else has_new_files(self._local, offset, logs)

    def backlog(self, offset: str, logs: Sequence[bytes]) -> Backlog:
        """See `Source.backlog`: lists the files that Spark's log does not have, and estimates their rows from a few."""
        known = set[str]() if offset == FROM_START else logged_paths(offset, logs)
        if known is None:
            return Backlog(unknown="the log of files that were read does not belong to the position")
        found = self.list_waiting(known)
        if found is None:
            return Backlog(unknown="only Spark can list the files of this path or pattern")
        rows, exact = self._count_rows(found)
        unknown = "" if rows is not None else f"rows of {self.format} files are not counted without reading them"
        oldest = min((file.modified_at for file in found), default=None)
        return Backlog(rows, sum(file.bytes for file in found), len(found), oldest, exact, unknown)

    def list_waiting(self, known: Collection[str]) -> list[WaitingFile] | None:
        """Returns the files that a run would read; None if they cannot be listed here. Raises OSError.

        Args:
            known: URIs of the files that were read.
        """
        if self._stored is not None:
            return [
                WaitingFile(file.path, file.size, datetime.fromtimestamp(file.timestamp / 1000, UTC))
                for file in self._stored.list()
                if file.path not in known
            ]
        local, wanted = self._local, _option_as_given(self.options, "pathglobfilter")
        if local is None or not self.is_table:
            return None
        found = []
        with suppress(FileNotFoundError):  # a pattern that matches no file yet
            for path in listed_files(local):
                uri = file_uri(path)
                if uri not in known and (not wanted or fnmatchcase(path.name, wanted)):
                    status = path.stat()
                    found.append(WaitingFile(uri, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC)))
        return found

    def sample_rows(self, file: WaitingFile) -> tuple[int, int] | None:
        """Returns a number of rows and of the bytes that they take in a file; None if it is not known.

        Reads the footer of a Parquet file, and the beginning of a file of text. Raises OSError.
        """
        from pyarrow import lib

        from stateflow.connectors.files.parquet_files import count_rows

        with self._open_waiting(file) as opened:
            if self.format == "parquet":
                try:
                    return count_rows(opened), file.bytes
                except lib.ArrowException:
                    return None  # the batch that reads a corrupt file reports it
            data = opened.read(_SAMPLED_BYTES)
        ends_without_newline = 0 < len(data) == file.bytes and not data.endswith(b"\n")
        return data.count(b"\n") + ends_without_newline, len(data)

    @contextmanager
    def _open_waiting(self, file: WaitingFile) -> Iterator[BinaryIO]:
        path = local_path(file.uri)
        if path is not None:
            with open(path, "rb") as opened:
                yield opened
            return
        storage, key = open_object(file.uri)
        with storage.open(key) as opened:
            yield opened

    def _count_rows(self, files: Sequence[WaitingFile]) -> tuple[int | None, bool]:
        """Returns the number of rows of files and whether it is exact; None if there is no way to estimate it."""
        if not files:
            return 0, True
        if _option(self.options, "wholetext") == "true":
            return len(files), True
        is_whole = _option(self.options, "multiline") == "true" and self.format == "json"
        if self.format == "orc" or is_whole or (self._text and not all(is_divisible(file.uri) for file in files)):
            return None, False
        most = _SAMPLED_FILES if self.format == "parquet" else _SAMPLED_TEXTS
        picked = files if len(files) <= most else [files[at * len(files) // most] for at in range(most)]
        samples = [self.sample_rows(file) for file in picked]
        rows, size = (sum(each[at] for each in samples if each) for at in (0, 1))
        if not rows:
            return (0, False) if size == sum(file.bytes for file in files) else (None, False)
        headers = len(files) if _option(self.options, "header") == "true" else 0
        total = round(sum(file.bytes for file in files) * rows / size) - headers
        return max(0, total), self.format == "parquet" and len(picked) == len(files) and None not in samples

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """Returns the position after the files that were modified before a time; see `skip_files`."""
        assert start.timestamp is not None
        if self._stored is not None:
            return skip_listed(self._stored.list(), start.timestamp)
        return skip_files(self.path, self._local, start.timestamp)

    def can_keep(self, description: str) -> bool:
        """Returns whether the path is the same: Spark recognizes files that were read by their paths."""
        return description.partition(":")[2] == self.description.partition(":")[2]

    def _limits(self, limits: SourceSettings) -> dict[str, str]:
        """Returns the options of Spark's reader that limit a batch."""
        _check_one_limit(limits)
        files, rows = limits.max_files_per_batch, limits.max_rows_per_batch
        if rows is None:
            return {} if files is None else {"maxFilesPerTrigger": str(files)}
        assert self._local is not None
        size = self._row_bytes(self._local)
        return {"maxBytesPerTrigger": str(max(1, int(size * rows)))} if size else {}

    def _sample(self) -> list[str]:
        """Returns the paths that `check` reads: none without typed files, or when all are corrupt and skipped."""
        local = self._local
        if self.format not in NAMING or (local is not None and not _files(local)):
            return []
        if local is None or self.on_corrupt_file == FAIL:
            return [self._address]
        if self.format == "orc":
            return []  # the first one may be corrupt
        readable = (path for path in _files(local) if not self.find_truncated([path.as_uri()]))
        return [str(path) for path in islice(readable, 1)]

    def _stored_columns(self, spark: SparkSession, paths: list[str]) -> StructType:
        """Returns the columns of the files, as Spark reads them."""
        from pyspark.sql.types import StructType

        try:
            nested = {} if self._local is None else {"recursiveFileLookup": "true"}
            found = spark.read.format(self.format).options(**nested, **self.options).load(paths).schema
            return StructType([*found.fields, *(f for f in self._folder_fields() if f.name not in found.names)])
        except Exception as e:
            unreadable = unreadable_in(str(e))
            if unreadable is not None:
                raise unreadable.error() from e
            reason = reason_in(e)
            file = _nanosecond_file(self._local) if NANOSECONDS in reason else None
            named = {"file": str(file)} if file else {}
            raise self._unreadable(reason, hint_for(reason, _UNREADABLE_HINT), **named) from e

    def _check_stored_columns(self, files: Sequence[ListedFile]) -> None:
        """Compares the columns of the first Parquet file in a bucket that can be read with the declared ones."""
        from stateflow.connectors.files.parquet_files import is_read_unchanged, read_stored_schema

        read = self._first_stored(files, read_stored_schema) if self.format == "parquet" else None
        file, found = read or (None, None)
        if file is None or found is None:
            return
        named = [c.name for c, _ in folder_values(file.path, self._base, self.schema) if c.name not in found.names]
        columns = FoundColumns(
            names=[*found.names, *named],
            types=[*map(str, found.types), *named],
            misfit=lambda column, at: (
                None if at >= len(found) or is_read_unchanged(found.types[at], column.arrow_type) else ""
            ),
        )
        check_found_columns(columns, self.schema, self.columns, self.path)

    def _first_stored(
        self, files: Sequence[ListedFile], read: Callable[[BinaryIO], _Read]
    ) -> tuple[ListedFile, _Read] | None:
        """Returns the first Parquet file in a bucket that can be read, and what `read` returns for it.

        Raises:
            CorruptInput: a file before it is corrupt, and is not skipped.
        """
        for file in files[:_SAMPLED_FILES]:
            try:
                with open_object_share(FileShare(file.path, 0, file.size, file.size, file.version)) as opened:
                    return file, read(opened)
            except LostFile as e:
                found = unreadable_in(str(e))
                assert found is not None
                raise found.error() from e
            except (OSError, pa.ArrowException) as e:
                if self.on_corrupt_file == FAIL:
                    raise UnreadableFile(file.path, reason_in(e), is_corrupt=True).error() from e
        return None

    def _stored_row_bytes(self, stored: StoredFiles) -> float | None:
        """Returns the average bytes of a row in the first file in a bucket that can be read; None without rows."""
        from stateflow.connectors.files.parquet_files import count_rows

        file, rows = self._first_stored(stored.list(), count_rows) or (None, 0)
        return None if file is None or not rows else file.size / rows

    def _folder_fields(self) -> list[StructField]:
        """Returns the columns whose values the folders of local files have."""
        from pyspark.sql.types import DataType, StructField

        files = [] if self._local is None else _files(self._local)
        found = {c for file in files for c, _ in folder_values(file_uri(file), self._base, self.schema)}
        return [StructField(c.name, DataType.fromDDL(c.spark_type)) for c in self.schema.columns if c in found]

    def _unreadable(self, reason: str, hint: str, **facts: str) -> ConfigError:
        return ConfigError(
            "the source's files cannot be read", hint=hint, path=self.path, format=self.format, **facts, reason=reason
        )

    @property
    def _is_pattern(self) -> bool:
        """Whether the path is a pattern, and not a folder whose name has such characters."""
        local = self._local
        return any(c in self.path for c in _PATTERN_CHARACTERS) and not (local is not None and local.is_dir())

    @property
    def _address(self) -> str:
        """The path as Hadoop's pattern."""
        return self.path if self._is_pattern else re.sub(r"([*?\[\]{}\\])", r"\\\1", self.path)

    @property
    def _base(self) -> str:
        """The folder below which the names of folders have values of columns."""
        given = next((str(v) for name, v in self.options.items() if name.lower() == "basepath"), None)
        base = self.path if given is None else _absolute(given)
        first = re.search(rf"[^/]*[{re.escape(_PATTERN_CHARACTERS)}]", base) if self._is_pattern else None
        return _uri(base if first is None else base[: first.start()])

    @property
    def _stored(self) -> StoredFiles | None:
        """The files in a bucket, a container or HDFS that stateflow lists and reads itself; None for others."""
        is_stored = is_object_address(self.path)
        names = next((str(v) for name, v in self.options.items() if name.lower() == "pathglobfilter"), "")
        return StoredFiles(self._address, names) if is_stored else None

    @property
    def _local(self) -> Path | None:
        """The path of the files on this host; None when they are elsewhere."""
        path = re.sub("^file:/+", "/", self.path)
        return None if "://" in path else Path(path)

    def _row_bytes(self, folder: Path) -> float | None:
        """Returns the average bytes of a row in the existing files; None when there are none.

        Spark reads whole files, so a limit on rows becomes a limit on bytes that Spark fills with whole files.
        """
        from pyarrow import lib

        from stateflow.connectors.files.parquet_files import bytes_per_row

        # The batch that reads a corrupt file reports it.
        files = [f for f in _files(folder)[:_SAMPLED_FILES] if not self.find_truncated([f.as_uri()])]
        try:
            return bytes_per_row(files)
        except (OSError, lib.ArrowException) as e:
            raise self._unreadable(reason_in(e), _UNREADABLE_HINT) from e


_OFFSET = "logOffset"


@dataclass
class _StoredInput(StreamInput):
    """The files of a bucket for Spark's streams, with the offsets of Spark's own file source, and without rows.

    Attributes:
        source: description of the source.
        planner: says which files a batch has.
    """

    source: str
    planner: BatchPlanner

    @property
    def description(self) -> str:
        return self.source

    def first_position(self) -> Position:
        return {_OFFSET: -1}

    def end_with_present_input(self) -> None:
        self.planner.end_with_present_files()

    def next_position(self, start: Position) -> Position:
        return {_OFFSET: self.planner.next_entry(int(str(start[_OFFSET])))}


def _with_checked_texts(rows: DataFrame, schema: RowSchema) -> DataFrame:
    """Returns the rows of files of Spark's own formats, which do not look at the bytes of texts."""
    wrong = {column.name: _is_not_text(column.shape, quote_name(column.name)) for column in schema.columns}
    if not any(wrong.values()):
        return rows
    columns = []
    for name, condition in wrong.items():
        error = f"raise_error({not_text('_metadata.file_path', name)})"
        columns.append(
            f"CASE WHEN {condition} THEN {error} ELSE {quote_name(name)} END AS {quote_name(name)}"
            if condition
            else quote_name(name)
        )
    return rows.selectExpr(*columns)


def _is_not_text(shape: Shape, value: str, depth: int = 0) -> str:
    """Returns the condition that a part of a value is a text that is not UTF-8; empty if it has no texts."""
    if isinstance(shape, Leaf):
        return f"NOT is_valid_utf8({value})" if shape.spark == "string" else ""
    item, found = f"_sf_item{depth}", []
    if isinstance(shape, Record):
        found = [
            _is_not_text(p, f"{value}.{quote_name(n)}", depth) for n, p in zip(shape.names, shape.fields, strict=True)
        ]
    elif isinstance(shape, Items):
        inner = _is_not_text(shape.item, item, depth + 1)
        found = [f"exists({value}, {item} -> {inner})"] if inner else []
    else:
        for part, items in ((shape.key, f"map_keys({value})"), (shape.value, f"map_values({value})")):
            inner = _is_not_text(part, item, depth + 1)
            found += [f"exists({items}, {item} -> {inner})"] if inner else []
    return " OR ".join(f"({condition})" for condition in found if condition)


def _absolute(path: str | Path) -> str:
    """Returns a path or an address in its one form: names of files are compared with it, as Hadoop would write them."""
    scheme, separator, rest = str(path).partition("://")
    if not separator:
        return os.path.abspath(path)
    authority, _, below = rest.partition("/")
    return f"{scheme.lower()}://{authority}{posixpath.normpath('/' + below.lstrip('/'))}"


def _uri(path: str) -> str:
    """Returns the percent-encoded URI of a path as users write it, in which ``%`` is an ordinary character."""
    return (
        quote(path, safe=":/")
        if "://" in path and not path.startswith("file:")
        else file_uri(Path(re.sub("^file:/+", "/", path)))
    )


def _nanosecond_file(local: Path | None) -> Path | None:
    from stateflow.connectors.files.parquet_files import first_with_nanoseconds

    return None if local is None else first_with_nanoseconds(_files(local))


def _option(options: Mapping[str, str], lower_name: str) -> str:
    """Returns the value of an option of Spark's reader in lower case; empty if it is not set."""
    return _option_as_given(options, lower_name).lower()


def _option_as_given(options: Mapping[str, str], lower_name: str) -> str:
    return next((str(v) for name, v in options.items() if name.lower() == lower_name), "")


def _check_one_limit(limits: SourceSettings) -> None:
    if limits.max_files_per_batch is not None and limits.max_rows_per_batch is not None:
        raise ConfigError(
            "a batch of files can be limited by files or by rows, not by both",
            hint="set one of the two; for this source only, set source.of.UID.max_files_per_batch",
            setting="source.max_rows_per_batch",
            max_files_per_batch=limits.max_files_per_batch,
            max_rows_per_batch=limits.max_rows_per_batch,
        )


def _is_utf_8(name: str) -> bool:
    # Python decodes other bytes to surrogates.
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def _files(local: Path) -> list[Path]:
    """Returns the files of a folder or a pattern that Spark reads, sorted by name; none if nothing matches yet."""
    with suppress(FileNotFoundError):
        return sorted(listed_files(local))
    return []


_UNCLEAR = "[]{}\\^"
"""Characters that Hadoop's patterns treat in another way than Python's, or in names that are not patterns."""


def has_new_files(local: Path, offset: str, logs: Sequence[bytes]) -> bool | None:
    """Returns whether a folder or pattern has a file that Spark's log of files does not have; None if unknown.

    A file that an option of Spark's reader excludes counts as new, because Spark never logs it.

    Args:
        local: absolute path of the folder, or Hadoop's glob pattern.
        offset: the position, as in Spark's offset log.
        logs: the entries of Spark's log of the source.
    """
    known = None if _is_unclear(local) else logged_paths(offset, logs)
    if known is None:
        return None
    try:
        return any(file_uri(file) not in known for file in listed_files(local))
    except OSError:
        return None


def _is_unclear(local: Path) -> bool:
    """Returns whether only Hadoop knows what a path means."""
    return any(c in str(local) for c in _UNCLEAR) and not local.is_dir()


def listed_files(local: Path) -> Iterator[Path]:
    """Yields every file of a folder or pattern that Spark may list.

    Raises OSError if a folder does not exist or cannot be listed.
    """
    is_pattern = any(c in str(local) for c in "*?[") and not local.is_dir()
    # Unlike Python's, Hadoop's patterns match names that begin with a dot.
    roots = [Path(path) for path in glob.glob(str(local), include_hidden=True)] if is_pattern else [local]
    if not roots:
        raise FileNotFoundError(local)
    for root in roots:
        if S_ISDIR(root.stat().st_mode):
            yield from _files_below(root)
        elif may_be_listed(root.name):
            yield root


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if may_be_listed(name)]
        yield from (Path(folder, name) for name in files if may_be_listed(name))


def _raise(error: OSError) -> None:
    raise error


_NANOSECONDS_OF_MS = 1_000_000


def skip_files(path: str, local: Path | None, until: datetime) -> InitialPosition:
    """Returns a position from which Spark reads only files that were modified at or after a time, and new ones.

    Spark's log gets one entry with all other files. The same files give the same bytes, so a plan with their hash is
    executed only if no other file must be skipped since.

    Args:
        path: the folder or pattern, as the job file names it.
        local: the same as a local path; None if only Spark can read it.
        until: the time.

    Raises:
        ConfigError: the files cannot be listed without Spark.
    """
    if local is None or ("{" in str(local) and not local.is_dir()):
        raise ConfigError(
            "files can be skipped by time only in a bucket, a local folder, or a local pattern without braces",
            hint="use earliest, or move the files",
            path=path,
        )
    listed = [ListedFile(file_uri(f), f.stat().st_mtime_ns // _NANOSECONDS_OF_MS, 0) for f in _files(local)]
    return skip_listed(listed, until)


def skip_listed(files: Iterable[ListedFile], until: datetime) -> InitialPosition:
    """Returns what `skip_files` returns, given all files."""
    limit = epoch_milliseconds(until)
    skipped = sorted((file for file in files if file.timestamp < limit), key=lambda file: unquote(file.path))
    if not skipped:
        return InitialPosition(
            FROM_START, {}, f"no file was modified before {until.isoformat(timespec='milliseconds')}"
        )
    log = encode_entry(skipped)
    digest = hashlib.sha256(log).hexdigest()[:16]
    count = "1 file" if len(skipped) == 1 else f"{len(skipped)} files"
    text = f"{count} modified before {until.isoformat(timespec='milliseconds')} skipped ({digest})"
    return InitialPosition('{"logOffset":0}', {"0": log}, text)


LARGEST = 64 * 2**20
"""The largest file that is compared, in bytes: Spark reads all of a JSON file to infer its columns."""


def first_small_file(files: Sequence[Path]) -> Path | None:
    """Returns the first file that is neither empty nor larger than `LARGEST`; None without one."""
    return next((file for file in files if 0 < file.stat().st_size <= LARGEST), None)


def column_warnings(
    spark: SparkSession, file: Path, schema: RowSchema, *, format: str, options: Mapping[str, str]
) -> list[str]:
    """Compares the columns of one file with the declared ones.

    Args:
        format: of Spark's reader.
        options: of Spark's reader.

    Returns:
        One sentence per likely problem of a run.
    """
    try:
        found = read_columns(spark, file, format, options)
    except Exception as e:
        return [f"the columns of {file} cannot be read: {reason_in(e)}"]
    return (_by_count if format == "csv" else _missing)(found, schema, str(file))


def read_columns(spark: SparkSession, file: Path, format: str, options: Mapping[str, str]) -> list[str]:
    """Returns the columns of one file, as Spark finds them; arguments as for `column_warnings`."""
    # With another mode, records that cannot be parsed would raise, or add a column.
    own = {name: value for name, value in options.items() if name.lower() != "mode"}
    found: list[str] = (
        spark.read.format(format).options(**own, mode="DROPMALFORMED", __globPaths__="false").load(str(file)).columns
    )
    return found


def _missing(found: Sequence[str], schema: RowSchema, file: str) -> list[str]:
    """Compares by name, for formats that Spark reads by name."""
    names = {column.name for column in schema.columns if not column.nullable} - set(found)
    return [
        f"no record of {file} has {column!r}, which {schema.row_class.__name__} declares without None: rows with a "
        f"null in it fail; the file has {', '.join(closest_first(column, found))}"
        for column in schema.names
        if column in names
    ]


def _by_count(found: Sequence[str], schema: RowSchema, file: str) -> list[str]:
    """Compares the number of columns, for CSV without a header."""
    if len(found) == len(schema.names):
        return []
    return [
        f"{file} has {len(found)} columns, and {schema.row_class.__name__} declares {len(schema.names)}: Spark takes "
        'them by position; check whether the option header="true" is missing'
    ]
