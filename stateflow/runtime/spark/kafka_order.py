"""The order of Kafka's partitions in a batch: by topic and number, whenever the batch is read.

Spark plans partitions in the order of a map. A map of up to four entries keeps the order in which they were added: of
hashes when Kafka has just listed the partitions, of Spark's log when a batch is repeated. So a replay would see the
rows of a key in another order than the run did. Larger maps have one order for the same entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from stateflow.api.source import Source

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
    found = partition.inputPartition() if kind == "DataSourceRDDPartition" else None
    read = None if found is None or found.isEmpty() else found.get()
    if read is None or _kind(read) != "KafkaBatchInputPartition":
        return tuple(source), ("", 0, 0)
    offsets = read.offsetRange()
    of = offsets.topicPartition()
    return tuple(source), (of.topic(), of.partition(), offsets.fromOffset())


def _kind(of: JavaObject) -> str:
    name: str = of.getClass().getSimpleName()
    return name
