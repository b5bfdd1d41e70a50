"""The rows of a batch's sources: as Spark reads them, and the files that tasks read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.graph.nodes import Node, SourceNode
from stateflow.runtime.spark.file_reader import BatchFiles, FileReader, useful_partitions
from stateflow.runtime.spark.frames import rows_of_source
from stateflow.runtime.spark.python_functions import ArrowFunction


@dataclass(frozen=True)
class Inputs:
    """The rows of a batch's sources.

    Attributes:
        sources: the sources of the job.
        rows: the rows of sources without files, as Spark reads them and `source_frame` combines them.
        files: the files of the other sources.
        in_order: as in `SourceRows`.
        by_tasks: whether tasks read the files, if they can; otherwise Spark does.
    """

    sources: tuple[SourceNode, ...]
    rows: DataFrame
    files: Mapping[Node, BatchFiles] = field(default_factory=dict)
    in_order: Mapping[str, Callable[[DataFrame], DataFrame]] = field(default_factory=dict)
    by_tasks: bool = True
    _frames: dict[Node, DataFrame] = field(default_factory=dict, init=False)

    @property
    def spark(self) -> SparkSession:
        """The session of the batch."""
        return self.rows.sparkSession

    @property
    def cores(self) -> int:
        """How many tasks Spark can run at once."""
        return self.spark.sparkContext.defaultParallelism

    def by_spark(self) -> Inputs:
        """Returns the same rows, all of which Spark reads."""
        return replace(self, by_tasks=False)

    @cached_property
    def read_by_tasks(self) -> Mapping[Node, BatchFiles]:
        """The files that tasks read."""
        return {node: f for node, f in self.files.items() if self.by_tasks and f.format is not None}

    def begin(self, node: Node) -> tuple[DataFrame, ArrowFunction] | None:
        """Returns a frame with one row per partition, and the function that yields the rows of a source's files for it.

        Returns None unless tasks read the files.
        """
        files = self.read_by_tasks.get(node)
        if files is None:
            return None
        reader = FileReader.of(files, node.schema, useful_partitions(files, self.cores))
        return reader.frame(self.spark), reader.read

    def frame(self, node: Node) -> DataFrame:
        """Returns the rows of a source, in the order of their arrival."""
        if node not in self._frames:
            self._frames[node] = self._read(node)
        return self._frames[node]

    def persist(self, node: Node) -> DataFrame:
        """Returns the rows of a source, which Spark keeps from now on."""
        self._frames[node] = self.frame(node).persist()
        return self._frames[node]

    def _read(self, node: Node) -> DataFrame:
        begun = self.begin(node)
        if begun is not None:
            return begun[0].mapInArrow(begun[1], node.schema.ddl)
        if node in self.files:
            return self.files[node].by_spark()
        assert isinstance(node, SourceNode)
        rows = rows_of_source(self.sources, self.rows, node)
        return self.in_order[node.uid](rows) if node.uid in self.in_order else rows
