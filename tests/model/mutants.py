"""The protocol with one rule taken out, each by replacing one function of the real code.

A simulator that finds nothing in the real code says something only as far as it finds these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from stateflow.api.sink import SinkTable
from stateflow.checkpoint import sink_commit as publishing
from stateflow.checkpoint.gc import collector, reachability
from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log import checkpoint_log, transitions
from stateflow.checkpoint.log.admin_entries import AdminEntries
from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, Overtaken
from stateflow.checkpoint.log.documents import (
    Answer,
    EntryRef,
    JobFormat,
    LogEntry,
    PendingOutput,
    Pin,
    PublishedOutput,
    Request,
    RetainedLink,
    Rewind,
    SinkIntent,
    SinkMode,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import get_or_none
from stateflow.checkpoint.log.sealed_json import seal
from stateflow.checkpoint.log.transitions import Adoption, Author, Commit, Kept
from stateflow.checkpoint.restore.plan_document import SinkChange
from stateflow.checkpoint.savepoints import catalog, cleanup, create
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.create import SavepointSpec
from stateflow.checkpoint.sink_commit import Output, PublishingSink
from stateflow.errors import DataError
from stateflow.operations import savepoints
from stateflow.runtime import publisher as runtime
from stateflow.runtime.driver import job_restore, request_server
from stateflow.runtime.driver.checkpointing.pending_checkpoint import PendingCheckpoint
from stateflow.runtime.driver.checkpointing.uploads import Uploads
from stateflow.runtime.driver.request_server import CommittedPoint, RequestServer
from stateflow.runtime.job.start_checks import CheckedHead, StartChecks
from stateflow.runtime.publisher import BoundSink
from stateflow.runtime.restore import executor, rewind, sink_changes
from stateflow.runtime.restore.context import RestoreContext
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import SAVEPOINT, SAVEPOINTS, STARTED, DataKey, log_entry, savepoint_file, savepoint_folder


@dataclass(frozen=True)
class Mutant:
    """A mistake: what is replaced where, and what the history that shows it breaks."""

    what: str
    places: tuple[tuple[Any, str], ...]
    replacement: Callable[..., Any]
    rules: tuple[str, ...]
    """Any of these is the right finding."""
    plan: str = ""
    """A directed search; by default the histories are those of the code as it is."""
    name_by_seq: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The real code with the mistake in it."""
        originals = [(place, name, vars(place)[name]) for place, name in self.places]
        for place, name in self.places:
            setattr(place, name, self.replacement)
        try:
            yield
        finally:
            for place, name, original in originals:
                setattr(place, name, original)


def _append_without_list(
    self: CheckpointLog, parent: Head | None, build: Callable[[Head | None], LogEntry]
) -> Appended | Overtaken:
    base = parent
    while True:
        own = self._create(build(base))
        if own is not None:
            return Appended(own, own)
        head = self._follow(base)
        if head is None or head == base:
            return Overtaken(created=False)
        base = head


def _create_without_read_back(self: CheckpointLog, entry: LogEntry) -> Head | None:
    data, digest = seal(entry)
    result = self.storage.put_new(log_entry(entry.seq), data)
    return None if result is PutResult.EXISTS else Head(entry, digest)


def _without_waiting(self: Uploads, pending: PendingCheckpoint) -> None:
    pass


def _no(*_: object) -> bool:
    return False


_has_counted, _is_only_admin_between = checkpoint_log._has_counted, checkpoint_log._is_only_admin_between


def _counted_by_number(entry: LogEntry, head: Head) -> bool:
    return _has_counted(
        replace(entry, run=str(entry.generation)),
        Head(replace(head.entry, run=str(head.entry.generation)), head.sha256),
    )


def _any_kind_counted(entry: LogEntry, head: Head) -> bool:
    return (entry.run, entry.ordinal) == (head.entry.run, head.entry.ordinal)


def _without_own_objects(self: Collector, head: Head) -> dict[str, frozenset[str]]:
    return {}


def _commit_with_what_was_released(job: JobFormat, base: Head, author: Author, new: Commit, kept: Kept) -> LogEntry:
    entry = _commit(job, base, author, new, kept)
    return replace(entry, oldest_retained=kept.oldest, retained_before=kept.segment or base.entry.retained_before)


def _never_cut(link: RetainedLink | None, newest: int) -> RetainedLink | None:
    return link


def _past_by_seq(data: DataKey, head: LogEntry) -> bool:
    return data.generation < head.generation or (data.generation == head.generation and data.ordinal <= head.seq)


