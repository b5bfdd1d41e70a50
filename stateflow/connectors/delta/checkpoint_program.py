"""The program that `checkpoint` runs with a table's path; it imports only deltalake."""

import os
import sys
from pathlib import Path


def main(table: Path) -> None:
    """Creates a checkpoint of the newest version, then removes expired log entries."""
    from deltalake import DeltaTable

    opened = DeltaTable(str(table))
    opened.create_checkpoint()
    folder = table / "_delta_log"
    # deltalake does not sync. After a power failure, readers must not start from an incomplete checkpoint.
    for path in (*folder.glob(f"{opened.version():020d}.checkpoint*"), folder / "_last_checkpoint", folder):
        _sync(path)
    if (opened.metadata().configuration.get("delta.enableExpiredLogCleanup") or "true").lower() == "true":
        opened.cleanup_metadata()


def _sync(path: Path) -> None:
    # Another writer can create a FIFO of such a name at any time; opening it would wait.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(number)
    finally:
        os.close(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
