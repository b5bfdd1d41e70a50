"""Job roots as this version writes them, for later ones to read: ``python -m tests.scoreboard.golden``.

What is in ``tests/data/jobs`` is never touched: a change that cannot read it needs a new format version.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from tests.support.job_fixture import AccountsJob

FOLDER = Path(__file__).parents[1] / "data" / "jobs"
FORMAT = 1
KINDS = {
    "rocksdb": {"state__backend": "rocksdb"},
    "filesystem": {"state__backend": "filesystem"},
    "memory": {"state__backend": "memory"},
    "asynchronous": {"checkpoints__asynchronous": "yes", "checkpoints__retained": 3},
}


def write() -> None:
    """Writes what is not there yet: after 60 events, in several runs, with a savepoint."""
    for kind, settings in KINDS.items():
        target = FOLDER / f"format-{FORMAT}-{kind}.tar.gz"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            box = AccountsJob(Path(folder) / "job", settings)
            box.deliver(30)
            box.finish()
            assert box.command("savepoint", "create", "--name", "golden").code == 0
            box.deliver(60)
            box.finish()
            box.check_results()
            target.parent.mkdir(exist_ok=True)
            with tarfile.open(target, "w:gz") as archive:
                for name in ("root", "tables", "events.jsonl"):
                    archive.add(box.folder / name, name)


if __name__ == "__main__":
    write()
