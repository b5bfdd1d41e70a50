"""Files as a source, read by Spark's own file source."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.schema import RowSchema
from stateflow.api.source import Source
from stateflow.errors import ConfigError, SchemaMismatch
from stateflow.settings import SourceSettings

_FOREVER = "36500d"
_REFUSED = {"cleansource", "sourcearchivedir", "maxfilespertrigger", "maxbytespertrigger", "latestfirst"}
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
        format: ``parquet``, ``json``, ``csv`` or ``orc``.
        columns: what a start does about columns that appeared or vanished in Parquet files. It looks at the columns
            that Spark finds, which it takes from one of the files; the others, and those that arrive during a run, are
            not looked at: a column that they lack is null, also one that may not be, and one that they have besides is
            left out.
        bounded: whether the files are complete: a run that has read those that were there at its start has reached the
            end of the source, and fires every event-time timer. Without it more files may come.
        options: further options of Spark's reader.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        schema: type[Any],
        format: str = "parquet",
        columns: ColumnPolicy | None = None,
        bounded: bool = False,
        **options: str,
    ) -> None:
        refused = sorted(o for o in options if o.lower() in _REFUSED)
        if refused:
            raise ConfigError("an option of the file source cannot be honoured", hint="files that are moved or deleted "
                              "cannot be read again after a restore; limits are settings", options=refused)  # fmt: skip
        # Airflow starts each run in another folder: the same relative path would be other files.
        self.path = str(path) if "://" in str(path) else os.path.abspath(path)
        self.schema = RowSchema.of(schema)
        self.format = format
        self.columns = columns or ColumnPolicy()
        self.bounded = bounded
        self.options = options

    @property
    def description(self) -> str:
        return f"FileSource[{self.format}:{self.path}]"

    def check(self, spark: SparkSession) -> None:
        """Compares the declared columns with those of the files that are there.

        Raises ConfigError when there is no such folder; SchemaMismatch naming the column.
        """
        local = self._local
        if local is not None and not any(c in str(local) for c in "*?[{") and not local.is_dir():
            raise ConfigError(
                "the source's folder is not there", hint="make it, or mend the path", path=self.path
            )
        if self.format != "parquet" or (local is not None and not self._files(local)):
            return
        found = self._stored_columns(spark)
        self._check_added(found)
        for column in self.schema.columns:
            if column.name in found or not column.nullable or self.columns.missing == "refuse":
                self._check_column(column.name, column.spark_type, found)

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        """See `Source.stream`. Raises ConfigError for a limit that would have no effect."""
        reader = spark.readStream.format(self.format).schema(self.schema.ddl).option("maxFileAge", _FOREVER)
        for option, value in self._limits(limits).items():
            reader = reader.option(option, value)
        return reader.options(**self.options).load(self.path)

    def holds(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Whether every file that was read since `offset` is still there; only local files can be looked at."""
        last = int(json.loads(offset).get("logOffset", -1))
        entries = [json.loads(line) for log in logs for line in log.splitlines() if line.startswith(b"{")]
        paths = {e["path"] for e in entries if int(e.get("batchId", last + 1)) > last}
        if any(urlsplit(path).scheme != "file" for path in paths):
            return None
        return all(Path(unquote(urlsplit(path).path)).is_file() for path in paths)

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

    def _stored_columns(self, spark: SparkSession) -> dict[str, str]:
        try:
            return dict(spark.read.format(self.format).options(**self.options).load(self.path).dtypes)
        except Exception as e:
            raise ConfigError("the source's files cannot be read", hint="are they all of the declared format, "
                              "complete, and readable for this user?", path=self.path, format=self.format,
                              reason=_first_line(e)) from e  # fmt: skip

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

        files = self._files(folder)[:20]
        try:
            rows = sum(parquet.read_metadata(f).num_rows for f in files)
        except (OSError, lib.ArrowException) as e:
            raise ConfigError("the source's files cannot be read", hint="are they all of the declared format, "
                              "complete, and readable for this user?", path=self.path, format=self.format,
                              reason=_first_line(e)) from e  # fmt: skip
        return sum(f.stat().st_size for f in files) / rows if rows else None


def _first_line(e: Exception) -> str:
    return str(e).strip().partition("\n")[0][:500]
