"""A function that receives the rows of each checkpoint: at least once, and with what it needs to be idempotent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateflow.api.sink import Sink
from stateflow.connectors.foreach_batch import ForeachBatchSink, OutputBatch
from stateflow.errors import ConfigError, JobDefinitionError, SinkRefused, StorageError
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import PublishingJob
from tests.support.errors import raises


class Appends:
    """Appends rows to a file, one write for each batch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, rows: pa.Table, batch: OutputBatch) -> None:
        lines = [
            json.dumps({"batch": batch.checkpoint_id, "attempt": batch.attempt, **row}) for row in rows.to_pylist()
        ]
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, "".join(f"{line}\n" for line in lines).encode())
        os.close(file)


def foreach(address: str) -> Sink:
    return ForeachBatchSink(Appends(Path(address)))


def received(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class TestForeachBatch(SinkConformance):
    factory = staticmethod(foreach)
    exactly_once = False
    checks_columns = False
    sweeps = False
    has_slow_drivers = True

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return str(tmp_path / "received")

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        assert isinstance(sink, ForeachBatchSink) and isinstance(sink._function, Appends)
        return received(sink._function.path)


def test_a_repeated_call_has_the_same_rows_and_checkpoint(tmp_path: Path) -> None:
    target = tmp_path / "received"
    job = PublishingJob(ForeachBatchSink(Appends(target)), tmp_path / "root")
    job.run(1)
    pending = job.commit(job.root.claim(), 2)
    for _ in range(2):
        PublishingJob(ForeachBatchSink(Appends(target)), tmp_path / "root").publisher.publish_pending(pending)
    rows = received(target)
    assert [row["id"] for row in rows] == [2, 3, 4, 5, 4, 5]
    assert {row["batch"] for row in rows[2:]} == {pending.checkpoint_id}
    assert len({row["attempt"] for row in rows}) == 3


def test_a_function_that_raises_is_named_and_called_again(tmp_path: Path) -> None:
    def broken(rows: pa.Table, batch: OutputBatch) -> None:
        raise OSError("no route to host")

    job = PublishingJob(ForeachBatchSink(broken), tmp_path / "root")
    with raises(StorageError, sink="out", checkpoint=2, reason="OSError: no route to host") as failed:
        job.run(1)
    assert failed.value.retryable and "broken" in str(failed.value.facts["function"])
    PublishingJob(foreach(str(tmp_path / "received")), tmp_path / "root").run(1)
    assert [row["id"] for row in received(tmp_path / "received")] == [2, 3]


def test_a_restore_is_refused_in_its_plan_unless_the_rows_are_to_be_kept(tmp_path: Path) -> None:
    job = PublishingJob(foreach(str(tmp_path / "received")), tmp_path / "root")
    job.run(2)
    with raises(SinkRefused, sink="out"):
        job.sink.open_table(job.context).plan_rewind(2)
    keeping = ForeachBatchSink(Appends(tmp_path / "received"), on_rewind="keep").open_table(job.context)
    assert keeping.plan_rewind(2).to_version is None
    assert keeping.rewind(None, 9) is not None


def test_arguments_are_checked() -> None:
    with raises(JobDefinitionError, found="str"):
        ForeachBatchSink("print")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        ForeachBatchSink(print, on_rewind="ignore")  # type: ignore[arg-type]
