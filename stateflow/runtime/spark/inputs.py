"""The rows of a batch's sources: as Spark reads them, the files that tasks read, and the order of Kafka's partitions.

Spark decides which files a batch has, and would read them in the order of their sizes, into rows of the JVM. The tasks
read contiguous shares of the files in order, as Arrow batches, which functions in Python take without a conversion. If
a format finds a file that only Spark may be able to read, `CannotRead` makes the executor run the batch again with rows
that Spark reads, and sorts.

Spark plans Kafka's partitions in the order of a map. A map of up to four entries keeps the order in which they were
added: of hashes when Kafka has just listed the partitions, of Spark's log when a batch is repeated. So a replay would
see the rows of a key in another order than the run did. Larger maps have one order for the same entries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Protocol

import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from stateflow.api.graph import Node, SourceNode, leaves_of
from stateflow.api.input_files import (
    CannotRead,
    CorruptContent,
    FileChanged,
    FileFormat,
    FileShare,
    ListedFormat,
    LostFile,
    local_path,
)
from stateflow.api.schema import RowSchema
from stateflow.api.source import Source
from stateflow.checkpoint.barriers import message_with
from stateflow.config.spark_versions import running_version
from stateflow.errors import StateflowError
from stateflow.runtime.spark.frames import ArrowFunction, rows_of_source
from stateflow.storage import Credentials


class RowCounter(Protocol):
    """Counts the rows of sources, before any filter."""

    def count_frame(self, node: SourceNode, frame: DataFrame) -> DataFrame:
        """Returns `frame`, the rows of a source, which are counted when it runs."""

    def counter(self, node: Node) -> Callable[[int, int], None]:
        """Returns a function that takes the number of a partition of a source, and its rows so far, in a task."""


@dataclass(frozen=True)
class Inputs:
    """The rows of a batch's sources.

    Attributes:
        sources: the sources of the job.
        rows: the rows of sources without files, as Spark reads them and `source_frame` combines them.
        files: the files of the other sources.
        ranks: as in `SourceRows`.
        by_tasks: whether tasks read the files, if they can; otherwise Spark reads all that are not objects.
        counter: counts the rows; None if they are not counted.
    """

    sources: tuple[SourceNode, ...]
    rows: DataFrame
    files: Mapping[Node, BatchFiles] = field(default_factory=dict)
    ranks: Sequence[int] = ()
    by_tasks: bool = True
    counter: RowCounter | None = None
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
        return {
            node: f
            for node, f in self.files.items()
            if f.format is not None and (self.by_tasks or f.are_objects or f.by_spark is None)
        }

    def begin(self, node: Node) -> tuple[DataFrame, ArrowFunction] | None:
        """Returns a frame with one row per partition, and the function that yields the rows of a source's files for it.

        Returns None unless tasks read the files.
        """
        files = self.read_by_tasks.get(node)
        return None if files is None else self.begin_in(node, useful_partitions(files, self.cores))

    def begin_in(self, node: Node, partitions: int) -> tuple[DataFrame, ArrowFunction]:
        """Returns what `begin` returns for a source whose files tasks read, in so many partitions."""
        reader = FileReader.of(self.read_by_tasks[node], node.schema, partitions)
        if self.counter is not None:
            reader = replace(reader, on_read=self.counter.counter(node))
        return reader.frame(self.spark), reader.read

    def ranks_of(self, node: Node) -> Sequence[int]:
        """Returns `ranks` if the frame of the node has the partitions of `rows`, however often."""
        leaves = leaves_of(node)
        return () if any(leaf in self.files for leaf in leaves) else self.ranks

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
        assert isinstance(node, SourceNode)
        rows = self._read_by_spark(node)
        return rows if self.counter is None else self.counter.count_frame(node, rows)

    def _read_by_spark(self, node: SourceNode) -> DataFrame:
        by_spark = self.files[node].by_spark if node in self.files else None
        if by_spark is not None:
            return by_spark()
        return rows_of_source(self.sources, self.rows, node)


_BYTES_OF_PARTITION = 1 << 22
"""Smaller partitions cost more than they save, as `spark.sql.files.openCostInBytes`."""


@dataclass(frozen=True)
class BatchFiles:
    """The files of a source in a batch.

    Attributes:
        uris: percent-encoded URIs, in the order in which their rows arrive.
        format: reads them in tasks; None if only Spark can read them.
        by_spark: returns the rows as Spark reads them, in the same order; None if only tasks can read them.
        objects: size and version of each file that is an object, by its URI.
        listed: names and sizes of the files, if only the format knows them.
    """

    uris: Sequence[str]
    format: FileFormat | None
    by_spark: Callable[[], DataFrame] | None
    objects: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    listed: Sequence[tuple[str, int]] | None = None

    @classmethod
    def of(cls, format: ListedFormat) -> BatchFiles:
        """Returns the files that a format lists."""
        return cls((), format, None, listed=format.sizes)

    @property
    def are_objects(self) -> bool:
        """Whether the files are objects, which Spark does not read."""
        return any(uri in self.objects for uri in self.uris)

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Local paths, URIs of objects, or names that the format knows, and sizes. Raises FileNotFoundError."""
        if self.listed is not None:
            return list(self.listed)
        paths = [uri if uri in self.objects else local_path(uri) or "" for uri in self.uris]
        return [(path, self.objects[path][0] if path in self.objects else os.stat(path).st_size) for path in paths]


