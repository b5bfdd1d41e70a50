"""Runs queries of Nexmark by this project and by Spark's own streams, each in a process of its own, as Flink's are."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pyarrow import parquet

from benchmarks.nexmark.flink import QUERIES, WARM_UPS
from benchmarks.nexmark.flink import FlinkTime as Taken
from benchmarks.nexmark.flink_tables import statements
from benchmarks.peers import nexmark_ours, nexmark_spark
from benchmarks.processes import Usage, run_program

PARALLELISM = 2
HEAP = "4g"
_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parents[1]
OURS = tuple(query for query in QUERIES if (_FOLDER / "queries" / f"{query}.py").exists())
"""Queries that are written as jobs."""
PATTERNS = tuple(query for query in OURS if query.startswith("cep"))
"""Those that match patterns. Flink needs minutes for 100,000 events of them."""
SPARK = tuple(sorted((path.stem for path in (_FOLDER / "spark_sql").glob("q*.sql")), key=lambda name: int(name[1:])))
"""Queries that Spark can run as streams, in SQL; after that some have a function with state in `spark_state`."""
SPARK_KEYS: Mapping[str, tuple[str, ...]] = {
    "q4": ("id",),
    "q9": ("id",),
    "q12": ("bidder", "starttime"),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank_number"),
}
"""Queries whose results Spark corrects: a row replaces the one before with the same values of these columns."""
_SPARK_TYPES = {"int32": "int", "int64": "bigint", "string": "string", "timestamp[ms]": "timestamp_ntz"}


@dataclass(frozen=True)
class Load:
    """The input of measured runs.

    Attributes:
        events: a folder that the generator has written.
        side_input: the table of q13.
        files_per_batch: how many files a micro-batch has.
        warm_up: the same with few events, for the runs before the measured one; None to measure the first run.
    """

    events: Path
    side_input: Path
    files_per_batch: int = 20
    warm_up: Path | None = None

    @property
    def runs(self) -> list[str]:
        """The events of each run in one process. The last run is measured."""
        return [*([str(self.warm_up)] * WARM_UPS if self.warm_up else []), str(self.events)]


def settings(query: str, load: Load) -> dict[str, str]:
    """Returns the settings of a job for a load."""
    return {
        "job.query": query,
        "job.side_input": str(load.side_input),
        "parallelism": str(PARALLELISM),
        "source.max_files_per_batch": str(load.files_per_batch),
        "spark.conf.spark.driver.memory": HEAP,
    }


def measure_ours(query: str, load: Load) -> Taken:
    """Runs a query without keeping its result, after runs that warm the JVM up. Raises ProgramFailed."""
    table = {} if hasattr(import_module(f"benchmarks.nexmark.queries.{query}"), "PARTITION_BY") else {"job.table": ""}
    with tempfile.TemporaryDirectory(prefix="nexmark-ours-") as folder:
        order = nexmark_ours.Order(folder=folder, settings=settings(query, load) | table, events=load.runs, keep=False)
        return _measured("nexmark_ours", order, Path(folder))


def grown(query: str, load: Load, limits: Mapping[str, str], folder: Path) -> list[tuple[int, int]]:
    """Runs a query once; returns, after each batch, the bytes of its state and of its largest worker so far."""
    given = {**settings(query, load), "job.table": "", **limits}
    run_ours(nexmark_ours.Order(folder=str(folder), settings=given, events=[str(load.events)], keep=False, watch=True))
    answer: nexmark_ours.Answer = json.loads((folder / "answer.json").read_text())
    return [(state, peak) for state, peak in answer["memory"]]


def measure_spark(query: str, load: Load) -> Taken:
    """Runs a query of Spark with a sink that drops rows, as `measure_ours`. Raises ProgramFailed."""
    with tempfile.TemporaryDirectory(prefix="nexmark-spark-") as folder:
        return _measured("nexmark_spark", spark_order(query, load, folder), Path(folder))


def spark_order(query: str, load: Load, folder: str, *, keep: bool = False) -> nexmark_spark.Order:
    """Returns what the program of Spark's queries runs; with `keep` it keeps all rows."""
    *views, select = statements(query, _FOLDER / "spark_sql")
    schema = parquet.read_schema(next(iter(sorted(load.events.glob("*.parquet")))))
    function = (_FOLDER / "spark_state" / f"{query}.py").exists()
    return nexmark_spark.Order(
        folder=folder,
        events=load.runs,
        columns=", ".join(f"`{field.name}` {_SPARK_TYPES[str(field.type)]}" for field in schema),
        files_per_batch=load.files_per_batch,
        side_input=str(load.side_input),
        statements=[*statements("sources", _FOLDER / "spark_sql"), *views],
        query=select,
        function=f"benchmarks.nexmark.spark_state.{query}" if function else "",
        # The rows of a function are appended, also those that correct earlier ones.
        mode="update" if query in SPARK_KEYS and not function else "append",
        partition_by=["dt", "hm"] if query == "q10" else [],
        keep=keep,
        conf={"spark.driver.memory": HEAP},
    )


def run_spark(order: nexmark_spark.Order) -> None:
    """Runs a query of Spark in a process of its own. Raises ProgramFailed."""
    _run("nexmark_spark", order, Path(order["folder"]), {})


def run_ours(order: nexmark_ours.Order, variables: Mapping[str, str] | None = None) -> Usage:
    """Runs a job in a process of its own. Raises ProgramFailed, also when a failpoint in `variables` kills it."""
    return _run("nexmark_ours", order, Path(order["folder"]), variables or {})


def _measured(program: str, order: nexmark_ours.Order | nexmark_spark.Order, folder: Path) -> Taken:
    usage = _run(program, order, folder, {})
    answer = json.loads((folder / "answer.json").read_text())
    began, ended = answer["runs"][-1]
    return Taken(round(ended - began, 3), round(usage.cpu_between(began, ended), 3))


def _run(
    program: str, order: nexmark_ours.Order | nexmark_spark.Order, folder: Path, variables: Mapping[str, str]
) -> Usage:
    given, answer = folder / "order.json", folder / "answer.json"
    given.write_text(json.dumps(order))
    command = [sys.executable, "-m", f"benchmarks.peers.{program}", str(given), str(answer)]
    return run_program(command, {"PYTHONPATH": str(_ROOT), **variables}, folder / "output.txt")
