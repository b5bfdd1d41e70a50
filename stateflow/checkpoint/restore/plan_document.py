"""The plan of a restore: a document that a user reviews and that is then executed exactly.

It has the changes of state, sources, sinks and the job's graph, and the checkpoints and rows that run again.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
from msgspec.structs import FieldInfo

from stateflow.checkpoint.history import read_history, read_pending_records
from stateflow.checkpoint.log.checkpoint_log import Head, is_ancestor, lineage_of, lineage_ranges
from stateflow.checkpoint.log.documents import (
    COMPLETED,
    ActionRecord,
    CheckpointRecord,
    Manifest,
    OperatorState,
    Record,
    SinkMode,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.restore.graph_map import DroppedState, GraphAssignment, StateMove
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.errors import ConfigError
from stateflow.outputs import Timestamp
from stateflow.state.handles import Document


@dataclass(frozen=True)
class GraphChanges:
    """Decisions of the user about a graph that has changed.

    Attributes:
        maps: operators, states and sources with new names, each as ``OLD=NEW``; see `graph_map`.
        sources: positions of sources, each as ``UID=POSITION``.
    """

    maps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


class GraphPlan(Document, frozen=True, kw_only=True):
    """The part of a restore plan about a graph that has changed. An execution must come to the same result."""

    maps: list[str] = []
    """The mappings as given."""
    sources: list[str] = []
    """The positions of sources as given."""
    drop: list[str] = []
    """The operators and states to drop, as given."""
    positions_at: Timestamp | None = None
    """The time that ``latest`` refers to; None without positions."""
    moves: list[StateMove] = []
    """States that get another operator or name."""
    dropped: list[DroppedState] = []
    """States that are not restored, of operators that are restored otherwise."""
    old_max_parallelism: int | None = None
    """Number of key groups of the target's keyed state; None for the number of the job."""
    max_parallelism: int | None = None
    """The number that the state gets; None for the number of the target."""


class SourceAction(StrEnum):
    """Actions of a restore on the position of a source."""

    KEPT = "kept"
    NEW = "new"
    RESET = "reset"
    REPLACED = "replaced"
    """The position is kept although the source reads other data."""
    REMOVED = "removed"


_CAUTIONS = {
    SourceAction.RESET: "its position is set. Input after the new position that was processed up to the target is "
    "processed again, and its output is written a second time; input before it that was not processed is skipped, and "
    "its output is missing. Rows that are older than the watermark of an operator are late",
    SourceAction.REPLACED: "it reads other data than before, from the same position: if the position does not mean the "
    "same place there, input is lost or processed twice",
    SourceAction.NEW: "the target has no position of it: it begins at its start",
    SourceAction.REMOVED: "the job does not have it: its position is dropped, and input that was not read yet is never "
    "read",
}


def source_caution(action: SourceAction) -> str | None:
    """Returns the caution about a change of a source's position; None if there is none."""
    return _CAUTIONS.get(action)


def renamed_caution(removed: Sequence[str], new: Sequence[str]) -> str | None:
    """Returns the caution about sources that may have been renamed; None if that is not possible.

    Args:
        removed: uids of the sources that the job no longer has.
        new: uids of the sources that the target does not have.
    """
    if not removed or not new:
        return None
    return (
        f"if a new source, {', '.join(new)}, is {removed[0]} under another uid, its input is processed a second time; "
        f"to keep the position, plan with --map {removed[0]}={new[0]}"
    )


def key_groups_caution(graph: GraphPlan) -> str | None:
    """Returns the caution about state that gets another number of key groups; None if it keeps that of the target."""
    if graph.max_parallelism == graph.old_max_parallelism:
        return None
    return (
        f"gets {graph.max_parallelism:,} key groups instead of {graph.old_max_parallelism:,}: the restore writes all "
        "of it again, which takes longer than a copy, and local disk of its size"
    )


def describe_moves(graph: GraphPlan) -> list[str]:
    """Returns one line for each state that gets another operator or name, or is dropped.

    States that an operator gets under their names are one line.
    """
    whole: dict[tuple[str, str], list[str]] = {}
    for move in graph.moves:
        if move.old_state == move.new_state:
            whole.setdefault((move.old, move.new), []).append(move.old_state)
    lines = [f"{old} → {new}: {', '.join(names)}" for (old, new), names in whole.items()]
    lines += [
        f"{move.old}.{move.old_state} → {move.new}.{move.new_state}"
        for move in graph.moves
        if move.old_state != move.new_state
    ]
    return lines + [f"{state.uid}.{state.state}: dropped" for state in graph.dropped]


