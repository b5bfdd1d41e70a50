"""Canonical savepoints of Flink, in Flink's own Python environment: nothing of the project can be imported here.

``python flink_savepoint.py ORDER ANSWER``: both JSON files. A job keeps the greatest text of each key in RocksDB. The
answer has the seconds of each savepoint, by Flink's own record, and of each restore: the time that the slowest subtask
was initializing, which is when it reads its state.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment, TableResult

_POLL_SECONDS = 0.2
_DEADLINE_SECONDS = 900


def settings(order: dict[str, Any], port: int) -> dict[str, str]:
    """What Flink's documents say for large state, and where files go."""
    folder = Path(order["folder"])
    return {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(order["parallelism"]),
        "taskmanager.numberOfTaskSlots": str(order["parallelism"]),
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "taskmanager.memory.managed.size": order["managed_memory"],
        "pipeline.object-reuse": "true",
        "io.tmp.dirs": str(folder / "tmp"),
        "rest.port": str(port),
        "rest.bind-port": str(port),
        "metrics.fetcher.update-interval": "100",
    }


class Job:
    """A running job, and Flink's REST interface to it."""

    def __init__(self, order: dict[str, Any], port: int, savepoint: str = "") -> None:
        configuration = Configuration()
        for name, value in settings(order, port).items():
            configuration.set_string(name, value)
        if savepoint:
            configuration.set_string("execution.state-recovery.path", savepoint)
        self._url = f"http://127.0.0.1:{port}/jobs"
        self._result = _submit(configuration, order)
        client = self._result.get_job_client()
        assert client is not None
        self._client = client
        self._id = str(client.get_job_id())

    def wait_for_keys(self, keys: int) -> None:
        """Waits until the sources have given a row of each key."""
        _wait(lambda: self._rows() >= keys)

    def wait_until_running(self) -> float:
        """Waits until every task runs; returns the longest time that a subtask was initializing, in seconds."""
        # The source that gave each key once has ended, before the savepoint.
        _wait(lambda: {v["status"] for v in self._get(f"/{self._id}")["vertices"]} <= {"RUNNING", "FINISHED"})
        durations = [
            subtask["status-duration"].get("INITIALIZING", 0)
            for vertex in self._get(f"/{self._id}")["vertices"]
            for subtask in self._get(f"/{self._id}/vertices/{vertex['id']}")["subtasks"]
        ]
        return float(max(durations)) / 1000

    def savepoint(self, folder: Path) -> tuple[str, float]:
        """Takes a canonical savepoint; returns its location, and the seconds that it took."""
        began = time.monotonic()
        wanted = {"target-directory": folder.as_uri(), "cancel-job": False, "formatType": "CANONICAL"}
        path = f"/{self._id}/savepoints"
        request = Request(self._url + path, json.dumps(wanted).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as answer:
            trigger = json.load(answer)["request-id"]
        done: dict[str, Any] = {}

        def is_complete() -> bool:
            done.update(self._get(f"{path}/{trigger}"))
            return bool(done["status"]["id"] == "COMPLETED")

        _wait(is_complete, 0.02)
        return str(done["operation"]["location"]), time.monotonic() - began

    def cancel(self) -> None:
        """Ends the job and its cluster."""
        self._client.cancel().result()
        time.sleep(2)  # Flink releases its port and memory after it has answered.

    def _rows(self) -> int:
        vertices = self._get(f"/{self._id}")["vertices"]
        return sum(int(v["metrics"]["write-records"]) for v in vertices if v["name"].startswith("Source"))

    def _get(self, path: str) -> Any:
        with urlopen(self._url + path, timeout=30) as answer:
            return json.load(answer)


def _submit(configuration: Configuration, order: dict[str, Any]) -> TableResult:
    env = TableEnvironment.create(EnvironmentSettings.new_instance().with_configuration(configuration).build())
    columns = "k BIGINT, v STRING"
    length = f"'fields.v.length' = '{order['value_bytes']}'"
    env.execute_sql(f"""
        CREATE TABLE every_key ({columns}) WITH ('connector' = 'datagen', {length}, 'fields.k.kind' = 'sequence',
        'rows-per-second' = '1000000000', 'fields.k.start' = '1', 'fields.k.end' = '{order["keys"]}')""")
    # It never ends, so that the job still runs when each key has state.
    env.execute_sql(f"""
        CREATE TABLE few (k BIGINT, v STRING) WITH ('connector' = 'datagen', {length}, 'rows-per-second' = '1',
        'fields.k.min' = '1', 'fields.k.max' = '{order["keys"]}')""")
    env.execute_sql(f"CREATE TABLE nothing ({columns}) WITH ('connector' = 'blackhole')")
    rows = "(SELECT * FROM every_key UNION ALL SELECT * FROM few)"
    return env.execute_sql(f"INSERT INTO nothing SELECT k, MAX(v) FROM {rows} GROUP BY k")


def _wait(condition: Any, poll: float = _POLL_SECONDS) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # Flink's REST interface is not up yet.
        if time.monotonic() > deadline:
            raise TimeoutError("Flink did not reach the wanted state in time")
        time.sleep(poll)


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Returns the seconds of savepoints and restores, and the size of a savepoint."""
    folder, (first, second) = Path(order["folder"]), order["ports"]
    job = Job(order, first)
    job.wait_for_keys(order["keys"])
    taken = [job.savepoint(folder / f"savepoint-{number}") for number in range(order["repeats"])]
    job.cancel()
    location = taken[-1][0]
    job = Job(order, second, location)
    restored = job.wait_until_running()
    job.cancel()
    size = sum(f.stat().st_size for f in Path(location.removeprefix("file:")).rglob("*") if f.is_file())
    return {"savepoint_s": [seconds for _, seconds in taken], "restore_s": restored, "bytes": size}


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answer))
