"""Runs queries of Nexmark in Flink: ``python -m benchmarks.nexmark.flink --events FOLDER [--rows] [QUERY…]``.

Prints a JSON object for each query: its wall time and CPU time, or with ``--rows`` how many rows its final result has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from benchmarks.competitors import free_port
from benchmarks.flink_environment import FlinkEnvironment, set_up
from benchmarks.nexmark.changelog import Rows, final_rows
from benchmarks.nexmark.flink_functions import compile_functions
from benchmarks.nexmark.flink_tables import definitions, statements, write_inputs, write_side_input
from benchmarks.processes import ProgramFailed, Usage, run_program

PARALLELISM = 2
HEAP = "4g"
MANAGED_MEMORY = "1 gb"
LIMIT_SECONDS = 1200
"""Seconds after which a measured query is given up, with its runs before."""
WARM_UPS = 2
"""How often a query runs over few events before the measured run, in the same JVM."""
QUERIES = tuple(f"q{number}" for number in range(24)) + tuple(f"cep{number}" for number in range(4))
UNSUPPORTED = ("q6",)
"""Flink refuses it: an OVER aggregate takes no corrections of earlier rows."""
_PARTITIONED = {"q10": ("dt", "hm")}
"""Queries whose result is partitioned files, by its columns."""
_PROGRAM = Path(__file__).parents[1] / "peers" / "flink_nexmark.py"


@dataclass(frozen=True)
class FlinkInputs:
    """Events for Flink, and a folder for its files.

    Attributes:
        one: a folder with one file of all events: rows of equal order come in the order of the stream.
        two: folders with a file each, for reading on two cores.
        warm_up: the same with few events, for the runs before the measured one; empty to measure the first run.
        side_input: a table that does not change, as CSV.
        functions: the JAR of Nexmark's functions.
    """

    folder: Path
    one: list[Path]
    two: list[Path]
    warm_up: list[Path]
    side_input: Path
    functions: Path

    @classmethod
    def write(cls, events: Path, folder: Path, warm_up: Path | None = None) -> FlinkInputs:
        """Writes what the generator has written in the form that Flink reads.

        Args:
            events, warm_up: folders that the generator has written.
        """
        one, two = write_inputs(events, folder, 1), write_inputs(events, folder, PARALLELISM)
        few = write_inputs(warm_up, folder / "warm-up", PARALLELISM) if warm_up else []
        return cls(folder, one, two, few, write_side_input(folder), compile_functions(set_up(), folder))


@dataclass(frozen=True)
class FlinkTime:
    """What a query took in a warm JVM, from the submission of its job to its end."""

    seconds: float
    cpu_seconds: float


class _Answer(TypedDict):
    columns: list[tuple[str, str]]
    runs: list[tuple[float, float]]
    plan: str


class _Sink(TypedDict):
    connector: str
    options: dict[str, str]
    partitioned_by: Sequence[str]


def settings(folder: Path) -> dict[str, str]:
    """Returns Flink's settings: those of Nexmark's own configuration, for one process of two slots."""
    port = str(free_port())
    return {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(PARALLELISM),
        "taskmanager.numberOfTaskSlots": str(PARALLELISM),
        "taskmanager.memory.managed.size": MANAGED_MEMORY,
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": "180 s",
        # By default, a checkpoint that takes ten minutes fails the job, which begins again; the first one of q23 does.
        "execution.checkpointing.timeout": "1 h",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.checkpoints-after-tasks-finish": "false",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.distinct-agg.split.enabled": "true",
        # In addition to Nexmark's: rows are not copied between chained operators, and days are those of UTC.
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
        "io.tmp.dirs": str(folder / "tmp"),
        "rest.port": port,
        "rest.bind-port": port,
    }


def result(query: str, inputs: FlinkInputs) -> Rows:
    """Runs a query and returns the final rows of its result. Raises ProgramFailed if Flink cannot run it."""
    with tempfile.TemporaryDirectory(dir=inputs.folder) as name:
        folder = Path(name)
        options = {"path": (folder / "result").as_uri(), "format": "debezium-json"}
        sink = _Sink(connector="filesystem", options=options, partitioned_by=())
        answer, _ = _run(query, inputs, folder, _Order([inputs.one], sink))
        return final_rows(folder / "result", answer["columns"])


def measure(query: str, inputs: FlinkInputs) -> FlinkTime:
    """Runs a query without keeping its result, after runs that warm the JVM up, and returns what the last run took."""
    warm_up = [inputs.warm_up] * WARM_UPS if inputs.warm_up else []
    with tempfile.TemporaryDirectory(dir=inputs.folder) as name:
        folder = Path(name)
        answer, usage = _run(query, inputs, folder, _Order([*warm_up, inputs.two], _sink(query, folder), LIMIT_SECONDS))
    began, ended = answer["runs"][-1]
    return FlinkTime(round(ended - began, 3), round(usage.cpu_between(began, ended), 3))


@dataclass(frozen=True)
class _Order:
    """The folders that each run of a query reads, where the results go, and seconds for all runs."""

    inputs: list[list[Path]]
    sink: _Sink
    limit_seconds: float = 3600


def _sink(query: str, folder: Path) -> _Sink:
    """A sink that drops rows, as Nexmark has it; files where they are the subject of the query."""
    if query not in _PARTITIONED:
        return _Sink(connector="blackhole", options={}, partitioned_by=())
    options = {
        "path": (folder / "result").as_uri(),
        "format": "csv",
        "sink.partition-commit.trigger": "partition-time",
        "sink.partition-commit.delay": "1 min",
        "sink.partition-commit.policy.kind": "success-file",
        "partition.time-extractor.timestamp-pattern": "$dt $hm:00",
        "sink.rolling-policy.rollover-interval": "1min",
        "sink.rolling-policy.check-interval": "1min",
    }
    return _Sink(connector="filesystem", options=options, partitioned_by=_PARTITIONED[query])


def _run(query: str, inputs: FlinkInputs, folder: Path, order: _Order) -> tuple[_Answer, Usage]:
    environment = set_up()
    (folder / "tmp").mkdir()
    *views, select = statements(query)
    given, answer = folder / "order.json", folder / "answer.json"
    jars = [*environment.jars, inputs.functions]
    more = {
        "pipeline.jars": ";".join(jar.as_uri() for jar in jars),
        "pipeline.global-job-parameters": f"nexmark.side-input:{inputs.side_input}",
    }
    given.write_text(
        json.dumps(
            {
                "settings": settings(folder) | more,
                "statements": [[*definitions(folders), *views] for folders in order.inputs],
                "query": select,
                "sink": order.sink,
            }
        )
    )
    command = [str(environment.python), str(_PROGRAM), str(given), str(answer)]
    usage = run_program(command, _variables(environment), folder / "output.txt", order.limit_seconds)
    found: _Answer = json.loads(answer.read_text())
    return found, usage


def _variables(environment: FlinkEnvironment) -> dict[str, str]:
    return {
        "HADOOP_CLASSPATH": os.pathsep.join(map(str, environment.hadoop)),
        "PYTHONPATH": "",
        "FLINK_ENV_JAVA_OPTS": f"-Xmx{HEAP}",
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the named queries, or all that Flink can run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=Path, required=True, help="a folder that the generator has written")
    parser.add_argument("--rows", action="store_true", help="count the rows of results instead of measuring time")
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"all without one: {', '.join(QUERIES)}")
    given = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="nexmark-flink-") as folder:
        inputs = FlinkInputs.write(given.events, Path(folder))
        for query in given.queries or [query for query in QUERIES if query not in UNSUPPORTED]:
            try:
                figures = {"rows": result(query, inputs).total()} if given.rows else asdict(measure(query, inputs))
            except ProgramFailed as e:
                print(e, file=sys.stderr)
                figures, failed = {"failed": 1}, 1
            print(json.dumps({"query": query, **figures}), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
