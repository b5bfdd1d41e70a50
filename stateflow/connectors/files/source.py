"""The file source: Spark's own file source says which files a batch has, and tasks or Spark read them in order."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

import msgspec

from stateflow.api.input_files import (
    FAIL,
    NANOSECONDS,
    QUARANTINE,
    CorruptContent,
    FileFormat,
    OnCorruptFile,
    file_uri,
    hint_for,
    local_path,
    not_text,
    reason_in,
    unreadable_in,
)
from stateflow.api.schema import RowSchema
from stateflow.api.source import Arrange, InitialPosition, Source, StartKind, StartPosition
from stateflow.config.settings import LIMITS, SourceSettings
from stateflow.connectors.arguments import check_choice
from stateflow.connectors.columns.column_policy import ColumnPolicy
from stateflow.connectors.columns.declared_columns import check_columns, check_header
from stateflow.connectors.files.first_file import column_warnings, columns_of, first_small_file
from stateflow.connectors.files.folder_columns import FolderValues, InFolders, folder_values, without_columns
from stateflow.connectors.files.new_files import has_new_files, listed_files
from stateflow.connectors.files.reader_options import (
    DECODED,
    NAMING,
    PARSED,
    check_decoded,
    check_names_columns,
    check_reader,
    is_for_spark,
    text_format,
)
from stateflow.connectors.files.skipped_files import skip_files
from stateflow.connectors.files.text_files import can_decompress, is_divisible
from stateflow.errors import ConfigError, CorruptFile
from stateflow.types.columns.shapes import Items, Leaf, Record, Shape
from stateflow.types.decoders import json_decoder
from stateflow.types.spark_sql import literal, quoted

if TYPE_CHECKING:
    # A job's module is imported without PySpark as well, such as by its unit tests.
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader
    from pyspark.sql.types import StructField, StructType

_FOREVER = "36500d"
_UNSUPPORTED = {"cleansource", "sourcearchivedir", "maxfilespertrigger", "maxbytespertrigger", "latestfirst"}
_PATTERN_CHARACTERS = "*?[{"
_SAMPLED_FILES = 20
_UNREADABLE_HINT = "check that all files have the declared format, are complete, and can be read by this user"


_Reader = TypeVar("_Reader", "DataFrameReader", "DataStreamReader")


class FileSource(Source):
    """Files of one folder and the folders below it, oldest first, and by path if they have the same time.

    Spark identifies a file by its name: files must appear complete, and must never change. Spark remembers every name
    forever, for about 200 bytes of the driver's memory each: with its default `maxFileAge` it would silently skip a
    file whose timestamp is more than a week older than the newest.

    Args:
        path: the folder, or a pattern; a relative path is resolved against the working directory at the run's start.
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
        # Airflow starts each run in another directory, where the same relative path would mean other files.
        self.path = _absolute(path)
        self.schema = RowSchema.of(schema)
        self.start_kinds = frozenset({StartKind.EARLIEST, StartKind.LATEST, StartKind.TIMESTAMP})
        self.format = format.lower()
        self.columns = columns or ColumnPolicy()
        self.bounded = bounded
        self.on_corrupt_file = on_corrupt_file
        self.options = options
        # Raises ConfigError for values that are not supported.
        self._text = text_format(self.format, options, self._base) if self.format in DECODED else None
        if self._text is not None:
            check_decoded(self.format, self.schema)

    @property
    def description(self) -> str:
        return f"FileSource[{self.format}:{self.path}]"

    @property
    def files_address(self) -> str:
        return self._address

    @property
    def limited_by(self) -> frozenset[str]:
        """See `Source.limited_by`: only Parquet files have the number of their rows in them."""
        counted = self.format == "parquet" and self._local is not None
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
        self._limits(limits)

    def check(self, spark: SparkSession) -> None:
        """Compares the declared columns with those of Parquet files, names in ORC files, and the header of a CSV file.

        Raises:
            SchemaMismatch: the columns differ; names the column.
            CorruptInput: a file cannot be read; names the file.
        """
        paths = self._sample()
        if paths:
            # Which types of ORC files Spark reads as others is not documented.
            typed, found = self.format == "parquet", self._stored_columns(spark, paths)
            check_columns(found, self.schema, self.columns, self.path, compares_types=typed)
        file = self._compared if self._compares_header else None
        if file is not None:
            check_header(columns_of(spark, file, (self.format, self.options)), self.schema, str(file))

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
        file = self._compared
        if file is None or _option(self.options, "header") == "true":
            return []
        try:
            values = folder_values(file_uri(file), self._base, self.schema)
        except CorruptContent as e:
            return [f"{file}: {e.position}: {e.reason}"]
        return column_warnings(spark, file, without_columns(self.schema, values), (self.format, self.options))

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
        return rows.selectExpr(*(f"{given.get(n, quoted(n))} AS {quoted(n)}" for n in self.schema.names))

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
        """See `Source.file_format`: local files of JSON, CSV and text, and Parquet files without options."""
        from stateflow.connectors.files.parquet_files import ParquetFormat, can_read

        if self._text is not None:
            is_local = all(local_path(file) is not None and can_decompress(file) for file in files)
            divided = self._text.splits and all(map(is_divisible, files))
            return replace(self._text, splits=divided) if is_local else None
        is_plain = self.format == "parquet" and not self.options and can_read(self.schema)
        is_local = all(local_path(file) is not None for file in files)
        return InFolders(ParquetFormat(), self._base) if is_plain and is_local else None

    def truncated(self, files: Sequence[str]) -> dict[str, str]:
        """See `Source.truncated`: reads the footers of local Parquet files."""
        from stateflow.connectors.files.parquet_files import truncation_of

        if self.format != "parquet" or self._local is None:
            return {}
        reasons = {file: truncation_of(Path(path)) for file in files if (path := local_path(file)) is not None}
        return {file: reason for file, reason in reasons.items() if reason is not None}

    def holds(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Returns whether every file that was read since `offset` still exists; only local files can be checked."""
        paths = _paths_since(offset, logs)
        local = [local_path(path) for path in paths]
        return None if None in local else all(Path(path).is_file() for path in local if path is not None)

    def files_since(self, offset: str, logs: Sequence[bytes]) -> int | None:
        return len(_paths_since(offset, logs))

    def has_new_input(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """See `Source.has_new_input`: lists local files. Unknown for others, and for patterns with brackets."""
        return None if self._local is None else has_new_files(self._local, offset, logs)

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """Returns the position after the local files that were modified before a time; see `skip_files`."""
        assert start.timestamp is not None
        return skip_files(self.path, self._local, start.timestamp)

    def can_keep(self, description: str) -> bool:
        """Returns whether the path is the same: Spark recognizes files that were read by their paths."""
        return description.partition(":")[2] == self.description.partition(":")[2]

    def _limits(self, limits: SourceSettings) -> dict[str, str]:
        """Returns the options of Spark's reader that limit a batch."""
        files, rows = limits.max_files_per_batch, limits.max_rows_per_batch
        if rows is None:
            return {} if files is None else {"maxFilesPerTrigger": str(files)}
        _check_one_limit(files, rows)
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
        readable = (path for path in _files(local) if not self.truncated([path.as_uri()]))
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
    def _local(self) -> Path | None:
        """The path of the files on this host; None when only Spark can read them."""
        path = re.sub("^file:/+", "/", self.path)
        return None if "://" in path else Path(path)

    def _row_bytes(self, folder: Path) -> float | None:
        """Returns the average bytes of a row in the existing files; None when there are none.

        Spark reads whole files, so a limit on rows becomes a limit on bytes that Spark fills with whole files.
        """
        from pyarrow import lib

        from stateflow.connectors.files.parquet_files import bytes_per_row

        # The batch that reads a corrupt file reports it.
        files = [f for f in _files(folder)[:_SAMPLED_FILES] if not self.truncated([f.as_uri()])]
        try:
            return bytes_per_row(files)
        except (OSError, lib.ArrowException) as e:
            raise self._unreadable(reason_in(e), _UNREADABLE_HINT) from e


def _with_checked_texts(rows: DataFrame, schema: RowSchema) -> DataFrame:
    """Returns the rows of files of Spark's own formats, which do not look at the bytes of texts."""
    wrong = {column.name: _is_not_text(column.shape, quoted(column.name)) for column in schema.columns}
    if not any(wrong.values()):
        return rows
    columns = []
    for name, condition in wrong.items():
        error = f"raise_error({not_text('_metadata.file_path', name)})"
        columns.append(
            f"CASE WHEN {condition} THEN {error} ELSE {quoted(name)} END AS {quoted(name)}"
            if condition
            else quoted(name)
        )
    return rows.selectExpr(*columns)


def _is_not_text(shape: Shape, value: str, depth: int = 0) -> str:
    """Returns the condition that a part of a value is a text that is not UTF-8; empty if it has no texts."""
    if isinstance(shape, Leaf):
        return f"NOT is_valid_utf8({value})" if shape.spark == "string" else ""
    item, found = f"_sf_item{depth}", []
    if isinstance(shape, Record):
        found = [_is_not_text(p, f"{value}.{quoted(n)}", depth) for n, p in zip(shape.names, shape.fields, strict=True)]
    elif isinstance(shape, Items):
        inner = _is_not_text(shape.item, item, depth + 1)
        found = [f"exists({value}, {item} -> {inner})"] if inner else []
    else:
        for part, items in ((shape.key, f"map_keys({value})"), (shape.value, f"map_values({value})")):
            inner = _is_not_text(part, item, depth + 1)
            found += [f"exists({items}, {item} -> {inner})"] if inner else []
    return " OR ".join(f"({condition})" for condition in found if condition)


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else os.path.abspath(path)


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
    return next((str(v).lower() for name, v in options.items() if name.lower() == lower_name), "")


def _check_one_limit(files: int | None, rows: int) -> None:
    if files is not None:
        raise ConfigError(
            "a batch of files can be limited by files or by rows, not by both",
            hint="set one of the two; for this source only, set source.of.UID.max_files_per_batch",
            setting="source.max_rows_per_batch",
            max_files_per_batch=files,
            max_rows_per_batch=rows,
        )


def _is_utf_8(name: str) -> bool:
    # Python decodes other bytes to surrogates.
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def _files(local: Path) -> list[Path]:
    """Returns the files of a folder or a pattern that Spark reads, sorted by name."""
    with suppress(FileNotFoundError):
        return sorted(listed_files(local))
    return []


class _Offset(msgspec.Struct):
    logOffset: int = -1


class _Logged(msgspec.Struct):
    path: str
    batchId: int | None = None


def _paths_since(offset: str, logs: Sequence[bytes]) -> set[str]:
    """Returns the files that Spark's source log lists after a position."""
    try:
        last = json_decoder(_Offset).decode(offset).logOffset
        entries = (json_decoder(_Logged).decode(line) for log in logs for line in log.splitlines() if line[:1] == b"{")
        return {e.path for e in entries if e.batchId is None or e.batchId > last}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        message = "the position of a file source, or its log of files, cannot be decoded"
        raise CorruptFile(message, hint="restore an older checkpoint", reason=str(e)) from e
