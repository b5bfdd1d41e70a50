"""Savepoints that an attacker has forged, and a job whose users meet them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from tests.recovery.forged_savepoints import FORGERIES, ForgedSavepoint, Forgery, Outcome
from tests.scoreboard.row import Round, Row
from tests.support import folder_tables, root_files, stored_state
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.processes import Ended, Running
from tests.support.restores import everything, go_back, plan_file

_SETTINGS: dict[str, object] = {
    "checkpoints__retained": 100, "restart__strategy": "fixed-delay", "restart__fixed_delay__attempts": 3,
    "restart__fixed_delay__delay": "0s",
}  # fmt: skip
_SAVED, _DELIVERED = 30, 60
_SECONDS = 60
_REFUSED = (2, 4)
"""Exit codes of errors that no retry can fix."""


class AttackedJob:
    """A job with a savepoint in its root and a copy of another one, which an attacker forges.

    Attributes:
        outside: a folder that must not be read or changed.
        forged: the folder of the forged savepoint.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object], rng: random.Random) -> None:
        self._folder = folder
        self._rng = rng
        self.job = AccountsJob(folder / "job", {**_SETTINGS, **settings})
        self.job.run_to(_SAVED)
        self.job.create_savepoint("whole")
        made = self.job.create_savepoint("mine", "--into", str(folder / "kept"))
        self._original = Path(unquote(made["path"].removeprefix("file://")))
        self.job.run_to(_DELIVERED)
        shutil.copytree(self.job.folder, folder / "copy")
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text("a secret")
        self.forged = folder / "theirs" / self._original.name
        self._of_others: Sequence[Path] = ()

    def attack(self, forgery: Forgery) -> None:
        """Forges the savepoint, and plays its users. Raises AssertionError if anything happens that must not."""
        shutil.rmtree(self.forged.parent, ignore_errors=True)
        shutil.copytree(self._original, self.forged)
        self._of_others = forgery.act(ForgedSavepoint(self.forged, self.outside, self._rng)) or ()
        others = self._others()
        self._look(forgery)
        use = self._rng.choice([self._restore, self._fork, self._begin_new_root])
        is_restored = use(forgery.outcome)
        assert not (is_restored and forgery.outcome is Outcome.REFUSED), f"{forgery.name} was restored"
        self._end(self.job.begin("savepoint", "dispose", str(self.forged)))
        assert self._others() == others, f"{forgery.name}: files of others changed"

    def check(self) -> None:
        """The job continues from its other savepoint."""
        go_back(self.job, "whole")
        self.job.finish()
        self.job.check()

    def _others(self) -> dict[str, str]:
        return root_files.digests(self.outside, self._original)

    def _look(self, forgery: Forgery) -> None:
        """What users do first; none of it changes anything."""
        before = everything(self.job)
        verified = self._end(self.job.begin("savepoint", "verify", str(self.forged)))
        is_forged = forgery.needs == "rocksdb" and forgery.outcome is Outcome.REFUSED
        assert not (is_forged and verified.code == 0), f"{forgery.name} was verified"
        self._end(self.job.begin("savepoint", "show", str(self.forged)))
        listed = self._end(self.job.begin("savepoint", "list", "--json"))
        assert [savepoint["name"] for savepoint in listed.check().document] == ["whole"]
        assert everything(self.job) == before

    def _end(self, running: Running) -> Ended:
        """Waits for a command: it succeeds, or ends with one error that no retry fixes."""
        ended = running.wait(seconds=_SECONDS)
        assert ended.code == 0 or (ended.code in _REFUSED and ended.error.code), str(ended)
        return ended

    # -- uses ---------------------------------------------------------------------------------------------------------

    def _restore(self, outcome: Outcome) -> bool:
        """Takes the job back, and runs it; returns whether both succeeded."""
        job, before = self.job, everything(self.job)
        words = ("restore", job.job_file)
        planned = self._end(job.begin(*words, "--plan", str(self.forged), "--out", str(plan_file(job)), with_job=True))
        if planned.code or self._end(job.begin(*words, "--execute", str(plan_file(job)), with_job=True)).code:
            assert everything(job) == before, "a refused restore has changed the job"
            return False
        is_restored = self._run(job)
        if is_restored and outcome is Outcome.SAME:
            job.check_results()
        self._check_apart(job.root)
        self._recover(outcome)
        return is_restored

    def _recover(self, outcome: Outcome) -> None:
        """Takes the job to its other savepoint, unless an attacker's sinks may have changed tables; then resets it."""
        if outcome is not Outcome.ANY:
            go_back(self.job, "whole")
            self.job.finish()
            self.job.check_results()
        shutil.rmtree(self.job.folder)
        shutil.copytree(self._folder / "copy", self.job.folder)

    def _fork(self, outcome: Outcome) -> bool:
        """Makes another job of the savepoint, which writes tables of its own, and runs it."""
        into, before = self._folder / "fork" / "root", self._content()
        shutil.rmtree(into.parent, ignore_errors=True)
        made = self._end(self.job.begin("fork", str(self.forged), "--into", str(into), "--shadow"))
        if made.code:
            assert self._content() == before, "a refused fork has changed the job"
            return False
        tables = [self.job.table(f"{name}_shadow") for name in ("movements", "totals")]
        fork = AccountsJob(self.job.folder, {**self.job.settings, "local_dir": into.parent / "local"}, root_folder=into)
        is_restored = self._run(fork)
        self._check_new(fork, tables[0], outcome, is_restored)
        self._check_apart(into)
        for table in tables:
            shutil.rmtree(table, ignore_errors=True)
        return is_restored

    def _content(self) -> tuple[int, dict[str, str]]:
        """The newest checkpoint and all files, without those that a fork's pin leaves."""
        files = {path: sha256 for path, sha256 in everything(self.job).items() if "/log/" not in path}
        return self.job.head.checkpoint, files

    def _begin_new_root(self, outcome: Outcome) -> bool:
        """Begins another job root with the savepoint."""
        folder, before = self._folder / "new", everything(self.job)
        shutil.rmtree(folder, ignore_errors=True)
        settings = {**self.job.settings, "local_dir": folder / "local", "job__tables": folder / "tables"}
        new = AccountsJob(self.job.folder, settings, root_folder=folder / "root")
        command = ("run", new.job_file, "--from-savepoint", str(self.forged))
        is_restored = not self._end(new.begin(*command, with_job=True)).code
        assert everything(self.job) == before
        self._check_new(new, folder / "tables" / "movements", outcome, is_restored)
        self._check_apart(folder)
        return is_restored

    def _check_new(self, new: AccountsJob, table: Path, outcome: Outcome, is_restored: bool) -> None:
        if is_restored and outcome is Outcome.SAME:
            wanted = expected(self.job.delivered)
            assert multiset(folder_tables.rows(table)) == multiset(wanted.movements[_SAVED:])
            assert stored_state.read_state(new.root, "balances") == wanted.balances

    def _run(self, job: AccountsJob) -> bool:
        """A run that fails because of the savepoint does not restart: each start would claim the job."""
        newest = root_files.newest_seq(job.root)
        ended = self._end(job.start())
        claims = [e for e in root_files.entries(job.root) if e.seq > newest and e.doc["kind"] == "claim"]
        assert ended.code == 0 or len(claims) <= 1, f"a run was tried {len(claims)} times: {ended}"
        return not ended.code

    def _check_apart(self, root: Path) -> None:
        """Another user writes to the files that he has in the savepoint, which must change nothing of a job's."""
        before = root_files.digests(root)
        for path in self._of_others:
            path.write_bytes(b"changed")
        assert root_files.digests(root) == before, "the job has files of another user"


