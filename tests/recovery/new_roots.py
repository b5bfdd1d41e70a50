"""A job with a savepoint outside of its root, and the root of another job that begins with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from tests.support import folder_tables, stored_state
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.processes import Ended, Running


class NewRoot:
    """A job with a savepoint at its 50th event, and the root of another one that begins with it.

    Attributes:
        old: the job.
        new: shares the job's input and, unless configured otherwise, not its tables.
    """

    def __init__(self, old: AccountsJob, folder: Path, savepoint: Path | None = None) -> None:
        """Makes the savepoint, unless one of the 50th event is given."""
        self.old = old
        self.savepoint = savepoint or _savepoint_at_50(old, folder)
        self.tables = folder / "tables"
        settings = {**old.settings, "local_dir": folder / "local"}
        self.new = replace(old, settings=settings, root_folder=folder / "new")

    def begin(self, *more: str, failpoint: str = "", own_tables: bool = True) -> Running:
        tables = ("--set", f"job.tables={self.tables}") if own_tables else ()
        command = ("run", self.new.job_file, "--from-savepoint", str(self.savepoint), *tables, *more)
        return self.new.begin(*command, failpoint=failpoint, with_job=True)

    def run(self, *more: str, failpoint: str = "", own_tables: bool = True) -> Ended:
        return self.begin(*more, failpoint=failpoint, own_tables=own_tables).wait()

    def run_to(self, rows: int, *more: str, own_tables: bool = True) -> None:
        """Delivers up to that many events, and runs until all are processed."""
        self.new.deliver(rows)
        self.run(*more, own_tables=own_tables).check()
        if own_tables:
            self.check_own_tables()

    def check_own_tables(self) -> None:
        """What the new job has written is what comes after the savepoint, once."""
        found = multiset(folder_tables.rows(self.tables / "movements"))
        assert found == multiset(expected(self.new.delivered).movements[50:])
        assert self.new.head.position == len(self.new.delivered)
        assert stored_state.read_state(self.new.root, "balances") == expected(self.new.delivered).balances


def _savepoint_at_50(job: AccountsJob, folder: Path) -> Path:
    job.run_to(50)
    made = job.create_savepoint("mine", "--into", str(folder / "kept"))
    return Path(unquote(made["path"].removeprefix("file://")))
