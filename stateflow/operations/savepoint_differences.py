"""Comparison of two savepoints by their documents: sizes, files, positions and versions, without a value of state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, find_savepoint
from stateflow.errors import ConfigError
from stateflow.operations.job_savepoints import SavepointDescription, describe_contents
from stateflow.outputs import OptionalText
from stateflow.state.handles import FileHandle, StateSchema
from stateflow.storage import Storage


@dataclass(frozen=True)
class ComparedState:
    """A state of an operator in two savepoints.

    Attributes:
        name: its name.
        kind: its kind, such as ``value`` or ``map``.
        old_type: type of its values in the first savepoint; null if that does not have it.
        new_type: the same in the second one.
    """

    name: str
    kind: str
    old_type: OptionalText
    new_type: OptionalText


@dataclass(frozen=True)
class ComparedOperator:
    """An operator in two savepoints.

    Attributes:
        uid: its uid.
        old_bytes: size of its state in the first savepoint; None if that does not have the operator.
        new_bytes: the same in the second one.
        old_entries: number of entries of its keyed state in the first savepoint; None if it is not known.
        new_entries: the same in the second one.
        added_files: number of files that only the second savepoint has.
        removed_files: number of files that only the first one has.
        common_files: number of files with the same content in both.
        added_bytes: size of the files that only the second savepoint has.
        removed_bytes: size of the files that only the first one has.
        common_bytes: size of the files with the same content in both.
        states: its states, ordered by name.
    """

    uid: str
    old_bytes: int | None
    new_bytes: int | None
    old_entries: int | None
    new_entries: int | None
    added_files: int
    removed_files: int
    common_files: int
    added_bytes: int
    removed_bytes: int
    common_bytes: int
    states: tuple[ComparedState, ...]


@dataclass(frozen=True)
class SavepointDifference:
    """Two savepoints of a job root.

    Attributes:
        old: the first savepoint, with the positions of its sources and the versions of its tables.
        new: the second one.
        operators: the operators of both, ordered by uid.
    """

    old: SavepointDescription
    new: SavepointDescription
    operators: tuple[ComparedOperator, ...]


def compare_savepoints(storage: Storage, old: str, new: str) -> SavepointDifference:
    """Returns how two savepoints differ, from their documents alone.

    Args:
        storage: the job root.
        old: name of the first savepoint, or of its folder.
        new: the same of the second one.

    Raises:
        ConfigError: one of them does not exist in the job root, or its name means several.
        CorruptFile: the document of one of them is damaged.
    """
    before, after = _find(storage, old), _find(storage, new)
    olds, news = ({o.uid: o for o in each.document.manifest.operators} for each in (before, after))
    return SavepointDifference(
        describe_contents(before),
        describe_contents(after),
        tuple(_compare(uid, olds.get(uid), news.get(uid)) for uid in sorted(olds.keys() | news.keys())),
    )


def _find(storage: Storage, name: str) -> StoredSavepoint:
    found = find_savepoint(storage, name) if "/" not in name else None
    if found is None:
        hint = "name a savepoint of this job, or its folder: stateflow savepoint list"
        raise ConfigError("the savepoint does not exist in the job root", hint=hint, savepoint=name[:200])
    return found


def _compare(uid: str, old: OperatorState | None, new: OperatorState | None) -> ComparedOperator:
    before, after = _files_of(old), _files_of(new)
    added, removed = ([a[key] for key in a.keys() - b.keys()] for a, b in ((after, before), (before, after)))
    common = [after[key] for key in after.keys() & before.keys()]
    return ComparedOperator(
        uid=uid,
        old_bytes=state_bytes([old]) if old else None,
        new_bytes=state_bytes([new]) if new else None,
        old_entries=_entries_of(old),
        new_entries=_entries_of(new),
        added_files=len(added),
        removed_files=len(removed),
        common_files=len(common),
        added_bytes=_size_of(added),
        removed_bytes=_size_of(removed),
        common_bytes=_size_of(common),
        states=_compare_states(old, new),
    )


def _files_of(operator: OperatorState | None) -> dict[str, FileHandle]:
    # By content: each savepoint has its own copies.
    return {handle.sha256: handle for handle in operator.files} if operator else {}


def _size_of(files: Iterable[FileHandle]) -> int:
    return sum(file.size for file in files)


def _entries_of(operator: OperatorState | None) -> int | None:
    if operator is None:
        return None
    known = [subtask.entries for subtask in operator.subtasks]
    return None if None in known else sum(each for each in known if each is not None)


def _compare_states(old: OperatorState | None, new: OperatorState | None) -> tuple[ComparedState, ...]:
    before, after = _states_of(old), _states_of(new)
    return tuple(
        ComparedState(name, kind, _type_of(before.get((name, kind))), _type_of(after.get((name, kind))))
        for name, kind in sorted(before.keys() | after.keys())
    )


def _states_of(operator: OperatorState | None) -> dict[tuple[str, str], StateSchema]:
    found = [*operator.states, *operator.operator_states] if operator else []
    return {(schema.name, schema.kind): schema for schema in found}


def _type_of(schema: StateSchema | None) -> str:
    if schema is None:
        return ""
    return f"{schema.key_type} -> {schema.value_type}" if schema.key_type else schema.value_type
