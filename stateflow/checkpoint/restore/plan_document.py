"""What a restore would do, as a document that a person reads and a later step carries out exactly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from stateflow.checkpoint.documents import Manifest, SinkMode
from stateflow.checkpoint.files import state_bytes
from stateflow.checkpoint.log import Head
from stateflow.errors import ConfigError
from stateflow.state.handles import Document

_FIRST = 3
"""As many commits by others are named; the plan itself has them all."""
_LEFT = (
    "the job has no such sink, so its table keeps what came since; a version that has it would write those rows a "
    "second time"
)
_NOT_HELD = "it does not have everything any more that came since: those rows do not come again"
_RUN_OPEN = (
    "of the job has not ended in good order: it works, was killed, or failed. A checkpoint that it commits makes this "
    "plan outdated; otherwise carrying the plan out ends it"
)
_KEPT = "tables are kept: what comes of rows that are read a second time is in them a second time"


class StateAction(StrEnum):
    """What becomes of an operator's state."""

    MATCHED = "matched"
    NEW = "new"
    DROPPED = "dropped"


class StateChange(Document, frozen=True, kw_only=True):
    """One operator: its state in the target, and in the job as it is now."""

    uid: str
    action: StateAction
    bytes: int = 0
    """Of the state in the target."""
    bytes_now: int | None = None
    """Of the state in the newest checkpoint; None when that is not known."""
    from_parallelism: int = 0
    to_parallelism: int = 0


class SourceChange(Document, frozen=True, kw_only=True):
    """One source: where it stands, and where it would go back to."""

    uid: str
    now: str
    then: str
    held: bool | None = None
    """Whether the source still has what was read in between; None when it cannot tell."""
    files: int | None = None
    """Files that were read in between, and will be read again; None when the source reads none, or cannot tell."""


class SinkChange(Document, frozen=True, kw_only=True):
    """One sink's table."""

    uid: str
    mode: SinkMode
    table_id: str
    table: str = ""
    """Its path or address; empty in plans of older versions, and of what has none."""
    now: int
    """Version of the table when the plan was made."""
    then: int | None = None
    """Version that it would go back to; None when its content stays."""
    rows_removed: int | None = 0
    rows_returned: int | None = 0
    others: tuple[str, ...] = ()
    """Commits by others that would be undone with it."""


class SinkLeft(Document, frozen=True, kw_only=True):
    """A table with output behind the target, whose sink the job does not have: it stays as it is."""

    uid: str
    table_id: str
    checkpoint_id: int
    """The newest checkpoint whose output it has or is to get, as the log knows."""


class SavedCheckpoint(Document, frozen=True, kw_only=True):
    """A savepoint, and the checkpoint that it keeps."""

    checkpoint_id: int
    savepoint: str


