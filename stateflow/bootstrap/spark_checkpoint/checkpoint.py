"""The checkpoint of a streaming query of Spark, from which a savepoint takes positions and state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stateflow.api.source import InitialPosition, LocalSource, Source
from stateflow.bootstrap.spark_checkpoint.query_log import committed_batch, query_id
from stateflow.bootstrap.spark_checkpoint.source_positions import converted
from stateflow.errors import ConfigError, StateflowError
from stateflow.storage import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.bootstrap.spark_checkpoint.state import Properties, SparkState, StateAddress, StateStores

_SHOWN = 200


class SparkCheckpoint:
    """The checkpoint folder of a query of Spark's Structured Streaming after one of its committed batches.

    Stop the query first: the folder is only read, and a query that runs removes old batches. Output of a batch that
    was planned and not committed may exist in its sink; stateflow processes that input again.

    Args:
        path: path or URI of the folder, the ``checkpointLocation`` of the query.
        batch: Spark's number of a committed batch; by default the newest one. Spark keeps the last 100.

    Attributes:
        path: the path, as Spark takes it.
        query_id: id of the query.
        batch: number of the batch.
        time: Spark's time of the batch, in milliseconds since 1970.
        watermark: the watermark of the query after the batch, in milliseconds since 1970; None before the first one.
        offsets: the offset of each of its sources, as Spark writes it, in the order of the query.

    Raises:
        ConfigError: the folder is no checkpoint, the batch is not committed, or another version of Spark wrote it.
        CorruptFile: an entry of its logs is damaged or missing.
    """

    def __init__(self, path: str | os.PathLike[str], *, batch: int | None = None) -> None:
        self.path = os.fspath(path) if "://" in os.fspath(path) else os.path.abspath(path)
        # Hadoop has its own scheme for S3.
        scheme, separator, rest = self.path.partition("://")
        self._storage = open_location(f"s3://{rest}" if separator and scheme in ("s3a", "s3n") else self.path)
        self.query_id = query_id(self._storage)
        found = committed_batch(self._storage, batch)
        self.batch, self.time, self.offsets = found.number, found.time, found.offsets
        self.watermark = found.watermark or None
        self._stores: StateStores | None = None

    def source_position(self, source: Source | LocalSource, number: int | None = None) -> InitialPosition:
        """Returns the position of a source after the batch, for `SavepointWriter.with_source`.

        Nothing but the checkpoint is read. A file source skips the files that the query has read; every other source
        takes the offset as it is.

        Args:
            source: the source, as the job declares it: a KafkaSource, DeltaSource, FileSource or SparkSource for the
                data that the query reads.
            number: number of the source in the query, from 0, as in ``sources`` of its progress; not needed for a
                query with one source.

        Raises:
            ConfigError: the query has no source of this number, or the offset is not one of this source.
            CorruptFile: the log of the files that were read is damaged.
        """
        count = len(self.offsets)
        if (number is None and count > 1) or (number is not None and not 0 <= number < count):
            raise ConfigError(
                "the query has several sources" if number is None else "the query has no source of this number",
                hint="pass the number of the source: its place in the sources of the query's progress, from 0",
                path=self.path,
                number=number,
                offsets={at: offset[:_SHOWN] for at, offset in enumerate(self.offsets[:10])},
            )
        number = number or 0
        log = f"sources/{number}/"
        names = [blob.key.removeprefix(log) for blob in self._storage.list(log)]
        try:
            return converted(source, self.offsets[number], names, lambda name: self._storage.get(f"{log}{name}"))
        except StateflowError as e:
            e.add_facts(path=self.path, batch=self.batch, number=number)
            raise

    def state(
        self, spark: SparkSession, variable: str = "", *, operator: int | None = None, store: str = ""
    ) -> SparkState:
        """Returns the state of an operator after the batch, as Spark's own state reader finds it.

        Rows are read when the savepoint is written.

        Args:
            spark: the session, of the version that has written the checkpoint or a newer one.
            variable: name of a state variable of transformWithState; empty for an aggregation, or for another operator
                that Spark's reader reads as key and value, such as dropDuplicates.
            operator: Spark's number of the operator, from 0, which counts from the sink to the sources: in
                ``dropDuplicates(…).groupBy(…)``, the aggregation is 0. Not needed for a query with one stateful
                operator.
            store: name of the state store, for an operator with several ones.

        Raises:
            ConfigError: the query has no such operator or variable, or several operators and no number was given, or
                Spark cannot read its state.
        """
        from stateflow.bootstrap.spark_checkpoint.state import read_state, read_variable

        address, properties = self._operator(spark, operator)
        return read_variable(spark, address, properties, variable) if variable else read_state(spark, address, store)

    def timers(
        self, spark: SparkSession, *, key: Mapping[str, str] | None = None, operator: int | None = None
    ) -> DataFrame:
        """Returns the timers of an operator of transformWithState, for `SavepointWriter.with_operator`.

        Args:
            spark: the session.
            key: the key columns, by name, as expressions of Spark's SQL over the struct ``key``; by default its fields.
            operator: as for `state`.

        Raises:
            ConfigError: the query has no such operator, or several and no number was given, or it has no timers.
        """
        from stateflow.bootstrap.spark_checkpoint.state import read_timers

        return read_timers(spark, *self._operator(spark, operator), key)

    def _operator(self, spark: SparkSession, operator: int | None) -> tuple[StateAddress, Properties]:
        from stateflow.bootstrap.spark_checkpoint.state import StateAddress, operator_properties, read_stores

        if self._stores is None:
            self._stores = read_stores(spark, self.path, self.batch)
        number = self._stores.number_of(operator)
        return StateAddress(self.path, self.batch, self.time, number), operator_properties(self._stores, number)