_FIRST = 3
"""Number of commits by other writers that a caution lists; the plan itself contains all."""
_SINK_REMOVED = (
    "the job does not have this sink, so its rows since the target stay; a version of the job with the sink would "
    "write them a second time"
)
_NOT_HELD = "it no longer has all input since the target: the missing rows cannot be read again"
_TOPIC = (
    "records of a topic cannot be removed: the restore is refused if any were published after the target, unless the "
    "sink keeps its output"
)
_UNREAD = (
    "it was not read, because only the job file says where it is: the plan that is made with the job file shows what "
    "the restore removes, and whether it would undo what others have written"
)
_RUN_OPEN = (
    "the newest run has not ended cleanly: it is running, was killed, or failed. A checkpoint that it commits makes "
    "this plan outdated; otherwise executing the plan ends it"
)
RESTORE_OPEN = "a restore has claimed the job and has not ended: it is running, or was killed"
_CLAIMED = (
    "the job claims the savepoint, and deletes it once the restored state is no longer one of its retained checkpoints"
)
_WRITTEN_AGAIN = "output of input that is read again is written to {} a second time"


class StateAction(StrEnum):
    """Actions of a restore on an operator's state."""

    MATCHED = "matched"
    NEW = "new"
    DROPPED = "dropped"


class StateChange(Document, frozen=True, kw_only=True):
    """The state of one operator in the target and in the current job."""

    uid: str
    action: StateAction
    target_bytes: int = 0
    """Size of the state in the target."""
    current_bytes: int | None = None
    """Size of the state in the newest checkpoint; None when it is not known."""
    olds: list[str] = []
    """Uids of the operators in the target that the state comes from; empty for that of the same uid."""
    current_parallelism: int | None = None
    """Parallelism in the target; None for new state."""
    target_parallelism: int | None = None
    """Parallelism in the job; None for dropped state."""


class SourceChange(Document, frozen=True, kw_only=True):
    """The current and the restored position of one source."""

    uid: str
    current_offset: object = None
    """Its position at the newest checkpoint, as JSON; None for none."""
    target_offset: object = None
    """The position that it gets, as JSON; None for its start."""
    available: bool | None = None
    """Whether the source still has the input in between; None when the source cannot determine it."""
    files: int | None = None
    """Number of files in between, which will be read again; None when the source reads no files, or does not know."""
    action: SourceAction = SourceAction.KEPT
    old: str | None = None
    """Its uid in the target if that differs."""


class SinkKind(StrEnum):
    """Kinds of sinks, by where they write to."""

    TABLE = "table"
    TOPIC = "topic"
    FILES = "files"
    PRINTED = "standard output"
    FUNCTION = "function"
    UNKNOWN = "sink"
    """A sink of another class."""

    @classmethod
    def of(cls, name: str) -> SinkKind:
        """Returns the kind of a sink by the name of its class."""
        return _KINDS.get(name, cls.UNKNOWN)


_KINDS = {
    **dict.fromkeys(("DeltaSink", "IcebergSink", "PostgresSink"), SinkKind.TABLE),
    "KafkaSink": SinkKind.TOPIC,
    "FileSink": SinkKind.FILES,
    "PrintSink": SinkKind.PRINTED,
    "ForeachBatchSink": SinkKind.FUNCTION,
}


class SinkChange(Document, frozen=True, kw_only=True):
    """The current and the restored version of one sink's table."""

    uid: str
    kind: SinkKind = SinkKind.UNKNOWN
    """What it writes to; ``sink`` if that is not known."""
    mode: SinkMode
    table_id: str
    table: str | None
    """Its path or address; None for sinks without one."""
    current_version: int | None
    """Version of the table when the plan was created; None when it is not known."""
    target_version: int | None = None
    """Version to restore; None when the content stays, and when it is not known."""
    read: bool = True
    """Whether the table was read. Otherwise, the versions are those of the log, and other writers are not known."""
    rows_removed: int | None = 0
    rows_returned: int | None = 0
    rows_written_since: int | None = None
    """Rows that the sink has written with the checkpoints since the target: the rows that a restore removes, if it only
    appends, and at most so many otherwise. Of a target that a restore has undone, those since both histories parted.
    None if records are missing, or if a restore since then has kept rows of checkpoints that it has undone."""
    others: tuple[str, ...] = ()
    """Commits by other writers that would be undone as well."""


