"""Stand-ins for Airflow's runtime and for Spark in tests of the operators, and the failures that tests expect."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from stateflow_airflow import processes
from stateflow_airflow.failures import StateflowTaskFailed

DEADLINE = 60.0
"""Seconds that a test waits for another process before it fails."""
SPARK_CONNECTION = '{"conn_type": "spark", "host": "local[2,4]"}'


@dataclass
class FakeTaskInstance:
    dag_id: str = "a_dag"
    task_id: str = "run"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    map_index: int | None = -1
    try_number: int = 1
    max_tries: int = 2
    stats_tags: dict[str, str] = field(default_factory=dict)
    id: str = "00000000-0000-7000-8000-000000000000"
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = json.loads(json.dumps(value))

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        assert task_ids == self.task_id
        return self.pushed.get(key)


class FakeStore(dict[str, Any]):
    """Airflow's store of a task, which lives as long as its DAG run.

    Attributes:
        forgets: whether a deletion reaches Airflow.
    """

    forgets = True

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        if self.forgets:
            self.pop(key, None)


class FakeRun:
    """One DAG run of one task: what its tries share, and the context that each gets."""

    def __init__(self, **task_instance: Any) -> None:
        self.ti = FakeTaskInstance(**task_instance)
        self.store = FakeStore()
        self.events: dict[Any, Any] = defaultdict(lambda: SimpleNamespace(extra={}))
        self.user: str | None = None
        self.run_type = "manual"
        self._tries = 0

    def next_try(self) -> Any:
        self._tries += 1
        ti = replace(self.ti, try_number=self._tries)
        # As much of the DAG run as operators look at.
        due = datetime(2026, 1, 1, tzinfo=UTC)
        dag_run = SimpleNamespace(run_after=due, run_type=self.run_type, triggering_user_name=self.user)
        return {
            "ti": ti,
            "task_instance": ti,
            "dag_run": dag_run,
            "task_state_store": self.store,
            "outlet_events": self.events,
        }

    def clear(self) -> None:
        """What Airflow does to a task that is cleared: its store stays, its tries count on."""
        self.ti.max_tries = self._tries + 2


class FakeDag:
    """A fake of Airflow's answers about another DAG: whether it is paused, and its number of active runs."""

    def __init__(self, paused: bool, active: int) -> None:
        self.is_paused = paused
        self._active = active

    def get_dag(self, _: str) -> FakeDag:
        return self

    def get_dr_count(self, _: str, states: list[str]) -> int:
        return self._active if set(states) == {"running", "queued"} else 0


class FakeSpark:
    """A spark-submit that does what `script` was given; see fake_spark_submit.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        program = Path(__file__).with_name("fake_spark_submit.py")
        executable = self.bin / "spark-submit"
        executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
        executable.chmod(0o755)
        os.mkfifo(folder / "ready")
        os.mkfifo(folder / "gate")

    def script(self, *lines: str) -> None:
        (self.folder / "script").write_text("\n".join(lines) + "\n")

    def launches(self) -> list[dict[str, Any]]:
        notes = sorted(self.folder.glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(note.read_text()) for note in notes]

    def wait_until_ready(self) -> None:
        fifo = os.open(self.folder / "ready", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not select.select([fifo], [], [], DEADLINE)[0]:
                raise TimeoutError("the fake spark-submit did not get ready")
            os.read(fifo, 100)
        finally:
            os.close(fifo)

    def open_gate(self) -> None:
        (self.folder / "gate").write_text("go")

    def child(self) -> int:
        """Process id of the child that a stubborn launch started."""
        return int((self.folder / "child").read_text())

    def end_all(self) -> None:
        pids = [launch["pid"] for launch in self.launches()]
        pids += [self.child()] if (self.folder / "child").exists() else []
        for pid in pids:
            if processes.has_environment(pid, f"STATEFLOW_FAKE_SPARK={self.folder}"):
                os.kill(pid, signal.SIGKILL)


F = TypeVar("F", bound=StateflowTaskFailed)


@contextmanager
def fails(kind: type[F], code: str, /, **facts: object) -> Iterator[pytest.ExceptionInfo[F]]:
    """Expects a task to fail with exactly this class and code, and these facts; it may name more."""
    with pytest.raises(kind) as caught:
        yield caught
    failed = caught.value
    assert (type(failed), failed.code) == (kind, code), repr(failed)
    assert {name: failed.facts.get(name, "not there") for name in facts} == facts, repr(failed)