def _publish_on_another_handle(sink: PublishingSink, output: Output, log: CheckpointLog, head: Head) -> PublishedOutput:
    table = sink.open_table()
    decision = publishing.decide(table.token, output.known.checkpoint_id, output.checkpoint_id, head.entry.seq)
    if decision is publishing.Decision.ALREADY:
        return publishing._standing(table, table.version, output)
    if decision is not publishing.Decision.PUBLISH:
        raise publishing._refusal(decision, sink.uid, table, log)
    version = None
    while version is None:
        version = sink.open_table().commit(output.checkpoint_id, output.committables)
    return publishing._standing(table, version, output)


_pending_of = transitions.pending_of


def _newest_pending(head: Head) -> list[PendingOutput]:
    return [p for p in _pending_of(head) if p.checkpoint_id == head.checkpoint_id]


def _pin_checked_once(self: AdminEntries, ref: EntryRef, owner: str, reason: str, generation: int = 0) -> Pin:
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


def _claim_checked_once(self: JobRoot, parent: Head | None, note: str, adopt: Adoption | None) -> Appended | Overtaken:
    self.checkpoints.check_restorable(parent, adopt.checkpoint if adopt else None)
    return self.log.append(parent, lambda b: transitions.claim(self.job, b, self._author(note), adopt))


def _live_at_first_head(self: Collector) -> tuple[Head, frozenset[str]]:
    head = self.root.head()
    return head, self.live(head)


_adopt = JobRoot.adopt


def _go_back_on_top_of_anything(self: JobRoot, head: Head | None, adoption: Adoption, note: str = "") -> Head:
    return _adopt(self, self.head() if head else None, adoption, note)


_rewind_table = rewind._rewind_table


def _without_token_when_kept(sink: BoundSink, rewind: Rewind, log: CheckpointLog, planned_now: bool) -> PublishedOutput:
    intent = rewind.sinks[sink.uid]
    if intent.mode is SinkMode.RESTORE:
        return _rewind_table(sink, rewind, log, planned_now)
    version = sink.open_table().version
    return PublishedOutput(table_id=intent.table_id, version=version, checkpoint_id=rewind.seq)


def _version_of_the_intent(sink: BoundSink, table: SinkTable, rewind: Rewind, _: bool) -> int | None:
    intent = rewind.sinks[sink.uid]
    return None if intent.to_version == table.version else intent.to_version


def _later(root: JobRoot, sinks: object, head: Head, planned_now: bool = False) -> Head:
    return head


def _make_without_pin(root: JobRoot, order: SavepointSpec) -> StoredSavepoint:
    pin = root.admin.pin(order.checkpoint, root.writer, f"savepoint {order.name}", order.generation)
    root.admin.unpin(pin.id)
    return create._make_pinned(root, order, pin.id)


def _sweep_without_slot(root: JobRoot, folder: str, pins: set[str]) -> bool:
    storage = root.storage
    pin = get_or_none(storage, f"{folder}{STARTED}")
    if pin is None or pin.decode() in pins:
        return False
    if get_or_none(storage, f"{folder}{SAVEPOINT}") is not None:
        cleanup._sweep_complete(root, folder)
        return False
    storage.delete(b.key for b in storage.list(folder))
    return True


def _sweep_pins_first(root: JobRoot) -> list[str]:
    pins = {p.id for p in root.head().entry.pinned}
    places = [savepoint_file(b.key) for b in root.storage.list(SAVEPOINTS)]
    started = [place[0] for place in places if place and place[1] == STARTED]
    return [f for f in started if cleanup._sweep(root, savepoint_folder(f), pins)]


_claim, _commit = transitions.claim, transitions.commit


def _commit_without_requests(job: JobFormat, base: Head, author: Author, new: Commit, kept: Kept) -> LogEntry:
    return replace(_commit(job, base, author, new, kept), requests=[])


def _claim_with_all_pending(job: JobFormat, base: Head | None, author: Author, adopt: Adoption | None) -> LogEntry:
    entry = _claim(job, base, author, adopt)
    return replace(entry, pending=transitions.pending_of(base)) if base and adopt and adopt.sinks else entry


def _output_of_the_target_alone(context: RestoreContext, changes: Sequence[SinkChange]) -> runtime.OutputFilter:
    return lambda pending: pending.checkpoint_id <= context.last_published


class _Silent(runtime.Publisher):
    def publish_pending(self, head: Head, wanted: runtime.OutputFilter = lambda _: True) -> None:
        pass