def rows_removed_text(sink: SinkChange) -> str:
    """Returns how many rows a restore removes from a sink: exactly, at most, or that it is not known."""
    if _stays(sink):
        return "0"
    if sink.rows_removed is not None:
        return f"{sink.rows_removed:,}"
    return "unknown" if sink.rows_written_since is None else f"at most {sink.rows_written_since:,}"


class SinkLeft(Document, frozen=True, kw_only=True):
    """A table with output after the target whose sink the job does not have; it stays unchanged."""

    uid: str
    table_id: str
    checkpoint_id: int
    """The newest checkpoint with published or pending output in it, according to the log."""


class SavedCheckpoint(Document, frozen=True, kw_only=True):
    """A savepoint and its checkpoint."""

    checkpoint_id: int
    savepoint: str


class RestorePlan(Document, frozen=True, kw_only=True):
    """The plan of a restore. Its execution does exactly this, or fails."""

    job: str
    job_uuid: str
    head_seq: int
    """Sequence number of the newest entry when the plan was created."""
    generation: int
    ordinal: int
    checkpoint_id: int
    """The job's current checkpoint."""
    target: str
    """The target as given by the user."""
    target_label: str
    target_checkpoint_id: int
    target_committed_at: Timestamp
    """When the target's checkpoint was committed."""
    target_sha256: str
    """Hash of the checkpoint's entry, or of the savepoint's document."""
    savepoint_path: str | None = None
    """URI of the savepoint; None for a checkpoint."""
    savepoint_made_at: Timestamp | None = None
    """When the savepoint was made: after its checkpoint, by any time if no run was active; None for a checkpoint."""
    undone: bool = False
    """Whether an earlier restore has undone the target: the job's current state does not descend from it."""
    foreign: bool = False
    parent_job: str | None = None
    """Name of the other job whose savepoint it is."""
    parent_job_uuid: str | None = None
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    """Who owns the savepoint after the restore; a checkpoint is never claimed."""
    mode: SinkMode
    parallelism: int
    operators: list[str]
    """Uids of the job's keyed operators."""
    states: list[StateChange]
    sources: list[SourceChange]
    sinks: list[SinkChange]
    left: list[SinkLeft] = []
    dropped_checkpoint_ids: list[int] = []
    """Kept checkpoints that the restore drops: afterwards only their savepoints, if any, can be restored."""
    saved: list[SavedCheckpoint] = []
    """Savepoints of those checkpoints."""
    rows_again: int | None = None
    """Rows that were read since the target, and will be read again; None when the job has no records of them."""
    checkpoints_after: int | None = None
    """Checkpoints since the target, whose output kept tables have; None when the job has no records of them."""
    run_open: bool = False
    """Whether the job's newest run had not ended cleanly: it was running, was killed, or failed."""
    restore_open: bool = False
    """Whether another restore had claimed the job and not changed it yet: it was running, or was killed."""
    graph: GraphPlan
    """Changes of the graph."""
    made_at: Timestamp
    job_file: str | None = None
    """Path of the job file that the plan was created with."""
    job_file_changed_at: Timestamp | None = None
    """When that file was last modified."""
    code_hash: str | None = None
    """Hash of the job's code that the plan was created with."""
    code_difference: str | None = None
    """A sentence if other code made the target; None if none is known."""
    job_file_difference: str | None = None
    """A unified diff of the job file against the newest run's whose text is stored, of at most 64 kB; empty if they are
    equal, None if it is not known."""

    @property
    def digest(self) -> str:
        """A hash of the fields that are executed, or that the approver decides on, for the id of a request."""
        return hashlib.sha256(msgspec.json.encode(_decided(self), order="deterministic")).hexdigest()[:32]


ONLY_SHOWN: Mapping[type[Document], Set[str]] = {
    SinkChange: {"kind", "rows_written_since"},
    StateChange: {"current_bytes", "current_parallelism"},
}
"""Labels and bounds of a plan, which its execution does not use."""