class Proposal(Document, frozen=True, kw_only=True):
    """A restore's plan. Execution does exactly this, or refuses."""

    job: str
    job_uuid: str
    head: int
    """Sequence number of the newest entry when the plan was made."""
    generation: int
    ordinal: int
    checkpoint_id: int
    """Where the job stands."""
    target: str
    """As it was asked for."""
    label: str
    target_checkpoint: int
    target_at: str
    target_sha256: str
    """Of the checkpoint's entry, or of the savepoint's document."""
    savepoint: str = ""
    """URI of the savepoint; empty for a checkpoint."""
    foreign: bool = False
    of_job: str = ""
    """Name and uuid of the other job whose savepoint it is."""
    mode: SinkMode
    parallelism: int
    operators: list[str]
    """Uids of the job's keyed operators."""
    states: list[StateChange]
    sources: list[SourceChange]
    sinks: list[SinkChange]
    left: list[SinkLeft] = []
    dropped_checkpoints: list[int] = []
    """Kept checkpoints that the restore drops: only their savepoints, if any, can be gone back to afterwards."""
    saved: list[SavedCheckpoint] = []
    """Savepoints of those checkpoints."""
    rows_again: int | None = None
    """Rows that were read since the target, and will be read again; None when the job has no records of them."""
    run_open: bool = False
    """Whether the job's newest run had not ended: it worked, or it was killed."""
    made_at: str
    job_file: str = ""
    """Path of the job file that the plan was made with; empty in plans of older versions."""
    job_file_changed_at: str = ""
    """When that file was last modified."""

    @property
    def digest(self) -> str:
        """Tells this plan from every other one, in a request's id."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


def state_changes(
    manifest: Manifest, wanted: set[str], parallelism: int, drop: frozenset[str]
) -> list[StateChange]:
    """Compares a target's operators with the job's.

    Raises ConfigError for state without an operator that is not named in `drop`, and for a name in `drop` that the
    target has no state of.
    """
    stored = {o.uid: o for o in manifest.operators if o.has_state}
    nameless = sorted(stored.keys() - wanted - drop)
    if nameless:
        raise ConfigError("the target has state of operators that the job does not have", hint="give the operators "
                          "their old uids back, or name the state that is to be dropped: --drop UID",
                          uids=nameless)  # fmt: skip
    unknown = sorted(drop - stored.keys())
    if unknown:
        raise ConfigError("there is no state to drop under this uid", hint=f"the target has state of {sorted(stored)}",
                          uids=unknown)  # fmt: skip
    changes = []
    for uid in sorted(stored.keys() | wanted):
        state = stored.get(uid)
        size = state_bytes([state]) if state else 0
        action = (
            StateAction.NEW if state is None else StateAction.DROPPED if uid in drop else StateAction.MATCHED
        )
        changes.append(StateChange(
            uid=uid, action=action, bytes=size, from_parallelism=state.parallelism if state else 0,
            to_parallelism=0 if action is StateAction.DROPPED else parallelism,
        ))  # fmt: skip
    return changes


@dataclass(frozen=True)
class Caution:
    """Something that a person should know before a plan is carried out.

    Attributes:
        about: what it is about: a table, a source; empty when that is the whole plan.
    """

    about: str
    says: str


def cautions(plan: Proposal) -> list[Caution]:
    """All that a person should know about a plan, the worst first."""
    found = [Caution(f"table of {s.uid}", _undone_with_it(s.others)) for s in plan.sinks if s.others]
    found += [Caution(f"table of {left.uid}", _left(left, plan)) for left in plan.left]
    found += [Caution(f"source {s.uid}", _NOT_HELD) for s in plan.sources if s.held is False]
    dropped = ", ".join(s.uid for s in plan.states if s.action is StateAction.DROPPED)
    if dropped:
        found.append(Caution(f"state of {dropped}", "dropped; the target still has it"))
    if any(s.mode is SinkMode.KEEP for s in plan.sinks):
        found.append(Caution("", _KEPT))
    if plan.foreign:
        found.append(Caution("", f"the savepoint is another job's: {plan.of_job}".removesuffix(": ")))
    if plan.run_open:
        found.append(Caution("", f"generation {plan.generation} {_RUN_OPEN}"))
    return found + _out_of_reach(plan)


def _left(left: SinkLeft, plan: Proposal) -> str:
    """What happens to a table whose sink the job does not have."""
    sharing = [s.uid for s in plan.sinks if left.table_id and s.table_id == left.table_id]
    if not sharing:
        return _LEFT
    return (
        f"the job has no such sink, and {sharing[0]} writes to the same table, which becomes what the plan says for "
        f"{sharing[0]}; rows of {left.uid} since the target that are still in it are written a second time"
    )


def replayed(plan: Proposal) -> str:
    """What happens to the input and the output since the target, in a sentence or two."""
    files = [c.files for c in plan.sources if c.files is not None]
    rows = "an unknown number of rows" if plan.rows_again is None else f"{plan.rows_again:,} rows"
    read = f"{rows} in {_counted(sum(files), 'file')}" if files else rows
    again = f"The next run reads again what the sources got since then: {read}."
    if not any(s.mode is SinkMode.RESTORE for s in plan.sinks):
        return again
    held = [c.held for c in plan.sources]
    if all(held):
        return f"{again} The tables' rows since then are removed now, and written again by that run."
    if False in held:
        return (f"{again} The tables' rows since then are removed now; not all of them are written again, because a "
                "source no longer holds all of its input.")  # fmt: skip
    return (f"{again} The tables' rows since then are removed now, and written again as far as the sources still hold "
            "their input, which cannot be checked here.")  # fmt: skip


def _out_of_reach(plan: Proposal) -> list[Caution]:
    """What happens to the checkpoints after the target."""
    saved = {s.checkpoint_id: s.savepoint for s in plan.saved}
    gone = [str(number) for number in plan.dropped_checkpoints if number not in saved]
    named = [f"{number} ({name})" for number, name in sorted(saved.items())]
    found = []
    if gone:
        found.append(f"these checkpoints can no longer be restored: {', '.join(gone)}")
    if named:
        found.append(f"these checkpoints can be restored by their savepoints only: {', '.join(named)}")
    return [Caution("", f"after this restore, {text}") for text in found]


def _undone_with_it(others: tuple[str, ...]) -> str:
    more = f"; and {len(others) - _FIRST:,} more" if len(others) > _FIRST else ""
    return f"{_counted(len(others), 'commit')} by others would be undone as well: {'; '.join(others[:_FIRST])}{more}"


def _counted(number: int, thing: str) -> str:
    return f"1 {thing}" if number == 1 else f"{number:,} {thing}s"


def is_outdated(proposal: Proposal, head: Head) -> bool:
    """Whether the job has moved since the plan was made. Pins and the like, beside a run, are no move."""
    then = (proposal.generation, proposal.ordinal, proposal.checkpoint_id)
    return (head.entry.generation, head.entry.ordinal, head.checkpoint_id) != then
