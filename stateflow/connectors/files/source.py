"""Files as a source, read by Spark's own file source."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.input_files import (
    FAIL,
    NANOSECONDS,
    QUARANTINE,
    OnCorruptFile,
    hint_for,
    reason_in,
    unreadable_in,
)
from stateflow.api.schema import RowSchema
from stateflow.api.source import Source
from stateflow.connectors.first_file import column_warnings, first_small_file
from stateflow.connectors.reader_options import check_reader
from stateflow.errors import ConfigError, SchemaMismatch
from stateflow.settings import SourceSettings

_FOREVER = "36500d"
_REFUSED = {"cleansource", "sourcearchivedir", "maxfilespertrigger", "maxbytespertrigger", "latestfirst"}
_PARSED = {"json", "csv"}
"""Formats whose records Spark parses from text."""
_WIDER = {
    "bigint": {"int", "smallint", "tinyint"},
    "double": {"float", "int", "smallint", "tinyint"},
}
"""Narrower types of files that Spark reads as the declared one."""


@dataclass(frozen=True)
class ColumnPolicy:
    """What a start does when the columns of Parquet files are not those of the row class.

    Args:
        added: about columns that only the files have: leave them out, or refuse to start.
        missing: about columns that only the row class has: refuse to start, or read them as null. One that may not be
            null is refused always.
    """

    added: Literal["ignore", "refuse"] = "ignore"
    missing: Literal["refuse", "null"] = "refuse"

    def __post_init__(self) -> None:
        if self.added not in ("ignore", "refuse") or self.missing not in ("refuse", "null"):
            raise ConfigError("a column policy has a word that it does not know", hint="added: ignore or refuse; "
                              "missing: refuse or null", added=self.added, missing=self.missing)  # fmt: skip


class FileSource(Source):
    """Files of one folder, oldest first.

    A file's name is what Spark remembers it by: files must appear complete, and never change. Every name is remembered
    for ever, at some 200 bytes of the driver's memory each: Spark would otherwise leave out, without a word, a file
    that arrives with a time stamp a week older than the newest (`maxFileAge`).

    Args:
        path: the folder, or a pattern; a relative one is taken from the working folder of the run's start.
        schema: row class of the rows.
        format: ``parquet``, ``json``, ``csv``, ``orc``, or ``text`` with a row class of one field ``value: str``.
        columns: what a start does about columns that appeared or vanished in Parquet files. It looks at the columns
            that Spark finds, which it takes from one of the files; the others, and those that arrive during a run, are
            not looked at: a column that they lack is null, also one that may not be, and one that they have besides is
            left out.
        bounded: whether the files are complete: a run that has read those that were there at its start has reached the
            end of the source, and fires every event-time timer. Without it more files may come.
        on_corrupt_file: ``"fail"`` ends the run with `CorruptInput`, which names the file and is not retried.
            ``"quarantine"`` skips the file as a whole: none of its rows is processed, the checkpoint of its batch
            records it, and ``stateflow status`` lists it. A file is corrupt when Spark cannot read it as declared.
            In a job that also has sources without files a corrupt file ends the run in any case.
        options: further options of Spark's reader. For JSON and CSV, ``mode`` is ``FAILFAST`` unless given, not
            ``PERMISSIVE`` as in Spark, which makes nulls of what does not parse, without an error.

    Raises ConfigError for a format, option or mode that Spark's readers do not have.
    """

    def __init__(  # noqa: PLR0913 - the options of a reader, all but two of them with a default
        self,
        path: str | Path,
        *,
        schema: type[Any],
        format: str = "parquet",
        columns: ColumnPolicy | None = None,
        bounded: bool = False,
        on_corrupt_file: OnCorruptFile = "fail",
        **options: str,
    ) -> None:
        if on_corrupt_file not in (FAIL, QUARANTINE):
            raise ConfigError("on_corrupt_file has a value that it does not know", hint="\"fail\" or \"quarantine\"",
                              given=on_corrupt_file)  # fmt: skip
        refused = sorted(o for o in options if o.lower() in _REFUSED)
        if refused:
            raise ConfigError("an option of the file source cannot be honoured", hint="files that are moved or deleted "
                              "cannot be read again after a restore; limits are settings", options=refused)  # fmt: skip
        check_reader(format, options)
        # Airflow starts each run in another folder: the same relative path would be other files.
        self.path = str(path) if "://" in str(path) else os.path.abspath(path)
        self.schema = RowSchema.of(schema)
        self.format = format.lower()
        self.columns = columns or ColumnPolicy()
        self.bounded = bounded
        self.on_corrupt_file = on_corrupt_file
        needs_mode = self.format in _PARSED and "mode" not in map(str.lower, options)
        self.options = {"mode": "FAILFAST", **options} if needs_mode else options

    @property
    def description(self) -> str:
        return f"FileSource[{self.format}:{self.path}]"

    def check_settings(self, limits: SourceSettings) -> None:
        """See `Source.check_settings`. Raises ConfigError for a missing folder and for a limit without effect."""
        local = self._local
        if local is not None and not any(c in str(local) for c in "*?[{") and not local.is_dir():
            raise ConfigError(
                "the source's folder is not there", hint="create it, or correct the path", path=self.path
            )
        self._limits(limits)

    def check(self, spark: SparkSession) -> None:
        """Compares the declared columns with those of the files that are there.

        Raises SchemaMismatch naming the column; CorruptInput naming a file that cannot be read.
        """
        paths = self._sample()
        if not paths:
            return
        found = self._stored_columns(spark, paths)
        self._check_added(found)
        for column in self.schema.columns:
            if column.name in found or not column.nullable or self.columns.missing == "refuse":
                self._check_column(column.name, column.spark_type, found)

    @property
    def unchecked(self) -> str:
        """See `Source.unchecked`."""
        if self.format in ("parquet", "text"):
            return ""
        return f"columns of the {self.format} files" + (
            "" if self._compared is None else ", except for one file's"
        )

    def warnings(self, spark: SparkSession) -> list[str]:
        """See `Source.warnings`: of the first local file, for formats that `check` does not look at."""
        file = self._compared
        return [] if file is None else column_warnings(spark, file, self.schema, (self.format, self.options))

    @property
    def _compared(self) -> Path | None:
        """The file that `warnings` looks at."""
        local = self._local
        if self.format in ("parquet", "text") or local is None:
            return None
        return first_small_file(self._files(local))

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        """See `Source.stream`. Raises ConfigError for a limit that would have no effect."""
        reader = spark.readStream.format(self.format).schema(self.schema.ddl).option("maxFileAge", _FOREVER)
        for option, value in self._limits(limits).items():
            reader = reader.option(option, value)
        return reader.options(**self.options).load(self.path)

    def read_files(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """See `Source.read_files`."""
        reader = spark.read.format(self.format).schema(self.schema.ddl).options(**self.options)
        if not any(c in self.path for c in "*?[{"):
            reader = reader.option("basePath", self.path)
        # As Spark's own file source reads its files: their names are no patterns.
        return reader.option("__globPaths__", "false").load([unquote(file) for file in files])

    def truncated(self, files: Sequence[str]) -> dict[str, str]:
        """See `Source.truncated`: looks at the footers of local Parquet files."""
        from pyarrow import lib, parquet

        found = {}
        for file in files if self.format == "parquet" and self._local is not None else ():
            path = Path(unquote(urlsplit(file).path))
            try:
                # Spark leaves out empty files.
                if path.stat().st_size:
                    parquet.read_metadata(path)
            except lib.ArrowException as e:
                found[file] = reason_in(e)
            except OSError as e:
                # Arrow raises a bare OSError for some footers; one of the system has a number.
                if e.errno is None:
                    found[file] = reason_in(e)
        return found

    def holds(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Whether every file that was read since `offset` is still there; only local files can be looked at."""
        paths = _paths_since(offset, logs)
        if any(urlsplit(path).scheme != "file" for path in paths):
            return None
        return all(Path(unquote(urlsplit(path).path)).is_file() for path in paths)

    def files_since(self, offset: str, logs: Sequence[bytes]) -> int | None:
        return len(_paths_since(offset, logs))

    def _limits(self, limits: SourceSettings) -> dict[str, str]:
        files, rows = limits.max_files_per_batch, limits.max_rows_per_batch
        if rows is None:
            return {} if files is None else {"maxFilesPerTrigger": str(files)}
        if files is not None:
            raise ConfigError("a batch of files is limited by their number or by rows, not by both", hint="set one of "
                              "the two", max_files_per_batch=files, max_rows_per_batch=rows)  # fmt: skip
        if self.format != "parquet" or self._local is None:
            raise ConfigError("source.max_rows_per_batch has no effect on these files: their rows cannot be counted "
                              "beforehand", hint="set source.max_files_per_batch", format=self.format,
                              path=self.path)  # fmt: skip
        size = self._row_bytes(self._local)
        return {"maxBytesPerTrigger": str(max(1, int(size * rows)))} if size else {}

    def _sample(self) -> list[str]:
        """What `check` looks at: nothing where there are no Parquet files, or only corrupt ones that are skipped."""
        local = self._local
        if self.format != "parquet" or (local is not None and not self._files(local)):
            return []
        if local is None or self.on_corrupt_file == FAIL:
            return [self.path]
        sound = (path for path in self._files(local) if not self.truncated([path.as_uri()]))
        return [str(path) for path in islice(sound, 1)]

    def _stored_columns(self, spark: SparkSession, paths: list[str]) -> dict[str, str]:
        try:
            return dict(spark.read.format(self.format).options(**self.options).load(paths).dtypes)
        except Exception as e:
            unreadable = unreadable_in(str(e))
            if unreadable is not None:
                raise unreadable.error() from e
            reason = reason_in(e)
            hint = hint_for(
                reason, "are they all of the declared format, complete, and readable for this user?"
            )
            file = self._nanosecond_file() if NANOSECONDS in reason else None
            named = {"file": str(file)} if file else {}
            raise ConfigError("the source's files cannot be read", hint=hint, path=self.path, format=self.format,
                              **named, reason=reason) from e  # fmt: skip

    def _nanosecond_file(self) -> Path | None:
        """The first local file with a timestamp in nanoseconds; Spark does not name it."""
        from pyarrow import lib, parquet

        for file in self._files(self._local) if self._local is not None else ():
            try:
                types = parquet.read_schema(file).types
            except (OSError, lib.ArrowException):
                continue
            if any(str(kind).startswith("timestamp[ns") for kind in types):
                return file
        return None

    def _check_added(self, found: dict[str, str]) -> None:
        added = sorted(found.keys() - set(self.schema.names))
        if added and self.columns.added == "refuse":
            raise SchemaMismatch("the files have columns that are not declared", hint="declare them in the row class, "
                                 "or let them be ignored: ColumnPolicy(added='ignore')", columns=added,
                                 path=self.path)  # fmt: skip

    def _check_column(self, name: str, declared: str, found: dict[str, str]) -> None:
        actual = found.get(name)
        if actual is None:
            raise SchemaMismatch("the files do not have a declared column", hint="mend the row class or the files; one "
                                 "that may be null is read as null with ColumnPolicy(missing='null')", column=name,
                                 found=sorted(found), path=self.path)  # fmt: skip
        if actual != declared and actual not in _WIDER.get(declared, ()):
            raise SchemaMismatch("a column of the files has another type than declared", hint="mend the row class",
                                 column=name, declared=declared, found=actual, path=self.path)  # fmt: skip

    @property
    def _local(self) -> Path | None:
        """Where the files are on this host; None when Spark alone knows."""
        if "://" not in self.path:
            return Path(self.path)
        address = urlsplit(self.path)
        return Path(unquote(address.path)) if address.scheme == "file" else None

    def _files(self, folder: Path) -> list[Path]:
        return sorted(p for p in folder.glob("*") if p.is_file() and p.name[0] not in "._")

    def _row_bytes(self, folder: Path) -> float | None:
        """Bytes of a row in the files that are there; None when there are none. Whole files are read at once, so a
        limit on rows is a limit on bytes that Spark fills with whole files."""
        from pyarrow import lib, parquet

        # Reading the corrupt ones is what reports them.
        files = [f for f in self._files(folder)[:20] if not self.truncated([f.as_uri()])]
        try:
            rows = sum(parquet.read_metadata(f).num_rows for f in files)
        except (OSError, lib.ArrowException) as e:
            raise ConfigError("the source's files cannot be read", hint="are they all of the declared format, "
                              "complete, and readable for this user?", path=self.path, format=self.format,
                              reason=reason_in(e)) from e  # fmt: skip
        return sum(f.stat().st_size for f in files) / rows if rows else None


def _paths_since(offset: str, logs: Sequence[bytes]) -> set[str]:
    """Files that Spark's source log names after a position."""
    last = int(json.loads(offset).get("logOffset", -1))
    entries = [json.loads(line) for log in logs for line in log.splitlines() if line.startswith(b"{")]
    return {e["path"] for e in entries if int(e.get("batchId", last + 1)) > last}
