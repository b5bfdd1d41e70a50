"""The guide *write a connector*: its sink passes the conformance suite as the guide runs it, and its source is read."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from stateflow.connectors.foreach_batch import ForeachBatchSink, OutputBatch
from stateflow.launch import RunRequest, run_job
from tests.docs.pages import ROOT, blocks, read, section
from tests.support import folder_tables


@pytest.mark.slow(reason="runs pytest with the conformance suite in a process")
def test_the_sink_of_the_guide_passes_the_suite(tmp_path: Path) -> None:
    page = read("write-a-connector")
    [sink] = blocks(section(page, "A sink for SQLite"), "python")
    [suite] = blocks(section(page, "Test it"), "python")
    (tmp_path / "sqlite_sink.py").write_text(sink)
    (tmp_path / "test_sqlite_sink.py").write_text(suite)
    command = [sys.executable, *f"-m pytest -q -p no:cacheprovider --rootdir {tmp_path} {tmp_path}".split()]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout and "failed" not in ended.stdout


def test_the_function_of_the_guide_is_called() -> None:
    [example] = blocks(section(read("write-a-connector"), "At least once is enough"), "python")
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["sink"], ForeachBatchSink)
    names["send"](pa.table({"id": [1]}), OutputBatch("j", "out", 3, "a"))  # type: ignore[operator]


@pytest.mark.slow(reason="runs the job of the guide three times")
def test_the_source_of_the_guide_reads_each_row_once(tmp_path: Path) -> None:
    [module] = blocks(section(read("write-a-connector"), "A source with partitions"), "python")
    job = f"""{module}
from stateflow.testing.sinks import FolderSink

def build(env):
    source = SqliteEvents({str(tmp_path)!r}, split_size=2)
    source.needs_spark = False
    env.from_source(source, uid="events").sink_to(FolderSink({str(tmp_path / "out")!r}), uid="out")
"""
    (tmp_path / "job.py").write_text(job)
    for number in range(3):
        _insert(tmp_path / "a.db", number)
        _insert(tmp_path / f"b{number}.db", 10 + number, 20 + number)
        result = run_job(RunRequest(tmp_path / "job.py", str(tmp_path / "root"), ({"local_dir": str(tmp_path / "l")},)))
        assert result.rows_in == 3
    found = [row["number"] for row in folder_tables.rows(tmp_path / "out")]
    assert sorted(found) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def _insert(file: Path, *numbers: int) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS events (number INTEGER, text TEXT)")
        database.executemany("INSERT INTO events VALUES (?, ?)", [(number, "text") for number in numbers])
