"""The latest event time of each split of a source in a batch, computed by Spark."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame

from stateflow.api.hidden_columns import REJECTED, SPLIT
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.spark.frames import split_sources
from stateflow.types.spark_sql import literal, quoted

_MILLISECONDS = {
    "timestamp": "unix_millis({})",
    # Not a cast, which would depend on the time zone of the session.
    "timestamp_ntz": "timestampdiff(MILLISECOND, TIMESTAMP_NTZ '1970-01-01', {})",
    "bigint": "{}",
}
"""Expression of an event time in milliseconds since 1970, by the type of its column."""


def latest_by_split(plan: JobPlan, rows: DataFrame) -> dict[str, dict[str, int]]:
    """Returns the latest event time of each split that has rows, in milliseconds since 1970, by uid of the source.

    Args:
        plan: the plan, with at least one source that has a watermark per split.
        rows: the rows of a batch, as `source_frame` combines them; read once more, so they should be persisted.
    """
    frames = split_sources(plan.sources, rows)
    found = []
    for node in plan.sources:
        uid, name = node.uid, plan.times_of_splits.get(node.uid)
        if name is None:
            continue
        frame = frames[node].where(f"{REJECTED} IS NULL") if REJECTED in node.schema.names else frames[node]
        time = _MILLISECONDS[node.schema.column(name).spark_type].format(quoted(name))
        grouped = frame.selectExpr(f"{literal(uid)} AS uid", SPLIT, f"{time} AS time").groupBy("uid", SPLIT)
        found.append(grouped.agg({"time": "max"}))
    latest: dict[str, dict[str, int]] = {uid: {} for uid in plan.times_of_splits}
    for uid, split, time in reduce(DataFrame.union, found).collect():
        if time is not None:
            latest[uid][split] = time
    return latest