def _decided(value: object) -> object:
    """Returns what a digest has of a part of a plan.

    A field with its default is left out: a version of stateflow that adds a field has the same digest of an earlier
    version's plan, which may have been approved before an upgrade.
    """
    if isinstance(value, list | tuple):
        return [_decided(each) for each in value]
    if not isinstance(value, Document):
        return value
    shown = ONLY_SHOWN.get(type(value), set())
    found = {each.name: (each, getattr(value, each.name)) for each in msgspec.structs.fields(value)}
    return {n: _decided(own) for n, (field, own) in found.items() if n not in shown and own != _default_of(field)}


def _default_of(field: FieldInfo) -> object:
    # NODEFAULT equals no value of a field.
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


LARGEST_DIFFERENCE = 64_000
"""Size of the largest difference of two job files, in bytes."""


_LARGEST_COMPARED = 256 << 10
"""Size of the largest text of which a difference is made: it takes time that grows with the square of the lines."""


def difference_of_texts(before: bytes, after: bytes, names: tuple[str, str]) -> str | None:
    """Returns a unified diff of at most `LARGEST_DIFFERENCE` bytes, whose last line says if it was cut.

    Returns an empty text if both are equal, and None for texts that are too large to be compared.

    Args:
        before: the earlier text.
        after: the later one.
        names: what they are called in its first lines.
    """
    if before == after:
        return ""
    if max(len(before), len(after)) > _LARGEST_COMPARED:
        return None
    old, new = (data.decode(errors="replace").splitlines() for data in (before, after))
    found: list[str] = []
    left = LARGEST_DIFFERENCE - len(_CUT.encode())
    for line in difflib.unified_diff(old, new, *names, lineterm=""):
        left -= len(line.encode()) + 1
        if left < 0:
            return "\n".join([*found, _CUT])
        found.append(line)
    # The end of the last line is no difference that a reader looks for, but the files are not equal.
    return "\n".join(found) or "\\ only ends of lines differ"


_CUT = "\\ the rest of the difference is left out"


class PlanPart(StrEnum):
    """Parts of a plan that can be compared with those of a plan that was made without the job file."""

    TARGET = "target"
    HEAD = "newest checkpoint"
    STATE = "state"
    SOURCES = "sources"
    SINKS = "sinks"
    VERSIONS = "versions of tables"
    KEPT = "kept tables"
    CLAIM = "claim mode"


def describe_parts(plan: RestorePlan) -> dict[PlanPart, str]:
    """Returns the parts of a plan in words; without the versions of tables if these are not known."""
    sinks = [f"{s.uid}: {s.mode.value}" for s in plan.sinks]
    restored = [s for s in plan.sinks if s.mode is SinkMode.RESTORE]
    kept = [s.uid for s in plan.sinks if s.mode is SinkMode.KEEP] + [left.uid for left in plan.left]
    moved = describe_moves(plan.graph)
    found = {
        PlanPart.TARGET: f"{plan.target_label}, SHA-256 {plan.target_sha256}",
        PlanPart.HEAD: f"checkpoint {plan.checkpoint_id} in generation {plan.generation}",
        PlanPart.STATE: _joined([*(f"{s.uid}: {s.action.value}" for s in plan.states), *moved]),
        PlanPart.SOURCES: _joined(
            f"{s.old} → {s.uid}: {s.action.value}" if s.old else f"{s.uid}: {s.action.value}" for s in plan.sources
        ),
        PlanPart.SINKS: _joined([f"mode {plan.mode.value}", *sinks]),
        PlanPart.KEPT: _joined(sorted(kept)),
        PlanPart.CLAIM: plan.claim_mode.value,
    }
    if all(s.read or s.target_version is not None or s.rows_removed == 0 for s in restored):
        versions = (f"{s.uid}: {'unchanged' if s.target_version is None else s.target_version}" for s in restored)
        found[PlanPart.VERSIONS] = _joined(versions)
    return found


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(texts) or "none"


