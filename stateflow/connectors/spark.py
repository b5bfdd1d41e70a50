"""Any replayable source of Spark's Structured Streaming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stateflow.api.datasets import Dataset, path_name, without_credentials
from stateflow.api.schema import RowSchema
from stateflow.api.source import Source
from stateflow.config.settings import SourceSettings
from stateflow.connectors.column_policy import ColumnPolicy, check_source_columns, select_declared, with_times
from stateflow.errors import ConfigError, JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

_NOT_REPLAYABLE = ("socket", "console", "memory")


class SparkSource(Source):
    """Rows of a source of Spark, such as Iceberg, Kinesis, Pub/Sub or a vendor's file loader.

    Positions are the offsets of Spark's source, restored exactly. Each row is processed exactly once if the source
    returns the same rows for the same offsets whenever it is read: after a failure, a batch is read again from the
    position of the last checkpoint. How long it can do that is a property of the source, and a restore needs it as
    well.

    Args:
        format: name of the source, as in ``spark.readStream.format(…)``. Its JARs must be given to the session.
        schema: row class of the rows. Spark's columns of the same names are read; further columns are ignored.
        options: options of the source. They are not stored, logged or shown: they may contain a login.
        path: path, or name of a table, that the source reads; empty if an option has it.
        name: identifies the data: a restore refuses to continue from the position of other data. By default `path`.
        columns: how a start handles columns that were added or removed.
        ends_by_itself: whether the source supports Spark's AvailableNow trigger. Otherwise a run reads one batch after
            another until none has rows.

    Raises:
        JobDefinitionError: neither `path` nor `name` is given, or the source cannot be read again.
    """

    def __init__(
        self,
        format: str,
        *,
        schema: type[object],
        options: Mapping[str, str] | None = None,
        path: str = "",
        name: str = "",
        columns: ColumnPolicy | None = None,
        ends_by_itself: bool = True,
    ) -> None:
        if format.lower() in _NOT_REPLAYABLE:
            raise JobDefinitionError(
                "a source cannot be read again from an earlier position",
                hint="read from a source that keeps its data, such as Kafka or files",
                format=format,
            )
        if not (path or name):
            raise JobDefinitionError(
                "a source needs a path or a name that identifies its data",
                hint="pass path=…, or name=… with a text that changes when other data is read",
                format=format,
            )
        self.format = format
        self.schema = RowSchema.of(schema)
        self.path = path
        self.columns = columns or ColumnPolicy()
        self._ends_by_itself = ends_by_itself
        self._options = dict(options or {})
        self._name = name or path

    def __repr__(self) -> str:
        return self.description

    @property
    def description(self) -> str:
        return f"SparkSource[{self.format}:{self._name}]"

    @property
    def ends_by_itself(self) -> bool:
        return self._ends_by_itself

    def datasets(self, offset: str) -> Sequence[Dataset]:
        if self.path:
            return (Dataset(*path_name(self.path), file_format=self.format),)
        return (Dataset(self.format, without_credentials(self._name)),)

    def check(self, spark: SparkSession) -> None:
        """Raises ConfigError if Spark does not have the source, and SchemaMismatch for other columns than declared."""
        found = with_times(self._frame(spark, {}).schema, self.schema)
        check_source_columns(found, self.schema, self.columns, self.description)

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        """See `Source.stream`. Only an option of the source can limit a batch."""
        return with_columns(self._frame(spark, {}), self.schema)

    def can_keep(self, description: str) -> bool:
        return description == self.description

    def _frame(self, spark: SparkSession, more: Mapping[str, str]) -> DataFrame:
        """Returns the frame of Spark's source, with further options."""
        reader = spark.readStream.format(self.format).options(**self._options, **more)
        return load_frame(reader, self.format, self.path, jars=self._jars())

    def _jars(self) -> str:
        """Returns the Maven coordinate of Spark's source, for an error; empty if it is not known."""
        return ""


def load_frame(reader: DataStreamReader, format: str, path: str = "", *, jars: str = "") -> DataFrame:
    """Returns the frame of a reader.

    Args:
        path: path to load; empty if an option has it.
        jars: Maven coordinate of the source, for the error; empty if it is not known.

    Raises:
        ConfigError: Spark does not have the source.
    """
    try:
        return reader.load(path) if path else reader.load()
    except Exception as e:
        # Some are an AnalysisException, others an error of Java that PySpark has no class for.
        if "Failed to find" not in str(e):
            raise
        wanted = f"spark.jars.packages={jars}" if jars else "spark.jars.packages"
        raise ConfigError(
            "Spark does not have the source",
            hint=f"give its JARs to the session: {wanted}, or the paths of the JARs as spark.jars",
            format=format,
        ) from e


def with_columns(frame: DataFrame, schema: RowSchema) -> DataFrame:
    """Returns the declared columns of a frame; those that it lacks are null, as the policy of `check` permits."""
    return frame.selectExpr(*select_declared(frame.schema, schema))
