"""The job with every shape of edge on Spark, at two subtasks and then at three."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stateflow.query import read_state
from stateflow.testing.sinks import FolderSink
from tests.support import root_files

JOB = Path(__file__).parent / "jobs" / "wide.py"

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.slow
@pytest.mark.parametrize("backends", [("rocksdb", "rocksdb"), ("memory", "filesystem")])
def test_a_job_goes_on_at_another_parallelism(tmp_path: Path, backends: tuple[str, str]) -> None:
    root = tmp_path / "root"
    first, second = (f"state.backend={backend}" for backend in backends)
    for more in (["parallelism=2", "run.max_batches=2", first], ["parallelism=3", second]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "stateflow",
                "run",
                str(JOB),
                "--job-root",
                str(root),
                "--set",
                f"job.home={tmp_path}",
                "--set",
                f"local_dir={tmp_path / 'local'}",
                *(word for setting in more for word in ("--set", setting)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    counts = Counter(f"k{i * 7 % 17}" for i in range(240) if i % 3)
    assert {e.key[0]: e.value for e in read_state(str(root), "per-key")} == counts
    seen = [tuple(row.values()) for row in FolderSink(tmp_path / "seen").rows()]
    assert Counter(key for key, _, _ in seen) == counts
    assert {key: max(n for k, _, n in seen if k == key) for key in counts} == counts
    manifest = root_files.read_manifest(root, root_files.head(root).doc["manifest"])
    assert {o["parallelism"] for o in manifest["operators"]} == {3}
    assert {s["backend"] for o in manifest["operators"] for s in o["subtasks"]} == {backends[1]}
    root_files.check_hashes(root)