def expected_plan_of(plan: RestorePlan) -> str:
    """Returns a text that a later plan is compared with: the begin of a hash of each part that this plan knows."""
    parts = describe_parts(plan)
    return ",".join(f"{part.name.lower()}={_hash_of(text)}" for part, text in parts.items())


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differing_parts(plan: RestorePlan, expected: str) -> dict[PlanPart, str]:
    """Returns the parts of a plan, in words, that are not those of an expected plan.

    Args:
        plan: the plan.
        expected: what `expected_plan_of` has returned for the other plan.

    Raises ConfigError for a text that it never returns.
    """
    given = dict(re.findall(r"([a-z]+)=([0-9a-f]{12})(?:,|$)", expected))
    known = {part.name.lower(): part for part in PlanPart}
    if not given.keys() <= known.keys() or expected != ",".join(f"{name}={text}" for name, text in given.items()):
        raise ConfigError(
            "the expected plan is not one that the pages have made",
            hint="leave it empty, or take it from the page that shows the plan",
            expected_plan=expected[:200],
        )
    parts = describe_parts(plan)
    wanted = {known[name]: text for name, text in given.items()}
    return {part: parts.get(part, "none") for part, text in wanted.items() if _hash_of(parts.get(part, "")) != text}


def state_changes(
    manifest: Manifest, wanted: set[str], parallelism: int, assignment: GraphAssignment
) -> list[StateChange]:
    """Compares the operators of a target and of the job.

    Args:
        manifest: manifest of the target.
        wanted: uids of the job's keyed operators.
        parallelism: parallelism of the job.
        assignment: where the target's states are restored.
    """
    stored = {o.uid: o for o in manifest.operators if o.has_state}
    origins = {uid: sorted({move.old for move in moves}) for uid, moves in assignment.by_operator.items()}
    changes = [_kept_state(uid, [stored[old] for old in origins[uid]], parallelism) for uid in origins]
    changes += [
        StateChange(uid=uid, action=StateAction.NEW, target_parallelism=parallelism) for uid in wanted - origins.keys()
    ]
    used = {old for olds in origins.values() for old in olds}
    changes += [
        StateChange(
            uid=uid, action=StateAction.DROPPED, target_bytes=state_bytes([o]), current_parallelism=o.parallelism
        )
        for uid, o in stored.items()
        if uid not in used
    ]
    return sorted(changes, key=lambda change: (change.uid, change.action))


def _kept_state(uid: str, origins: Sequence[OperatorState], parallelism: int) -> StateChange:
    olds = [operator.uid for operator in origins]
    return StateChange(
        uid=uid,
        action=StateAction.MATCHED,
        target_bytes=state_bytes(origins),
        olds=[] if olds == [uid] else olds,
        current_parallelism=origins[0].parallelism,
        target_parallelism=parallelism,
    )


@dataclass(frozen=True)
class Caution:
    """A warning that a user should read before a plan is executed.

    Attributes:
        about: the sink, source or state concerned; empty for the whole plan.
        text: the warning.
    """

    about: str
    text: str


def cautions(plan: RestorePlan) -> list[Caution]:
    """Returns the cautions of a plan, the most severe first."""
    found = [Caution(_name_of(s), _other_commits(s.others)) for s in plan.sinks if s.others]
    found += [Caution(f"sink {left.uid}", _removed_sink(left, plan)) for left in plan.left]
    unread = [s for s in plan.sinks if not s.read and s.mode is SinkMode.RESTORE and s.rows_removed != 0]
    topics, tables = ([s for s in unread if (s.kind is SinkKind.TOPIC) is wanted] for wanted in (True, False))
    found += [
        Caution(", ".join(map(_name_of, sinks)), text) for sinks, text in ((topics, _TOPIC), (tables, _UNREAD)) if sinks
    ]
    found += [Caution(f"source {s.uid}", _NOT_HELD) for s in plan.sources if s.available is False]
    dropped = ", ".join(s.uid for s in plan.states if s.action is StateAction.DROPPED)
    if dropped:
        found.append(Caution(f"state of {dropped}", "dropped; the target still has it"))
    if plan.graph.dropped:
        states = ", ".join(f"{state.uid}.{state.state}" for state in plan.graph.dropped)
        found.append(Caution(f"state {states}", "dropped; the target still has it"))
    found += _source_cautions(plan)
    key_groups = key_groups_caution(plan.graph)
    if key_groups:
        found.append(Caution("keyed state", key_groups))
    found += _kept_tables(plan)
    if plan.foreign:
        found.append(Caution("", f"the savepoint is another job's: {plan.parent_job} {plan.parent_job_uuid}"))
    if plan.claim_mode is ClaimMode.CLAIM:
        found.append(Caution("", f"{_CLAIMED}: {plan.savepoint_path}"))
    if plan.run_open:
        found.append(Caution("", _RUN_OPEN))
    if plan.restore_open:
        found.append(Caution("", f"{RESTORE_OPEN}; executing this plan ends it"))
    return found + _lost_checkpoints(plan)


