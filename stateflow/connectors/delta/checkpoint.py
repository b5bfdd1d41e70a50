"""One of Delta's checkpoints, made by a process of its own.

deltalake loads all active files of a table for a checkpoint, starts a hundred threads, and keeps most of the memory: a
driver that made a checkpoint every 100 commits grew by 50 MB in 4,000 commits, and by more with a larger table. A
process that ends gives everything back. It costs 0.1 s of CPU for each checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

from stateflow.errors import StorageError

_PROGRAM = "delta_checkpoint_program.py"
_SHOWN = 500


def checkpoint(table: Path) -> None:
    """Makes a checkpoint of the newest version, then lets expired log entries go. Raises StorageError."""
    # As text, not as a module: it shall not import stateflow, which takes ten times as long as what it needs.
    program = resources.files(__package__).joinpath(_PROGRAM).read_text()
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program, str(table)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise StorageError("Delta's checkpoint was not made", table=str(table), exit_code=ended.returncode,
                           reason=ended.stderr.decode(errors="replace").strip()[-_SHOWN:])  # fmt: skip