@dataclass(frozen=True)
class SourceRows:
    """The rows of all sources of a batch.

    Attributes:
        frame: the rows of sources without files, as Spark reads them and `source_frame` combines them.
        files: returns the files of the other sources, by uid.
        ranks: as of `partition_ranks`.
    """

    frame: DataFrame
    files: Callable[[], Mapping[str, BatchFiles]] = dict
    ranks: Sequence[int] = ()


@dataclass(frozen=True)
class FileReader:
    """Reads the files of a source in a batch.

    Attributes:
        format: reads a share of a file.
        schema: the columns to read.
        partitions: the shares of each partition.
        on_read: called with the number of a partition and its rows so far.
        credentials: for the storage of objects.
        is_listed: whether only the format knows the files.
    """

    format: FileFormat
    schema: RowSchema
    partitions: tuple[tuple[FileShare, ...], ...]
    on_read: Callable[[int, int], None] = lambda number, rows: None
    credentials: Credentials = field(default_factory=Credentials)
    is_listed: bool = False

    @classmethod
    def of(cls, files: BatchFiles, schema: RowSchema, partitions: int) -> FileReader:
        """Returns the reader of files that tasks can read, in partitions of equal size. Raises OSError."""
        format = files.format
        assert format is not None
        cuts = dict[str, list[int]]()
        shares = [
            [replace(s, version=files.objects[s.path][1]) if s.path in files.objects else s for s in part]
            for part in shares_of(files.sizes, partitions, format.splits)
        ]
        for share in chain.from_iterable(shares):
            if share.begin and share.path not in files.objects:
                cuts.setdefault(share.path, []).append(share.begin)
        starts = {path: dict(zip(own, format.row_starts(path, own), strict=True)) for path, own in cuts.items()}
        divided = tuple(tuple(_between_rows(share, starts) for share in part) for part in shares)
        is_listed = files.listed is not None
        return cls(format, schema, divided, credentials=Credentials.of_process(), is_listed=is_listed)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns a frame with as many partitions, each with one row: the number of the partition."""
        count = len(self.partitions)
        return spark.range(0, count, 1, count)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the partitions that rows of `frame` name.

        Raises CannotRead, CorruptContent and LostFile as the format does, and FileChanged for a file that was written
        again after the files were divided: shares of two versions may not have each row once.

        Not the partition with the task's number: in a union, the second frame's tasks are numbered after the first's.
        """
        self.credentials.adopt()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = 0
                self.on_read(number, rows)
                for read in chain.from_iterable(map(self._read, self.partitions[number])):
                    rows += len(read)
                    self.on_read(number, rows)
                    yield read

    def _read(self, share: FileShare) -> Iterator[pa.RecordBatch]:
        if self.is_listed:
            yield from self.format.read(share, self.schema)
            return
        if share.is_object:
            try:
                yield from self.format.read(share, self.schema)
            except StateflowError as e:
                # Spark forwards only texts of errors.
                raise RuntimeError(message_with(e)) from e
            return
        try:
            size = os.stat(share.path).st_size
            if size != share.size:
                raise FileChanged(f"{share.path}: the file has {size} bytes, and had {share.size}")
            yield from self.format.read(share, self.schema)
        except OSError as e:
            # Spark's error says whether the file is gone.
            raise FileChanged(f"{share.path}: {e}"[:500]) from e


_ERRORS = pa.schema([("number", pa.int64()), ("error", pa.string())])