def _name_of(sink: SinkChange) -> str:
    return f"sink {sink.uid}" if sink.kind is SinkKind.UNKNOWN else f"{sink.kind} of {sink.uid}"


def _kept_tables(plan: RestorePlan) -> list[Caution]:
    """Returns the cautions about sinks that keep their content: one for all of them, or one for each."""
    kept = [s for s in plan.sinks if s.mode is SinkMode.KEEP]
    follow = ""
    if plan.checkpoints_after:
        follow = f"; it has that of {_counted(plan.checkpoints_after, 'checkpoint')} after the target"
    if not kept:
        return []
    if len(kept) == len(plan.sinks):
        what = "tables" if all(s.kind is SinkKind.TABLE for s in kept) else "sinks"
        text = f"{what} keep their content: {_WRITTEN_AGAIN.format('them')}{follow.replace('it has', 'they have')}"
        return [Caution("", text)]
    return [Caution(_name_of(s), f"kept: {_WRITTEN_AGAIN.format('it')}{follow}") for s in kept]


def _source_cautions(plan: RestorePlan) -> list[Caution]:
    """Returns the cautions about positions that are not those of the target."""
    found = []
    for source in plan.sources:
        text = source_caution(source.action)
        if text is not None:
            found.append(Caution(f"source {source.uid}", text))
    removed, new = (
        [s.uid for s in plan.sources if s.action is action] for action in (SourceAction.REMOVED, SourceAction.NEW)
    )
    renamed = renamed_caution(removed, new)
    return found + ([Caution("", renamed)] if renamed else [])


def _removed_sink(left: SinkLeft, plan: RestorePlan) -> str:
    """Returns the caution for output whose sink the job does not have."""
    sharing = [s.uid for s in plan.sinks if left.table_id and s.table_id == left.table_id]
    if not sharing:
        return _SINK_REMOVED
    return (
        f"the job does not have this sink, and {sharing[0]} writes to the same table, which is restored as planned for "
        f"{sharing[0]}; rows of {left.uid} since the target that are still in it are written a second time"
    )


def describe_replay(plan: RestorePlan) -> str:
    """Returns what happens to input and output since the target, in a few sentences."""
    if plan.undone:
        return _describe_undone(plan)
    files = [c.files for c in plan.sources if c.files is not None]
    rows = "an unknown number of rows" if plan.rows_again is None else _counted(plan.rows_again, "row")
    read = f"{rows} in {_counted(sum(files), 'file')}" if files else rows
    again = f"The next run reads the input since the target again: {read}."
    if plan.checkpoints_after == 0:
        again = "No checkpoint follows the target, so that the next run reads no input again."
    if any(c.action is SourceAction.RESET for c in plan.sources):
        again += " Sources whose position is set read from there instead."
    kept = ", ".join(s.uid for s in plan.sinks if _stays(s))
    restored = ", ".join(s.uid for s in plan.sinks if not _stays(s) and s.rows_removed != 0)
    stay = f" Rows that were written to {kept} after the target stay." if kept else ""
    if not restored:
        return f"{again}{stay}"
    to = f" to {restored}" if kept else ""
    removed = f"{again} The restore removes the rows that were written{to} after the target"
    held = [c.available for c in plan.sources if c.action is not SourceAction.NEW]
    if all(held):
        text = f"{removed}; that run writes them again."
    elif False in held:
        text = f"{removed}; not all of them are written again, because a source no longer holds all of its input."
    else:
        text = (
            f"{removed}. They are written again as far as the sources still hold their input, which cannot be checked "
            "here."
        )
    return f"{text}{stay}"


def _stays(sink: SinkChange) -> bool:
    """Returns whether a restore removes no rows of a sink: those that were printed, sent or given away remain."""
    return sink.mode is SinkMode.KEEP or sink.kind in (SinkKind.PRINTED, SinkKind.FUNCTION, SinkKind.TOPIC)


