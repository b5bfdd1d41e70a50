"""Files that tasks read themselves, when functions in Python take their rows anyway.

Spark would read the same files into rows of the JVM, and convert these back to Arrow columns for Python: several times
the work. If a format finds a file that only Spark may be able to read, `CannotRead` makes the executor run the batch
again with the rows that Spark reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stateflow.api.input_files import FileFormat, FileShare
from stateflow.api.schema import RowSchema

_BYTES_OF_PARTITION = 1 << 22
"""Smaller partitions cost more than they save, as `spark.sql.files.openCostInBytes`."""


@dataclass(frozen=True)
class TaskFiles:
    """The files of a source in a batch, which tasks read.

    Attributes:
        format: reads them.
        paths: their paths, in order.
    """

    format: FileFormat
    paths: tuple[str, ...]


@dataclass(frozen=True)
class SourceRows:
    """The rows of all sources of a batch.

    Attributes:
        frame: the rows, as Spark reads them and `source_frame` combines them.
        files: returns the files that tasks read, by uid of the source; only of sources whose files tasks can read.
    """

    frame: DataFrame
    files: Callable[[], Mapping[str, TaskFiles]] = dict


@dataclass(frozen=True)
class FileReader:
    """Reads the files of a source in a batch.

    Attributes:
        format: reads a share of a file.
        schema: the columns to read.
        partitions: the shares of each partition.
    """

    format: FileFormat
    schema: RowSchema
    partitions: tuple[tuple[FileShare, ...], ...]

    @classmethod
    def of(cls, files: TaskFiles, schema: RowSchema, partitions: int) -> FileReader:
        """Returns the reader of files in partitions of equal size. Raises FileNotFoundError."""
        sizes = [(path, os.stat(path).st_size) for path in files.paths]
        return cls(files.format, schema, tuple(map(tuple, shares_of(sizes, partitions, files.format.splits))))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns a frame with as many partitions, each with one row: the number of the partition."""
        count = len(self.partitions)
        return spark.range(0, count, 1, count)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the partitions that rows of `frame` name. Raises what the format raises.

        Not the partition with the task's number: in a union, the second frame's tasks are numbered after the first's.
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for share in self.partitions[number]:
                    yield from self.format.read(share, self.schema)


def useful_partitions(files: TaskFiles, cores: int) -> int:
    """Returns in how many partitions to read files before a shuffle. Raises FileNotFoundError.

    Args:
        cores: how many tasks Spark can run at once.
    """
    total = sum(os.stat(path).st_size for path in files.paths)
    return max(1, min(cores, -(-total // _BYTES_OF_PARTITION)))


def shares_of(sizes: Sequence[tuple[str, int]], partitions: int, splits: bool = True) -> list[list[FileShare]]:
    """Divides files into partitions with equal numbers of bytes, in order.

    Args:
        sizes: paths and sizes.
        splits: whether a file may be in several partitions; else it is in the one that has its middle.
    """
    # An empty file may be invalid: some task must find that out.
    total = sum(max(1, size) for _, size in sizes)
    bounds = [total * at // partitions for at in range(partitions + 1)]
    shares: list[list[FileShare]] = []
    for begin, end in pairwise(bounds):
        shares.append([])
        offset = 0
        for path, size in sizes:
            length = max(1, size)
            if not splits:
                if begin <= offset + length // 2 < end:
                    shares[-1].append(FileShare(path, 0, length, size))
            elif (first := max(begin - offset, 0)) < (last := min(end - offset, length)):
                shares[-1].append(FileShare(path, first, last, size))
            offset += length
    return shares
