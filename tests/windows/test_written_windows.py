"""Open windows that are exported to files are written again: the savepoint has the same windows."""

from __future__ import annotations

from pathlib import Path

import pytest

import stateflow
from tests.bootstrap.test_state_files import stored_content
from tests.support.cli_fixture import invoke
from tests.windows.windows_job import WindowsJob


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_exported_windows_are_written_again_with_their_timers(tmp_path: Path, kind: str) -> None:
    job = WindowsJob(tmp_path / "job", job_name="windows")
    job.deliver(40)
    job.finish()
    saved = job.create_savepoint("before", "--format", "canonical")["path"]
    states = []
    for number, state in enumerate(stateflow.read_metadata(saved, "states").to_pylist()):
        file = str(tmp_path / f"{number}.{kind}")
        which = ["--operator", state["operator"], "--state", state["state"]]
        assert invoke("state", "export", saved, *which, "--output", file).exit_code == 0
        states += ["--state", f"{state['operator']}.{state['state']}={file}"]
    settings = ["--set", f"job.folder={job.folder}"]
    written = str(tmp_path / "written")
    ended = invoke("savepoint", "write", job.job_file, "--output", written, *states, *settings)
    assert ended.exit_code == 0, ended.output
    assert stored_content(written) == stored_content(saved)
    assert stateflow.diff(saved, written).keys == 0
    job.end_all()