def _describe_undone(plan: RestorePlan) -> str:
    """Returns what happens to input and output for a target that does not precede the current state.

    What the job has read since then is not the input after the target's positions, and is not counted.
    """
    text = (
        "An earlier restore has undone this target: the current state does not descend from it. The next run reads the "
        "input after the target's positions, which may be before or after the current ones."
    )
    restored = ", ".join(s.uid for s in plan.sinks if not _stays(s))
    if restored:
        text += f" {restored}: the rows of the current state are removed, and the rows of the target return."
    kept = ", ".join(s.uid for s in plan.sinks if _stays(s))
    return f"{text} Rows that were written to {kept} stay." if kept else text


def describe_target(plan: RestorePlan) -> str:
    """Returns when the target's checkpoint was committed and, for a savepoint, when that was made."""
    committed = f"committed at {_in_utc(plan.target_committed_at)}"
    made_at = plan.savepoint_made_at
    return f"made at {_in_utc(made_at)} of a checkpoint {committed}" if made_at else committed


def _in_utc(timestamp: str) -> str:
    return f"{timestamp[:19].replace('T', ' ')} UTC"


def describe_graph(plan: RestorePlan) -> list[str]:
    """Returns one line for each change of the graph."""
    return [f"state {line}" for line in describe_moves(plan.graph)] + [f"source {x}" for x in _describe_sources(plan)]


def _describe_sources(plan: RestorePlan) -> list[str]:
    """Returns one line for each source whose position is not that of the target, or that had another uid."""
    texts = {
        SourceAction.KEPT: "position kept",
        SourceAction.NEW: "new, from {then}",
        SourceAction.RESET: "position set to {then}",
        SourceAction.REPLACED: "reads other data from the same position",
        SourceAction.REMOVED: "removed, position dropped",
    }
    lines = []
    for source in plan.sources:
        if source.action is not SourceAction.KEPT or source.old:
            offset = source.target_offset
            then = "the beginning" if offset is None else offset if isinstance(offset, str) else json.dumps(offset)
            name = f"{source.old} → {source.uid}" if source.old else source.uid
            lines.append(f"{name}: {texts[source.action].format(then=then)}")
    return lines


def _lost_checkpoints(plan: RestorePlan) -> list[Caution]:
    """Returns the cautions about checkpoints after the target."""
    saved = {s.checkpoint_id: s.savepoint for s in plan.saved}
    lost = [str(number) for number in plan.dropped_checkpoint_ids if number not in saved]
    named = [f"{number} ({name})" for number, name in sorted(saved.items())]
    found = []
    if lost:
        found.append(f"these checkpoints can no longer be restored: {', '.join(lost)}")
    if named:
        found.append(f"these checkpoints can be restored by their savepoints only: {', '.join(named)}")
    return [Caution("", f"after this restore, {text}") for text in found]


def _other_commits(others: tuple[str, ...]) -> str:
    more = f"; and {len(others) - _FIRST:,} more" if len(others) > _FIRST else ""
    named = "; ".join(others[:_FIRST])
    return f"{_counted(len(others), 'commit')} by other writers would be undone as well: {named}{more}"


def _counted(number: int, thing: str) -> str:
    return f"1 {thing}" if number == 1 else f"{number:,} {thing}s"


def is_outdated(plan: RestorePlan, head: Head) -> bool:
    """Returns whether a run or restore has changed the job since the plan was created; ADMIN entries do not count."""
    then = (plan.generation, plan.ordinal, plan.checkpoint_id)
    return (head.entry.generation, head.entry.ordinal, head.checkpoint_id) != then


@dataclass(frozen=True)
class Replay:
    """Work of the job since a target, or since its history and the history of an undone target parted.

    Attributes:
        rows: number of rows that the job has read.
        checkpoints: number of checkpoints that it has completed.
        duration_ms: how long these checkpoints took, with their batches.
        rows_out: rows of each sink, by uid.
        kept: uids of the sinks whose tables may have rows of other checkpoints, because a restore has kept them; None
            if that is not known.
        is_again: whether the next run reads these rows again: they are the input after the target. Otherwise, a restore
            has undone the target.
    """

    rows: int
    checkpoints: int
    duration_ms: float = 0.0
    rows_out: Mapping[str, int] = field(default_factory=dict)
    kept: Set[str] | None = frozenset()
    is_again: bool = True

    def rows_written(self, uid: str) -> int | None:
        """Returns the rows that a sink has written since; None if its table may have rows of other checkpoints."""
        return None if self.kept is None or uid in self.kept else self.rows_out.get(uid, 0)