@dataclass(frozen=True)
class FileSearch:
    """Looks in tasks for the files that cannot be read.

    Attributes:
        formats: by uid of the source.
        schemas: the columns to read, by uid of the source.
        files: uid and local path, or URI of the object, of each file.
        objects: as in `BatchFiles`.
        credentials: for the storage of objects.
    """

    formats: Mapping[str, FileFormat]
    schemas: Mapping[str, RowSchema]
    files: Sequence[tuple[str, str]]
    objects: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=Credentials)

    def run(self, spark: SparkSession) -> list[tuple[int, str]]:
        """Reads each file once in one Spark job, and once more if that fails.

        Returns:
            The numbers of the files that failed twice, in order, each with the text of its `CorruptContent`; with an
            empty one if another failure leaves it to Spark.
        """
        count = len(self.files)
        if not count:
            return []
        # More partitions than tasks: sizes of files differ.
        numbers = spark.range(0, count, 1, min(count, 4 * spark.sparkContext.defaultParallelism))
        found = numbers.mapInArrow(self.errors, "number bigint, error string").collect()
        return sorted((row["number"], row["error"]) for row in found)

    def errors(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields numbers and errors of the files whose numbers the batches have; see `run`."""
        self.credentials.adopt()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                # A failure that does not recur is not caused by the content.
                error = None if self._error_of(number) is None else self._error_of(number)
                if error is not None:
                    yield pa.RecordBatch.from_pydict({"number": [number], "error": [error]}, schema=_ERRORS)

    def _error_of(self, number: int) -> str | None:
        uid, path = self.files[number]
        try:
            size, version = self.objects.get(path) or (os.stat(path).st_size, "")
            for _ in self.formats[uid].read(FileShare(path, 0, max(1, size), size, version), self.schemas[uid]):
                pass
        except (CorruptContent, LostFile) as e:
            return str(e)
        except (CannotRead, OSError):
            return ""
        return None


def _between_rows(share: FileShare, starts: Mapping[str, Mapping[int, int]]) -> FileShare:
    own = starts.get(share.path, {})
    return replace(share, begin=own.get(share.begin, share.begin), end=own.get(share.end, share.end))


def useful_partitions(files: BatchFiles, cores: int) -> int:
    """Returns in how many partitions to read files before a shuffle. Raises FileNotFoundError.

    Args:
        cores: how many tasks Spark can run at once.
    """
    total = sum(size for _, size in files.sizes)
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


ROW_BITS = 33
"""How many lower bits of Spark's number of a row count the rows of a partition; the others number the partition."""
ROW_NUMBER = "monotonically_increasing_id()"
_MAP_ENTRIES = 4


_Place = tuple[tuple[int, ...], tuple[str, int, int]]


def partition_ranks(frame: DataFrame, sources: Iterable[tuple[Source, str]]) -> list[int]:
    """Returns the rank of each partition of a batch's frame in the order of Kafka's; empty if Spark has that order.

    Args:
        frame: the batch's frame, as Spark created it.
        sources: the sources with their positions after the batch; a source that has not begun need not be there.
    """
    if not any(source.has_splits and 1 < len(source.splits(end)) <= _MAP_ENTRIES for source, end in sources):
        return []
    # In the function of foreachBatch, the plan is a leaf with what Spark has planned for the batch.
    planned = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no access to partitions
    if _kind(planned) != "LogicalRDD":
        return []
    places = [_place(partition) for partition in planned.rdd().partitions()]
    order = sorted(range(len(places)), key=places.__getitem__)
    ranks = [0] * len(places)
    for rank, partition in enumerate(order):
        ranks[partition] = rank
    return [] if order == list(range(len(places))) else ranks


def row_position(ranks: Sequence[int]) -> str:
    """Returns the SQL expression of a row's position: it grows with the rank of its partition, then in that.

    In a union of frames with such partitions, which has them several times, each time has the order.

    Args:
        ranks: as `partition_ranks` returns them.
    """
    moves = [(number, rank - number) for number, rank in enumerate(ranks) if rank != number]
    if not moves:
        return ROW_NUMBER
    cases = " ".join(f"WHEN {number} THEN {by << ROW_BITS}L" for number, by in moves)
    return f"({ROW_NUMBER} + CASE spark_partition_id() % {len(ranks)} {cases} ELSE 0L END)"


def _place(partition: JavaObject) -> _Place:
    """Returns the number of a partition's source, and its topic, number and first offset, which only Kafka's have."""
    source, kind = [], _kind(partition)
    while kind == "UnionPartition":
        source.append(partition.parentRddIndex())
        partition = partition.parentPartition()
        kind = _kind(partition)
    read = _input_partition(partition) if kind == "DataSourceRDDPartition" else None
    if read is None or _kind(read) != "KafkaBatchInputPartition":
        return tuple(source), ("", 0, 0)
    offsets = read.offsetRange()
    of = offsets.topicPartition()
    return tuple(source), (of.topic(), of.partition(), offsets.fromOffset())


def _input_partition(partition: JavaObject) -> JavaObject | None:
    """Returns which part of a source a `DataSourceRDDPartition` reads; None for an empty one."""
    one = running_version().has_one_input_partition
    found = partition.inputPartition() if one else partition.inputPartitions().headOption()
    return None if found.isEmpty() else found.get()


def _kind(of: JavaObject) -> str:
    name: str = of.getClass().getSimpleName()
    return name
