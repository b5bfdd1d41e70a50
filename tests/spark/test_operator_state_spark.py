"""Operator state on Spark: written by workers, restored at another parallelism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recovery.harness import AccountsBox
from tests.recovery.test_operator_state import _check, _check_rated

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def _run(box: AccountsBox, parallelism: int) -> None:
    settings = {"job.folder": box.folder, "job.spark": "yes", "job.pad": 1500, "local_dir": box.local,
                "parallelism": parallelism}  # fmt: skip
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "stateflow", "run", box.job_file, "--job-root", str(box.root)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *assignments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_it_is_written_by_workers_and_redistributed(tmp_path: Path) -> None:
    box = AccountsBox(tmp_path, job="checkpointed")
    box.deliver(30)
    _run(box, 2)
    _check(box)
    box.deliver(40)
    _run(box, 3)
    _check(box)
    _check_rated(box)
    assert [json.loads(line) for line in (box.folder / "ledger.jsonl").read_text().splitlines()]
