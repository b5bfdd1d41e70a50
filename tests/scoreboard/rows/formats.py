"""Job roots that earlier versions wrote, and one that a later version wrote.

Golden job roots are in ``tests/data/jobs``; see `golden`.
"""

from __future__ import annotations

import shutil
import tarfile

from tests.scoreboard.golden import FOLDER, FORMAT, KINDS
from tests.scoreboard.row import Round, Row, Tier
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.mutants import VARIABLE


def _play(round_: Round) -> int:
    """Each goes on, and can go back to its savepoint; what a later version wrote is refused, and stays as it is."""
    archives = sorted(FOLDER.glob("format-*.tar.gz"))
    assert len(archives) >= len(KINDS)
    for archive in archives:
        box = AccountsJob(round_.folder / archive.name.partition(".")[0], variables={VARIABLE: round_.plant})
        with tarfile.open(archive) as stored:
            # Python before 3.11.4 has no filters.
            stored.extraction_filter = getattr(tarfile, "data_filter", None)
            stored.extractall(box.folder)
        _refuse(box)
        _go_on(box)
    return 2 * len(archives)


def _refuse(box: AccountsJob) -> None:
    path = box.root / "FORMAT"
    written = path.read_bytes()
    document, _ = root_files.unsealed(written)
    path.write_bytes(root_files.sealed({**document, "version": FORMAT + 1}))
    before = root_files.digests(box.root, box.folder / "tables")
    ended = box.run()
    assert (ended.code, ended.error.code) == (2, "wrong-job-root"), str(ended)
    assert ended.error.facts["found"] == FORMAT + 1, str(ended)
    assert root_files.digests(box.root, box.folder / "tables") == before
    path.write_bytes(written)


def _go_on(box: AccountsJob) -> None:
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
        21,
        "formats",
        "job roots of each released format, and of a format to come",
        "the former go on and go back with all that they had; the latter is refused by name and not touched",
        _play,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 1, Tier.NIGHTLY: 1},
        plant="any-format",
        plant_rounds=1,
    )
]
