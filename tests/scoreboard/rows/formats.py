"""Job roots that earlier versions wrote, and one that a later version wrote.

Golden job roots are in ``tests/data/jobs``: ``python -m tests.scoreboard.rows.formats`` writes those of this version,
and never touches one that is there.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.recovery import disk
from tests.recovery.harness import AccountsBox
from tests.recovery.plants import VARIABLE
from tests.scoreboard.row import Round, Row, Tier

_FOLDER = Path(__file__).parents[2] / "data" / "jobs"
_FORMAT = 1
_KINDS = {
    "rocksdb": {"state__backend": "rocksdb"},
    "filesystem": {"state__backend": "filesystem"},
    "memory": {"state__backend": "memory"},
    "asynchronous": {"checkpoints__asynchronous": "yes", "checkpoints__retained": 3},
}


def write() -> None:
    """Writes what is not there yet: after 60 events, in several runs, with a savepoint."""
    for kind, settings in _KINDS.items():
        target = _FOLDER / f"format-{_FORMAT}-{kind}.tar.gz"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            box = AccountsBox(Path(folder) / "job", settings)
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


def _play(round_: Round) -> int:
    """Each goes on, and can go back to its savepoint; what a later version wrote is refused, and stays as it is."""
    archives = sorted(_FOLDER.glob("format-*.tar.gz"))
    assert len(archives) >= len(_KINDS)
    for archive in archives:
        box = AccountsBox(round_.folder / archive.name.partition(".")[0], variables={VARIABLE: round_.plant})
        with tarfile.open(archive) as stored:
            stored.extractall(box.folder, filter="data")
        _refuse(box)
        _go_on(box)
    return 2 * len(archives)


def _refuse(box: AccountsBox) -> None:
    path = box.root / "FORMAT"
    written = path.read_bytes()
    document, _ = disk.unsealed(written)
    path.write_bytes(disk.sealed({**document, "version": _FORMAT + 1}))
    before = disk.digests(box.root, box.folder / "tables")
    ended = box.run()
    assert (
        ended.code == 2 and "error [wrong-job-root]" in ended.err and f"found={_FORMAT + 1}" in ended.err
    ), str(ended)
    assert disk.digests(box.root, box.folder / "tables") == before
    path.write_bytes(written)


def _go_on(box: AccountsBox) -> None:
    box.deliver(90)
    box.finish()
    box.check_results()
    plan = str(box.folder / "plan")
    for step in (("--plan", "golden", "--out", plan), ("--execute", plan)):
        ended = box.begin("restore", box.job_file, *step, with_job=True).wait()
        assert ended.code == 0, str(ended)
    box.finish()
    box.check_results()
    box.check_clean()
    shutil.rmtree(box.folder)


ROWS = [
    Row(
        21, "formats", "job roots of each released format, and of a format to come",
        "the former go on and go back with all that they had; the latter is refused by name and not touched", _play,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 1, Tier.NIGHTLY: 1}, plant="any-format", plant_rounds=1,
    ),
]  # fmt: skip


if __name__ == "__main__":
    write()
    sys.exit(0)