def _intent_of_the_plan(context: RestoreContext, change: SinkChange) -> SinkIntent:
    then = change.now if change.then is None else change.then
    return SinkIntent(
        table_id=change.table_id, mode=change.mode, to_version=then if change.mode is SinkMode.RESTORE else None
    )


def _intent_without_version(context: RestoreContext, change: SinkChange) -> SinkIntent:
    then = None
    if change.mode is SinkMode.RESTORE:
        then = context.job.sinks[change.uid].open_table().plan_rewind(context.target.checkpoint_id).to_version
    return SinkIntent(table_id=change.table_id, mode=change.mode, to_version=then)


def _keep_whatever_was_answered(root: JobRoot, made: StoredSavepoint, given: Answer, took_ms: float = 0) -> None:
    root.storage.delete([f"{made.folder}{STARTED}"])


def _told_whatever_was_answered(storage: Storage, stored: StoredSavepoint) -> bool:
    return True


def _sweep_no_leftovers(storage: Storage, folder: str, files: dict[str, int]) -> bool:
    return False


_before_claim = StartChecks.before_claim


def _start_on_half_a_fork(self: StartChecks) -> CheckedHead:
    return _before_claim(self) if self.job.root.log.read_head() else CheckedHead()


def _never_retried(self: RequestServer, request: Request, point: CommittedPoint) -> bool:
    return False


