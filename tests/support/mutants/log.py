"""Bugs of the checkpoint log: its entries, their order, claims, commits and pins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stateflow.checkpoint.log import checkpoint_log, job_root, transitions
from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, Overtaken
from stateflow.checkpoint.log.completed_checkpoints import AdminEntries
from stateflow.checkpoint.log.documents import EntryRef, JobFormat, LogEntry, Pin, RetainedLink
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.checkpoint.log.transitions import Adoption, Author, Commit, Kept
from stateflow.errors import DataError
from stateflow.runtime import job_loader, preflight
from stateflow.runtime.driver.checkpointing import UploadWaiter
from stateflow.runtime.job import CheckedHead, StartChecks
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import FORMAT, log_entry
from tests.support.mutants.registry import Mutants

MUTANTS = Mutants()


@MUTANTS.plant("any-format", *((module, "read_format") for module in (job_root, job_loader, preflight)))
def _read_any_format(storage: Storage) -> JobFormat:
    """The version of the format is not checked."""
    document, _ = unseal(storage.get(FORMAT), JobFormat, FORMAT)
    return document


@MUTANTS.plant("newest-by-time", (CheckpointLog, "read_head"))
def _newest_by_time(self: CheckpointLog) -> Head | None:
    """The newest log entry is the one with the latest time."""
    found = [head for seq in self._sequence_numbers(0) if (head := self._read(seq)) is not None]
    return max(found, key=lambda head: head.entry.at, default=None)


@MUTANTS.plant("no-list", (CheckpointLog, "append"), rules="I6")
def _append_without_list(
    self: CheckpointLog, parent: Head | None, build: Callable[[Head | None], LogEntry]
) -> Appended | Overtaken:
    """An entry is acknowledged without the LIST after its creation."""
    base = parent
    while True:
        own = self._create(build(base))
        if own is not None:
            return Appended(own, own)
        head = self._follow(base)
        if head is None or head == base:
            return Overtaken(created=False)
        base = head


@MUTANTS.plant("no-read-back", (CheckpointLog, "_create"), rules="I6 I9")
def _create_without_read_back(self: CheckpointLog, entry: LogEntry) -> Head | None:
    """A put whose answer was lost counts as done."""
    data, digest = seal(entry)
    result = self.storage.put_new(log_entry(entry.seq), data)
    return None if result is PutResult.EXISTS else Head(entry, digest)


@MUTANTS.plant("links-only", (checkpoint_log, "_is_only_admin_between"), rules="I9")
def _no(*_: object) -> bool:
    """A run treats a gap in the log, left by collected ADMIN entries, as the entry of a newer run."""
    return False


@MUTANTS.plant("no-fence", (checkpoint_log, "_is_admin_on_top"))
def _yes(*_: object) -> bool:
    """An append accepts every entry that was added since its read, COMMITs of other runs included."""
    return True


_has_counted = checkpoint_log._has_counted


@MUTANTS.plant("run-by-number", (checkpoint_log, "_has_counted"), rules="I6")
def _counted_by_number(entry: LogEntry, head: Head) -> bool:
    """A run identifies itself by its CLAIM's number, which can be reused after the slot was collected."""
    return _has_counted(
        replace(entry, run=str(entry.generation)),
        Head(replace(head.entry, run=str(head.entry.generation)), head.sha256),
    )


@MUTANTS.plant("any-kind-counted", (checkpoint_log, "_has_counted"), rules="I6")
def _any_kind_counted(entry: LogEntry, head: Head) -> bool:
    """An ADMIN is acknowledged when the newest entry has the same run and ordinal."""
    return (entry.run, entry.ordinal) == (head.entry.run, head.entry.ordinal)


_commit = transitions.commit


@MUTANTS.plant("released-again", (transitions, "commit"), rules="I3", plan="busy")
def _commit_with_what_was_released(job: JobFormat, base: Head, author: Author, new: Commit, kept: Kept) -> LogEntry:
    """A COMMIT keeps a checkpoint that a command released after the COMMIT was prepared."""
    entry = _commit(job, base, author, new, kept)
    return replace(entry, oldest_retained=kept.oldest, retained_before=kept.segment or base.entry.retained_before)


@MUTANTS.plant("forgotten-requests", (transitions, "commit"), rules="R1 R2", plan="rewinds")
def _commit_without_requests(job: JobFormat, base: Head, author: Author, new: Commit, kept: Kept) -> LogEntry:
    """A COMMIT does not copy the list of executed restore requests."""
    return replace(_commit(job, base, author, new, kept), requests=[])


@MUTANTS.plant("uncut", (transitions, "cut_after"), rules="R3", plan="commands")
def _never_cut(link: RetainedLink | None, newest: int) -> RetainedLink | None:
    """A restore keeps the checkpoints after its target that are in segments."""
    return link


@MUTANTS.plant("no-waiting", (UploadWaiter, "wait"), rules="I3", plan="asynchronous")
def _without_waiting(*_: Any) -> None:
    """A checkpoint is committed before its files are stored."""


# Mistakes that the simulator found in the code itself.


@MUTANTS.plant("pin-checked-once", (AdminEntries, "pin"), rules="I3", plan="commands")
def _pin_checked_once(self: AdminEntries, ref: EntryRef, owner: str, reason: str, generation: int = 0) -> Pin:
    """A pin is not checked again when it follows another ADMIN."""
    new = Pin(id=self._clock.new_id(), checkpoint=ref, owner=owner, reason=reason, since="")
    while True:
        head = self._checkpoints.head()
        if new in head.entry.pinned:
            return new
        if ref not in self._checkpoints.kept(head):
            raise DataError("the checkpoint is no longer retained")
        outcome = self._log.append(head, lambda b: transitions.pin(self._job, b, self._author(reason), new))
        if isinstance(outcome, Appended):
            self._delete_replaced(outcome.own.entry.seq - 1, outcome.head)
            return new


@MUTANTS.plant("adoption-checked-once", (JobRoot, "_append_claim"), rules="I3", plan="commands")
def _claim_checked_once(self: JobRoot, parent: Head | None, note: str, adopt: Adoption | None) -> Appended | Overtaken:
    """A restore's target is not checked again when the CLAIM follows an ADMIN."""
    self.checkpoints.check_restorable(parent, adopt.checkpoint if adopt else None)
    return self.log.append(parent, lambda b: transitions.claim(self.job, b, self._author(note), adopt))


_adopt = JobRoot.adopt


@MUTANTS.plant("go-back-anyway", (JobRoot, "adopt"), rules="S1 R4", plan="rewinds")
def _go_back_on_top_of_anything(self: JobRoot, head: Head | None, adoption: Adoption, note: str = "") -> Head:
    """A restore is added to the log although a newer run has changed it."""
    return _adopt(self, self.head() if head else None, adoption, note)


_before_claim = StartChecks.before_claim


@MUTANTS.plant("half-fork", (StartChecks, "before_claim"), rules="R3")
def _start_on_half_a_fork(self: StartChecks) -> CheckedHead:
    """A run starts without state in a fork that was killed before its state was imported."""
    return _before_claim(self) if self.job.root.log.read_head() else CheckedHead()
