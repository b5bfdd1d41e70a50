"""The guide *write a connector*: its sink passes the conformance suite, as the guide runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from stateflow.connectors.foreach_batch import ForeachBatchSink, OutputBatch
from tests.docs.pages import ROOT, blocks, read, section


def test_the_sink_of_the_guide_passes_the_suite(tmp_path: Path) -> None:
    page = read("write-a-connector")
    [sink] = blocks(section(page, "A sink for SQLite"), "python")
    [suite] = blocks(section(page, "Test it"), "python")
    (tmp_path / "sqlite_sink.py").write_text(sink)
    (tmp_path / "test_sqlite_sink.py").write_text(suite)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
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