def replay_since(root: JobRoot, head: Head, checkpoint_id: int) -> Replay | None:
    """Returns what the job has done since a checkpoint; None when records are missing.

    Args:
        root: the job root.
        head: the newest entry.
        checkpoint_id: id of the checkpoint.
    """
    retained = {ref.id for ref in root.checkpoints.restorable(head)}
    return count_replay(head, retained, checkpoint_id, read_history(root.storage, read_pending_records(root, head)))


def count_replay(head: Head, retained: Set[int], checkpoint_id: int, records: Iterable[Record]) -> Replay | None:
    """Returns what the records say that the job has done since a checkpoint; None when records are missing. Pure.

    Follows the current state back, from each checkpoint to the one that it continued from. So neither aborted nor
    undone checkpoints count, and no missing record is overlooked.

    Args:
        head: the newest entry.
        retained: ids of the checkpoints that the job can continue from.
        checkpoint_id: id of the checkpoint.
        records: the history, in any order.
    """
    history = list(records)
    is_again = is_ancestor(head, checkpoint_id, retained)
    since = checkpoint_id if is_again else _parting(head, checkpoint_id)
    ours = _records_since(head, since, [r for r in history if isinstance(r, CheckpointRecord)])
    if ours is None:
        return None
    rows_out: Counter[str] = Counter()
    for record in ours:
        rows_out.update(record.rows_out)
    took = sum(record.duration_ms for record in ours)
    kept = _kept_since(head, since, [r for r in history if isinstance(r, ActionRecord)])
    return Replay(sum(r.rows_in for r in ours), len(ours), took, dict(rows_out), kept, is_again)


def _records_since(head: Head, since: int, records: Sequence[CheckpointRecord]) -> list[CheckpointRecord] | None:
    """Returns the records of the checkpoints after one, newest first; None if one is missing."""
    known = {record.checkpoint_id: record for record in records if record.status == COMPLETED}
    bases = {step.seq: step.base for step in head.entry.ancestry.restores}
    found, at = [], head.checkpoint_id
    while at > since:
        if at in known:
            found.append(known[at])
        before = known[at].base_checkpoint_id if at in known else bases.get(at)
        # A base that is not older would never end.
        if before is None or before >= at:
            return None
        at = before
    return found if at == since else None


def _parting(head: Head, checkpoint_id: int) -> int:
    """Returns the newest checkpoint that the current state and an undone checkpoint both descend from; 0 for none."""
    ours = lineage_of(head)
    theirs = lineage_ranges({step.seq: step.base for step in head.entry.ancestry.restores}, checkpoint_id)
    # A range ends with the number of a checkpoint: the base of a restore, or the newest one.
    shared = (min(a[-1], b[-1]) for a in ours for b in theirs if a and b and max(a[0], b[0]) <= min(a[-1], b[-1]))
    return max(shared, default=0)


def _kept_since(head: Head, since: int, actions: Sequence[ActionRecord]) -> Set[str] | None:
    """Returns the sinks whose tables restores after a checkpoint have kept; None if the record of one is missing."""
    lineage = lineage_of(head)
    records = {action.seq: action for action in actions if action.kind in ("restore", "rewind")}
    relocations = {action.seq for action in actions if action.kind == "relocate"}
    kept: set[str] = set()
    for step in head.entry.ancestry.restores:
        if step.seq <= since or not any(step.seq in part for part in lineage):
            # A later restore has undone it, with what it had kept.
            continue
        if step.seq in records:
            uids = records[step.seq].facts.get("kept_tables")
            kept |= {uid for uid in uids if isinstance(uid, str)} if isinstance(uids, list) else set()
        elif step.base not in relocations:
            return None
    return kept


def is_run_open(head: Head) -> bool:
    """Returns whether the job's newest run has not ended cleanly: it is running, was killed, or failed."""
    # A restore command appends CLAIMs like a run, but commits no checkpoint.
    restores = {r.seq for r in head.entry.ancestry.restores}
    has_restored = head.entry.generation in restores and head.entry.ordinal == 0
    return not (head.entry.ended or is_restore_open(head) or has_restored)


def is_restore_open(head: Head) -> bool:
    """Returns whether a restore, or a move of a source, has claimed the job and not changed it: it works or was killed.

    The run before it cannot commit any more.
    """
    return bool(head.entry.claimed_for)
