"""Cases of Flink's tests of windows and joins, each with a table of its own, as one job."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from stateflow import StreamExecutionEnvironment, WatermarkStrategy
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource
from tests.spark.jobs import flink_joins, flink_windows
from tests.spark.jobs.flink_rows import Timed, ms, of_case

BATCHES = 4
LONG = timedelta(hours=1)


def inputs() -> list[Timed]:
    """The rows of all cases but those with late rows, in an order in which each batch has a part of each of them."""
    placed = [
        (at * BATCHES // len(rows), row)
        for name, rows in (flink_windows.inputs() | flink_joins.inputs()).items()
        for at, row in enumerate(of_case(name, rows))
    ]
    return [row for _, row in sorted(placed, key=lambda each: each[0])]


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home, on_spark = Path(env.parameter("home")), env.parameter("spark") == "yes"

    def source(uid: str, rows: list[Timed], size: int, bound: timedelta) -> DataStream:
        scripted: Any = ScriptedSource(Timed, rows, home / f"{uid}.ledger", slice_rows=size)
        if on_spark:
            # A job without Spark must not import it.
            from stateflow.connectors.python import PythonSource

            scripted = PythonSource(scripted)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_column("at")
        return env.from_source(scripted, uid=uid).assign_timestamps_and_watermarks(strategy)

    def out(stream: DataStream, table: str, case: str) -> None:
        of_this_case = stream.filter(lambda row: row.key.startswith(f"{case}/"))
        of_this_case.sink_to(FolderSink(home / table), uid=f"{table}-out")

    every = inputs()
    rows = source("rows", every, -(-len(every) // BATCHES), LONG)
    late_windows = source("late-windows", of_case("late", flink_windows.LATE_INPUT), 2, ms(0))
    flink_windows.declare_windows(rows, late_windows, out)
    late_joins = source("late-joins", of_case("late", flink_joins.LATE_INPUT), 4, ms(0))
    flink_joins.declare_joins(rows, late_joins, out)
