"""Creates a checkpoint of a Delta table in a separate process.

For a checkpoint deltalake loads all active files of a table, starts a hundred threads, and keeps most of the memory: a
driver that created a checkpoint every 100 commits grew by 50 MB in 4,000 commits, and by more with a larger table. A
separate process frees everything when it ends, for 0.1 s of CPU per checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

from stateflow.errors import StorageError

_PROGRAM = "checkpoint_program.py"
_SHOWN = 500
_SECONDS = 600
"""A checkpoint of a million files takes a tenth of it. Without a limit, a FIFO in the log would stop the driver."""


def checkpoint(table: Path, seconds: float = _SECONDS) -> None:
    """Creates a checkpoint of the newest version, then removes expired log entries.

    Args:
        table: the table.
        seconds: time after which the process is killed.

    Raises:
        StorageError: the process failed, or took too long.
    """
    # The program is passed as text: `-m` would import stateflow, which takes ten times as long as its own imports.
    program = resources.files(__package__).joinpath(_PROGRAM).read_text()
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", program, str(table)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        message = "creating a checkpoint of the Delta table took too long"
        raise StorageError(message, table=str(table), seconds=seconds) from e
    if ended.returncode:
        raise StorageError(
            "creating a checkpoint of the Delta table failed",
            table=str(table),
            exit_code=ended.returncode,
            reason=ended.stderr.decode(errors="replace").strip()[-_SHOWN:],
        )
