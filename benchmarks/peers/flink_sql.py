"""Flink SQL over the events, in Flink's own Python environment: nothing of the project can be imported here.

``python flink_sql.py ORDER ANSWER``: both JSON files. Without ``"print"`` in the order, rows go into the blackhole sink
and the run is timed; with it they are printed, for the check.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

_POLL_SECONDS = 0.05
_SOURCE = re.compile(r"Source.*\.numRecordsOut$")


def settings(order: dict[str, Any]) -> dict[str, str]:
    """What Flink's documents say for aggregations over large state, and where files go."""
    folder = Path(order["folder"])
    return {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        # Flink's "large state" page: RocksDB, incremental; its memory is the managed memory.
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "taskmanager.memory.managed.size": order["managed_memory"],
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "execution.checkpointing.interval": f"{order['checkpoint_interval_ms']} ms",
        "execution.checkpointing.min-pause": "0 ms",
        # Flink's "performance tuning" page of the Table API: mini-batches, aggregation before the shuffle.
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": order["mini_batch_latency"],
        "table.exec.mini-batch.size": str(order["mini_batch_rows"]),
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
        "pipeline.object-reuse": "true",
        "io.tmp.dirs": str(folder / "tmp"),
        "rest.port": str(order["port"]),
        "rest.bind-port": str(order["port"]),
        "metrics.fetcher.update-interval": "100",
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in order["jars"]),
        **order.get("settings", {}),
    }


class Watch(threading.Thread):
    """Asks Flink's REST interface how many rows the source has given, and which checkpoints are complete."""

    def __init__(self, port: int, first_rows: int) -> None:
        super().__init__(daemon=True)
        self._url = f"http://127.0.0.1:{port}/jobs"
        self._first_rows = first_rows
        self._metrics: list[tuple[str, str]] = []
        self.first: tuple[float, int] | None = None
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(_POLL_SECONDS):
            try:
                self._look()
            except OSError:
                # Not yet up, or already down.
                continue

    def _look(self) -> None:
        jobs = self._get("")["jobs"]
        if not jobs:
            return
        job = jobs[0]["id"]
        if self.first is None:
            rows = self._rows(job)
            if rows >= self._first_rows:
                self.first = (time.monotonic(), rows)
        for checkpoint in self._get(f"/{job}/checkpoints")["history"]:
            if checkpoint["status"] == "COMPLETED":
                self.checkpoints[checkpoint["id"]] = checkpoint

    def _rows(self, job: str) -> int:
        if not self._metrics:
            for vertex in self._get(f"/{job}")["vertices"]:
                found = self._get(f"/{job}/vertices/{vertex['id']}/metrics")
                self._metrics += [(vertex["id"], m["id"]) for m in found if _SOURCE.search(m["id"])]
        rows = 0
        for vertex, metric in self._metrics:
            found = self._get(f"/{job}/vertices/{vertex}/metrics?get={metric}")
            rows += sum(int(m["value"]) for m in found)
        return rows

    def _get(self, path: str) -> Any:
        with urlopen(self._url + path, timeout=5) as answer:
            return json.load(answer)


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the query to its end; what it took."""
    configuration = Configuration()
    for name, value in settings(order).items():
        configuration.set_string(name, value)
    env = TableEnvironment.create(EnvironmentSettings.new_instance().with_configuration(configuration).build())
    env.execute_sql(f"""
        CREATE TABLE events (`key` BIGINT, `value` DOUBLE)
        WITH ('connector' = 'filesystem', 'path' = '{Path(order["events"]).as_uri()}', 'format' = 'parquet')""")
    connector = "print" if order.get("print") else "blackhole"
    env.execute_sql(
        f"CREATE TABLE means (`key` BIGINT, `count` BIGINT, `mean` DOUBLE) WITH ('connector' = '{connector}')"
    )
    query = "INSERT INTO means SELECT `key`, COUNT(*), SUM(`value`) / COUNT(*) FROM events GROUP BY `key`"
    plan = env.explain_sql(query)
    watch = Watch(order["port"], order["first_rows"])
    began = time.monotonic()
    watch.start()
    env.execute_sql(query).wait()
    ended = time.monotonic()
    watch.ended.set()
    watch.join()
    checkpoints = sorted(watch.checkpoints.values(), key=lambda c: c["id"])
    return {
        "began": began,
        "ended": ended,
        "first": watch.first,
        "checkpoints": [
            [c["trigger_timestamp"], c["latest_ack_timestamp"], c["checkpointed_size"], c["state_size"]]
            for c in checkpoints
        ],
        "plan": plan,
    }


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answer))