_EACH = 6
_BACKENDS: dict[str, dict[str, object]] = {
    "rocksdb": {"state__backend": "rocksdb"},
    "filesystem": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
}


@Row(
    25,
    "hostile-savepoints",
    plays=(0, 25, 500),
    mutants=(
        "unchecked-stores", "verify-opens-nothing", "trusted-numbers", "retried-forgery", "followed-links",
        "followed-folders", "linked-strangers", "keys-to-anywhere",
    ),
    within=15,
)  # fmt: skip
def test_a_forged_savepoint_does_no_harm(round_: Round) -> int:
    """A savepoint is forged by a user who may write it, with hashes that fit: numbers of RocksDB's manifest, blocks of
    its files, blocks of hash maps, documents, sizes, paths that lead out of it, links, FIFOs, files of another user.

    Each command succeeds or fails with one error that no retry repeats; no process dies, nothing outside of the
    savepoint is read or changed, a refused restore changes nothing, and the job continues from its other savepoint.
    """
    backend = ["rocksdb", "rocksdb", "filesystem"][round_.seed % 3]
    attacked = AttackedJob(round_.folder, _BACKENDS[backend], round_.rng)
    possible = [forgery for forgery in FORGERIES if forgery.needs in ("", backend)]
    try:
        for forgery in round_.rng.sample(possible, _EACH):
            attacked.attack(forgery)
        attacked.check()
    finally:
        attacked.job.end_all()
    return _EACH
