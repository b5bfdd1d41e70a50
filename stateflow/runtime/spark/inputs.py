"""The rows of a batch's sources: as Spark reads them, and the files that tasks read instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import DataFrame

from stateflow.api.graph.nodes import Node, SourceNode
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.spark.file_reader import FileReader, TaskFiles, useful_partitions
from stateflow.runtime.spark.frames import split_sources

Files = Mapping[SourceNode, TaskFiles]
"""Files that tasks read, by source."""


@dataclass(frozen=True)
class Inputs:
    """The rows of a batch's sources.

    Attributes:
        sources: the sources of the job.
        rows: the rows, as Spark reads them and `source_frame` combines them.
        files: files that are read instead of `rows` where functions in Python, or only sinks, take the rows.
        cores: how many tasks Spark can run at once.
    """

    sources: tuple[SourceNode, ...]
    rows: DataFrame
    files: Files = field(default_factory=dict)
    cores: int = 1

    @classmethod
    def of(cls, rows: DataFrame, files: Files, plan: JobPlan) -> Inputs:
        """Returns the inputs of a batch; the arguments are the attributes."""
        return cls(plan.sources, rows, files, rows.sparkSession.sparkContext.defaultParallelism)

    @cached_property
    def frames(self) -> Mapping[Node, DataFrame]:
        """The rows by source, as Spark reads them."""
        return split_sources(self.sources, self.rows)

    @cached_property
    def readers(self) -> Mapping[Node, FileReader]:
        """The readers of files before a shuffle, by source."""
        return {
            node: FileReader.of(files, node.schema, useful_partitions(files, self.cores))
            for node, files in self.files.items()
        }