MUTANTS: dict[str, Mutant] = {
    "no-list": Mutant(
        "an entry is acknowledged without the LIST after its creation",
        ((CheckpointLog, "append"),),
        _append_without_list,
        ("I6",),
    ),
    "no-read-back": Mutant(
        "a put whose answer was lost counts as done",
        ((CheckpointLog, "_create"),),
        _create_without_read_back,
        ("I6", "I9"),
    ),
    "links-only": Mutant(
        "a run takes a gap in the log, where ADMIN entries were collected, for a newer run",
        ((checkpoint_log, "_is_only_admin_between"),),
        _no,
        ("I9",),
    ),
    "run-by-number": Mutant(
        "a run knows itself again by its CLAIM's number, which another one has whose slot was collected",
        ((checkpoint_log, "_has_counted"),),
        _counted_by_number,
        ("I6",),
    ),
    "any-kind-counted": Mutant(
        "an ADMIN counts when the newest entry is of the same run and ordinal",
        ((checkpoint_log, "_has_counted"),),
        _any_kind_counted,
        ("I6",),
    ),
    "own-objects": Mutant(
        "a collection does not look at what the log entry itself names",
        ((Collector, "_needed_by_entry"),),
        _without_own_objects,
        ("I3",),
    ),
    "released-again": Mutant(
        "a COMMIT keeps what a command has released since it was drawn up",
        ((transitions, "commit"),),
        _commit_with_what_was_released,
        ("I3",),
        plan="busy",
    ),
    "uncut": Mutant(
        "a start that goes back keeps the checkpoints after its target that are in segments",
        ((transitions, "cut_after"),),
        _never_cut,
        ("R3",),
        plan="commands",
    ),
    "no-ordinals": Mutant(
        "files are named and collected by sequence number instead of ordinal",
        ((reachability, "is_past"),),
        _past_by_seq,
        ("I3", "I4"),
        name_by_seq=True,
    ),
    "two-handles": Mutant(
        "the sink's token is read from one handle, and another commits",
        ((runtime, "publish"),),
        _publish_on_another_handle,
        ("S1",),
    ),
    "no-pending": Mutant(
        "only the newest checkpoint's output is pending",
        ((transitions, "pending_of"), (runtime, "pending_of")),
        _newest_pending,
        ("S1", "S2"),
    ),
    "no-waiting": Mutant(
        "a checkpoint is committed before its files are stored",
        ((Uploads, "wait"),),
        _without_waiting,
        ("I3",),
        plan="asynchronous",
    ),
    # Mistakes that the simulator found in the code itself.
    "pin-checked-once": Mutant(
        "a pin is not checked again when it comes to stand on another ADMIN",
        ((AdminEntries, "pin"),),
        _pin_checked_once,
        ("I3",),
        plan="commands",
    ),
    "adoption-checked-once": Mutant(
        "a checkpoint to go back to is not checked again when the CLAIM comes to stand on an ADMIN",
        ((JobRoot, "_append_claim"),),
        _claim_checked_once,
        ("I3",),
        plan="commands",
    ),
    "collected-once": Mutant(
        "a collector takes what another let go and collected meanwhile for damage",
        ((Collector, "_live_at_head"),),
        _live_at_first_head,
        ("I3",),
        plan="busy",
    ),
    "go-back-anyway": Mutant(
        "a run goes back on top of whatever a newer run has done since",
        ((JobRoot, "adopt"),),
        _go_back_on_top_of_anything,
        ("S1", "R4"),
        plan="rewinds",
    ),
    "plain-none": Mutant(
        "a table with nothing to take back is kept as it is when its turn comes, with what was published meanwhile",
        ((sink_changes, "_intent"),),
        _intent_without_version,
        ("S1",),
        plan="rewinds",
    ),
    "unasked-savepoint": Mutant(
        "a savepoint stays though its request was withdrawn, or answered by another run",
        ((create, "finish_savepoint"), (cleanup, "finish_savepoint"), (request_server, "finish_savepoint")),
        _keep_whatever_was_answered,
        ("Q2",),
        plan="keeping",
    ),
    "untold-savepoint": Mutant(
        "a savepoint that a run made is given to whoever asks again, though its request was withdrawn",
        ((create, "is_confirmed"), (catalog, "is_confirmed")),
        _told_whatever_was_answered,
        ("V5",),
        plan="keeping",
    ),
    "late-copies": Mutant(
        "what a maker copies after its savepoint was given up, or a disposer leaves that is killed, stays",
        ((cleanup, "_sweep_leftovers"),),
        _sweep_no_leftovers,
        ("V2",),
        plan="keeping",
    ),
    "outrun-request": Mutant(
        "a request fails because the checkpoint was let go, or its run fenced, before the savepoint had its pin",
        ((RequestServer, "_is_retried"),),
        _never_retried,
        ("Q3",),
        plan="keeping",
    ),
    "kept-unpublished": Mutant(
        "a table that a restore keeps does not get what was committed and waits to be published",
        ((executor, "output_to_publish"),),
        _output_of_the_target_alone,
        ("S1", "S2"),
        plan="rewinds",
    ),
    "half-fork": Mutant(
        "a run begins with nothing in a fork that was killed before it had its state",
        ((StartChecks, "before_claim"),),
        _start_on_half_a_fork,
        ("R3",),
    ),
    # Rules of savepoints and restores taken out.
    "kept-token": Mutant(
        "a restore sets no token in tables that are kept",
        ((rewind, "_rewind_table"),),
        _without_token_when_kept,
        ("S1", "R5"),
        plan="rewinds",
    ),
    "blind-rewind": Mutant(
        "a table goes back to the version of the intent, whatever others have committed since",
        ((rewind, "_version_to_restore"),),
        _version_of_the_intent,
        ("S4",),
        plan="shared",
    ),
    "late-intent": Mutant(
        "a start leaves the intent of a restore for later",
        ((job_restore, "complete_rewind"),),
        _later,
        ("R5", "S1"),
        plan="rewinds",
    ),
    "no-savepoint-pin": Mutant(
        "a savepoint is made without a pin",
        ((create, "make_savepoint"), (savepoints, "make_savepoint"), (request_server, "make_savepoint")),
        _make_without_pin,
        ("I3", "Q3"),
        plan="keeping",
    ),
    "no-slot": Mutant(
        "a savepoint is swept without taking the slot of `_savepoint` first",
        ((cleanup, "_sweep"),),
        _sweep_without_slot,
        ("V1",),
        plan="given-up",
    ),
    "pins-first": Mutant(
        "a sweep reads the pins before it lists the savepoints",
        ((collector, "sweep_savepoints"),),
        _sweep_pins_first,
        ("V4",),
        plan="keeping",
    ),
    "forgotten-requests": Mutant(
        "a commit does not carry on which restore requests were carried out",
        ((transitions, "commit"),),
        _commit_without_requests,
        ("R1", "R2"),
        plan="rewinds",
    ),
    "unpublished-target": Mutant(
        "a restore does not publish what belongs to its target before the intent",
        ((executor, "Publisher"),),
        _Silent,
        ("R3",),
        plan="rewinds",
    ),
    "pending-behind": Mutant(
        "an intent does not drop output that is pending behind its target",
        ((transitions, "claim"),),
        _claim_with_all_pending,
        ("S1",),
        plan="rewinds",
    ),
    "early-version": Mutant(
        "a restore goes back to the version of its plan, looked up before pending output was published",
        ((sink_changes, "_intent"),),
        _intent_of_the_plan,
        ("S1",),
        plan="rewinds",
    ),
}
