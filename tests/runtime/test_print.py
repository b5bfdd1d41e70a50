"""The print sink: it prints after the commit, and no more rows than its limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from stateflow.api.schema import RowSchema
from stateflow.api.sink import PrintSink, SinkContext, SinkRewind, Writing
from stateflow.checkpoint.log.checkpoint_log import CheckpointLog
from stateflow.checkpoint.log.documents import PublishedOutput
from stateflow.checkpoint.sink_commit import SinkOutput, check_sink_position, publish
from stateflow.runtime.publisher import BoundSink
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage
from tests.support.errors import reported_error
from tests.support.graphs import JOB, Row, head

CONTEXT = SinkContext(JOB.job_uuid, "print", RowSchema.of(Row))
KNOWN = PublishedOutput(table_id="standard output of print", version=0, checkpoint_id=5)


def _written(limit: int, *sizes: int) -> list[Committable]:
    writer = PrintSink(limit).writer(CONTEXT, Writing(1, 1, 0, "a"))
    for size in sizes:
        writer.write(pa.RecordBatch.from_pylist([{"key": "a", "number": n} for n in range(size)]))
    return writer.close()


def _publish(committables: list[Committable]) -> PublishedOutput:
    sink = BoundSink(PrintSink(), CONTEXT)
    return publish(sink, SinkOutput(8, committables, KNOWN), CheckpointLog(MemoryStorage(), JOB), head(8))


def test_rows_are_printed_when_published_and_again_when_the_log_lacks_the_publication(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = _written(100, 2, 1)
    assert capsys.readouterr().out == ""
    for _ in range(2):
        assert _publish(lines).checkpoint_id == 8
        assert capsys.readouterr().out == "(a,0)\n(a,1)\n(a,0)\n"
    check_sink_position(BoundSink(PrintSink(), CONTEXT), KNOWN, CheckpointLog(MemoryStorage(), JOB), head(8))
    assert capsys.readouterr().out == "", "a start prints nothing"


def test_rows_above_the_limit_are_counted_and_long_rows_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    _publish(_written(2, 1, 5000))
    *rows, more = capsys.readouterr().out.splitlines()
    assert rows == ["(a,0)", "(a,0)"]
    assert re.sub(r"\D", "", more) == "4999"
    writer = PrintSink().writer(CONTEXT, Writing(1, 1, 0, "a"))
    writer.write(pa.RecordBatch.from_pylist([{"key": "x" * 10_000}]))
    (line,) = writer.close()
    assert len(line.stats) == 501
    assert _written(100) == [], "a subtask without rows prints nothing"


def test_a_restore_removes_no_printed_rows() -> None:
    assert PrintSink().open_table(CONTEXT).plan_rewind(2) == SinkRewind(0, None, 0, 0, ())


@pytest.mark.long(reason="runs a job as processes")
def test_rows_that_cannot_be_printed_end_the_run_and_the_next_one_prints_them(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import msgspec\n\n\nclass Row(msgspec.Struct):\n    number: int\n\n\ndef build(env):\n"
        "    env.from_collection([Row(7)], Row, uid='in').print()\n"
    )
    command = [sys.executable, "-m", "stateflow", "run", str(tmp_path / "job.py"), "--job-root", str(tmp_path / "root")]
    with Path("/dev/full").open("w") as output:
        # Otherwise nothing is left in a buffer, which Python would write when the process ends.
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, env=buffered)
    assert (ended.returncode, reported_error(ended.stderr).code) == (5, "storage"), ended.stderr
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith("(7)\n")
