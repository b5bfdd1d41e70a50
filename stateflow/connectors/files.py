"""Files as a source, read by Spark's own file source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.schema import RowSchema
from stateflow.api.source import Source
from stateflow.config import SourceSettings
from stateflow.errors import ConfigError, SchemaMismatch

_REFUSED = {"cleansource", "sourcearchivedir", "maxfilespertrigger", "maxbytespertrigger", "latestfirst"}
_WIDER = {
    "bigint": {"int", "smallint", "tinyint"},
    "double": {"float", "int", "smallint", "tinyint"},
}
"""Narrower types of files that Spark reads as the declared one."""


class FileSource(Source):
    """Files of one folder, oldest first.

    A file's name is what Spark remembers it by: files must appear complete, and never change.

    Args:
        path: the folder, or a pattern.
        schema: row class of the rows.
        format: ``parquet``, ``json``, ``csv`` or ``orc``.
        options: further options of Spark's reader.
    """

    def __init__(
        self, path: str | Path, *, schema: type[Any], format: str = "parquet", **options: str
    ) -> None:
        refused = sorted(o for o in options if o.lower() in _REFUSED)
        if refused:
            raise ConfigError("an option of the file source cannot be honoured", hint="files that are moved or deleted "
                              "cannot be read again after a restore; limits are settings", options=refused)  # fmt: skip
        self.path = str(path)
        self.schema = RowSchema.of(schema)
        self.format = format
        self.options = options

    @property
    def description(self) -> str:
        return f"FileSource[{self.format}:{self.path}]"

    def check(self, spark: SparkSession) -> None:
        """Compares the declared columns with those of the files that are there.

        Raises ConfigError when there is no such folder; SchemaMismatch naming the column.
        """
        if (
            "://" not in self.path
            and not any(c in self.path for c in "*?[{")
            and not Path(self.path).is_dir()
        ):
            raise ConfigError(
                "the source's folder is not there", hint="make it, or mend the path", path=self.path
            )
        if self.format != "parquet" or not self._has_files():
            return
        found = dict(spark.read.format(self.format).options(**self.options).load(self.path).dtypes)
        for column in self.schema.columns:
            self._check_column(column.name, column.spark_type, found)

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        reader = spark.readStream.format(self.format).schema(self.schema.ddl).options(**self.options)
        if limits.max_files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", str(limits.max_files_per_batch))
        elif limits.max_rows_per_batch is not None and (size := self._row_bytes()):
            reader = reader.option("maxBytesPerTrigger", f"{max(1, int(size * limits.max_rows_per_batch))}b")
        return reader.load(self.path)

    def _check_column(self, name: str, declared: str, found: dict[str, str]) -> None:
        actual = found.get(name)
        if actual is None:
            raise SchemaMismatch("the files do not have a declared column", hint="mend the row class or the files",
                                 column=name, found=sorted(found), path=self.path)  # fmt: skip
        if actual != declared and actual not in _WIDER.get(declared, ()):
            raise SchemaMismatch("a column of the files has another type than declared", hint="mend the row class",
                                 column=name, declared=declared, found=actual, path=self.path)  # fmt: skip

    def _files(self) -> list[Path]:
        return sorted(p for p in Path(self.path).glob("*") if p.is_file() and p.name[0] not in "._")

    def _has_files(self) -> bool:
        return "://" in self.path or bool(self._files())

    def _row_bytes(self) -> float | None:
        """Bytes of a row in the files that are there; None when nothing can be told. Whole files are read at once, so
        a limit on rows is a limit on bytes that Spark fills with whole files."""
        if self.format != "parquet" or "://" in self.path:
            return None
        from pyarrow import parquet

        files = self._files()[:20]
        rows = sum(parquet.read_metadata(f).num_rows for f in files)
        return sum(f.stat().st_size for f in files) / rows if rows else None
