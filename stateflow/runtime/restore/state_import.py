"""Imports a manifest and its state into a job root, and rewrites state for a changed graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, OperatorState, SourceFile, SparkPosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import (
    check_hashes,
    check_operator_memory,
    files_of,
    state_bytes,
    write_bytes,
    write_manifest,
)
from stateflow.checkpoint.restore.graph_map import MappedOperators, Origin, Rewrite, StateKind, StateMove
from stateflow.checkpoint.restore.source_positions import INLINE_LIMIT
from stateflow.checkpoint.restore.state_assignment import bases_of
from stateflow.checkpoint.savepoints.canonical.rekey import rekey
from stateflow.checkpoint.savepoints.canonical.writer import Destination
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.create import copy_objects, replace_keys
from stateflow.clock import Clock
from stateflow.config.settings import StateSettings
from stateflow.errors import ConfigError, CorruptFile, IncompatibleState
from stateflow.private_files import ScratchFolder, open_private
from stateflow.runtime.task.operator_state import INLINE_BYTES
from stateflow.state.backends import canonical_file
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import Entry, blocks_of
from stateflow.state.backends.factory import StoreLocation, open_backend
from stateflow.state.handles import (
    CANONICAL,
    EarliestTimers,
    FileHandle,
    OperatorContent,
    OperatorPart,
    StateFile,
    SubtaskState,
)
from stateflow.state.operator_content import StoredContent, read_parts
from stateflow.state.stored_key import KEY_OFFSET, TIMER_IDS, encode_group, expiry_ids, state_id
from stateflow.storage import Storage
from stateflow.storage.paths import data_folder
from stateflow.types.decoders import MEMORY_LIMIT
from stateflow.types.key_groups import KeyGroupRange, range_of


@dataclass(frozen=True)
class ImportTarget:
    """The place that state is imported to.

    Attributes:
        storage: the storage.
        max_parallelism: the number of key groups there.
        prefix: prefix of the files' keys in the manifest.
        folder: prefix of all keys in the storage, which the manifest does not have.
    """

    storage: Storage
    max_parallelism: int
    prefix: str
    folder: str = ""


def import_state(
    root: JobRoot, manifest: Manifest, location: StateLocation | None, generation: int, rewrites: Sequence[Rewrite] = ()
) -> FileHandle:
    """Copies the files of a manifest into a job root, verifies every file, and stores the manifest there.

    State with another max parallelism gets that of the job root.

    Args:
        manifest: the manifest, without the operators of `rewrites`.
        location: where the files are; None for files that the root has already.
        generation: the generation of the importing process, which must not have committed yet.
        rewrites: operators whose state is written again.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
        IncompatibleState: the state has another max parallelism, and its keys are not known.
    """
    ordinal = 1
    into = data_folder(generation, ordinal, f"restore{root.clock.new_id()[:12]}")
    target = ImportTarget(root.storage, root.job.max_parallelism, into)
    if location is not None:
        manifest = import_files(target, manifest, location)
    if rewrites:
        stored = location or StateLocation(root.storage)
        rewritten = [rewrite_operator(each, stored, target, root.clock) for each in rewrites]
        operators = sorted((*manifest.operators, *rewritten), key=lambda operator: operator.uid)
        manifest = replace(manifest, operators=operators, full_bytes=state_bytes(operators))
    manifest = replace(manifest, spark=manifest.spark and _with_stored_logs(root, into, manifest.spark))
    manifest = replace(manifest, job_uuid=root.job.job_uuid, generation=generation, ordinal=ordinal)
    # Its records are those of another job or line of checkpoints.
    manifest = replace(manifest, record=None, history=[], parent=None, batches=[])
    return write_manifest(root.storage, into, manifest)


def _with_stored_logs(root: JobRoot, folder: str, spark: SparkPosition) -> SparkPosition:
    """Returns the position with each log of a source in a file that is too large for a manifest."""

    def stored(file: SourceFile) -> SourceFile:
        if file.content is None or len(file.content) <= INLINE_LIMIT:
            return file
        key = f"{folder}sources-{file.path.replace('/', '-')}"
        return SourceFile(path=file.path, handle=write_bytes(root.storage, key, file.content))

    return replace(spark, source_files=[stored(file) for file in spark.source_files])


def import_files(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    """Copies the files of a manifest, and verifies every file; raises as `import_state` does.

    Returns:
        The manifest with the keys of the copies, without the target's folder.
    """
    if location.max_parallelism in (None, target.max_parallelism):
        return _copied(target, manifest, location)
    return _rekeyed(target, manifest, location)


def _copied(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    names = {f.key: f"{target.prefix}{f.sha256}" for f in files_of(manifest)}
    copies = [(f"{location.folder}{key}", f"{target.folder}{to}") for key, to in names.items()]
    copy_objects(location.storage, copies, target.storage)
    linked = {to for key, to in copies if location.checked and _is_same_file(location.storage, key, target.storage, to)}
    manifest = replace_keys(manifest, names)
    stored = {f"{target.folder}{f.key}": f for f in files_of(manifest)}
    check_hashes(target.storage, [replace(f, key=key) for key, f in stored.items() if key not in linked])
    return manifest


def _rekeyed(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    check_no_raw_keyed(manifest.operators, location)
    complete = replace_keys(manifest, {f.key: f"{location.folder}{f.key}" for f in files_of(manifest)})
    to = Destination(folder=target.folder, prefix=target.prefix)
    rekeyed = rekey(location.storage, complete, target.storage, to, target.max_parallelism)
    others = replace(manifest, operators=[replace(o, subtasks=[]) for o in manifest.operators])
    copied = _copied(target, others, location)
    both = zip(copied.operators, rekeyed.operators, strict=True)
    return replace(copied, operators=[replace(other, subtasks=keyed.subtasks) for other, keyed in both])


def _is_same_file(source: Storage, key: str, target: Storage, copy: str) -> bool:
    """Returns whether the copy is a hard link of the verified file, so that it need not be read again."""
    found = target.file_id(copy)
    return found is not None and source.file_id(key) == found


@dataclass(frozen=True)
class StateLocation:
    """Storage and key prefix of state files.

    Attributes:
        folder: prefix of the files' keys.
        checked: whether the caller has just verified the files' hashes.
        max_parallelism: number of key groups of the state; None for that of the job root which imports it.
    """

    storage: Storage
    folder: str = ""
    checked: bool = False
    max_parallelism: int | None = None

    @classmethod
    def of(cls, savepoint: StoredSavepoint, checked: bool = False) -> StateLocation:
        """Returns the location of a savepoint's files."""
        return cls(savepoint.storage, savepoint.folder, checked, savepoint.document.max_parallelism)

    def operator(self, stored: OperatorState) -> OperatorState:
        """Returns the operator with the whole keys of its files."""
        if not self.folder:
            return stored
        alone = Manifest(job_uuid="", generation=0, ordinal=0, operators=[stored], sources=[])
        names = {handle.key: f"{self.folder}{handle.key}" for handle in stored.files}
        return replace_keys(alone, names).operators[0]


def has_raw_state(operator: OperatorState, location: StateLocation) -> bool:
    """Returns whether an operator has raw state; reads its operator state.

    Raises MissingFile or CorruptFile.
    """
    parts = location.operator(operator).parts
    return any(content.raw or content.raw_keyed for _, content in read_parts(location.storage, parts))


def check_key_groups(operators: MappedOperators, location: StateLocation, max_parallelism: int) -> None:
    """Checks that state with another number of key groups can get `max_parallelism`.

    Raises:
        ConfigError: it must be divided or renamed as well.
        IncompatibleState: it has raw keyed state.
        MissingFile, CorruptFile: a file of the operator state is missing or damaged.
    """
    if operators.rewrites:
        raise ConfigError(
            "state with another max parallelism cannot be divided or renamed while it is imported",
            hint="first copy the savepoint with stateflow savepoint rekey, then restore the copy",
            found=location.max_parallelism,
            wanted=max_parallelism,
        )
    check_no_raw_keyed(operators.shared, location)


def check_no_raw_keyed(operators: Iterable[OperatorState], location: StateLocation) -> None:
    """Raises IncompatibleState for raw keyed state, which cannot get another number of key groups.

    Also MissingFile or CorruptFile: it reads the operator state of all operators.
    """
    for operator in operators:
        parts = read_parts(location.storage, location.operator(operator).parts)
        if any(content.raw_keyed for _, content in parts):
            raise IncompatibleState(
                "raw keyed state cannot get another max parallelism",
                hint="its bytes have keys that only the operator's function knows; keep max_parallelism, or drop the "
                "operator's state",
                operator=operator.uid,
            )


def rewrite_operator(rewrite: Rewrite, location: StateLocation, target: ImportTarget, clock: Clock) -> OperatorState:
    """Writes the state of one operator, and returns the operator with it.

    Args:
        rewrite: the states that it gets.
        location: where the files of its origins are.
        target: where the new files are stored; its folder is empty.

    Raises:
        MissingFile, CorruptFile: a file of an origin is missing or damaged, or its parallelism is impossible.
        StateError: the joined operator state would take too much memory.
    """
    result = rewrite.result
    if not 1 <= result.parallelism <= target.max_parallelism:
        raise CorruptFile(
            "an operator in a manifest has an invalid parallelism",
            hint="restore another checkpoint or savepoint",
            operator=result.uid,
            parallelism=result.parallelism,
            max_parallelism=target.max_parallelism,
        )
    origins = tuple((location.operator(operator), moves) for operator, moves in rewrite.origins)
    placed = Rewrite(result, origins)
    writer = _KeyedStateWriter(placed, location.storage, target, clock)
    written = [writer.write(subtask) for subtask in range(result.parallelism)]
    result = replace(
        result,
        subtasks=[state for state in written if state is not None],
        parts=_operator_parts(placed, location.storage, target),
    )
    check_operator_memory([result])
    return result


_OpenOrigin = tuple[KeyedStateBackend, Mapping[bytes, bytes]]
"""The store of one origin, and the new ids of its states by the ids in it."""


class _KeyedStateWriter:
    """Writes the keyed state and the timers of one operator, subtask by subtask."""

    def __init__(self, rewrite: Rewrite, source: Storage, target: ImportTarget, clock: Clock) -> None:
        self._rewrite = rewrite
        self._source = source
        self._target = target
        self._clock = clock
        self._ids = [new_ids(moves) for _, moves in rewrite.origins]
        parallelism, groups = rewrite.result.parallelism, target.max_parallelism
        self._bases = [bases_of(operator, parallelism, groups) for operator, _ in rewrite.origins]

    def write(self, subtask: int) -> SubtaskState | None:
        """Writes the state of a subtask; returns None if it has none."""
        result, target = self._rewrite.result, self._target
        owned = range_of(subtask, result.parallelism, target.max_parallelism)
        header = CanonicalHeader(
            uid=result.uid,
            key_types=result.key_types,
            max_parallelism=target.max_parallelism,
            first_group=owned.first,
            last_group=owned.last,
            states=result.states,
        )
        with ScratchFolder() as scratch, ExitStack() as stack:
            stores = self._opened(subtask, scratch.path, stack)
            entries = _Counted(_entries(owned, stores))
            handle = self._stored(
                canonical_file.encode_file(header, blocks_of(entries)), scratch.path / "entries", entries
            )
        if handle is None:
            return None
        earliest = self._earliest(subtask)
        return SubtaskState(
            subtask=subtask,
            first_group=owned.first,
            last_group=owned.last,
            snapshot=f"{CANONICAL}-{handle.sha256}",
            backend=CANONICAL,
            files=[StateFile(handle=handle, local_name=f"{CANONICAL}-0")],
            event_timer=earliest.event,
            processing_timer=earliest.processing,
        )

    def _opened(self, subtask: int, scratch: Path, stack: ExitStack) -> list[_OpenOrigin]:
        """Opens the subtask's state of each origin; returns it with the new ids of its states."""
        found: list[_OpenOrigin] = []
        for at, (bases, ids) in enumerate(zip(self._bases, self._ids, strict=True)):
            base = bases[subtask]
            if not (base.parts and ids):
                continue
            location = StoreLocation.in_folder(scratch / str(at), self._source, self._clock)
            store = open_backend(location, base, StateSettings())
            stack.callback(store.close)
            found.append((store, ids))
        return found

    def _stored(self, chunks: Iterable[bytes], path: Path, entries: _Counted) -> FileHandle | None:
        digest, size = hashlib.sha256(), 0
        with open_private(path, must_create=True) as file:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        if not entries.count:
            return None
        key = f"{self._target.prefix}{digest.hexdigest()}"
        self._target.storage.put_file(key, path)
        return FileHandle(key=key, size=size, sha256=digest.hexdigest())

    def _earliest(self, subtask: int) -> EarliestTimers:
        """Returns lower bounds for the times of the subtask's timers."""
        origins = zip(self._bases, self._rewrite.origins, strict=True)
        found = [
            bases[subtask].earliest_timers
            for bases, (_, moves) in origins
            if any(move.kind is StateKind.TIMERS for move in moves)
        ]
        # One origin at most: two operators' timers do not come to one operator.
        return found[0] if found else EarliestTimers()


class _Counted:
    """Counts entries while they are read."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self.count = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.count += 1
            yield entry


def new_ids(moves: Iterable[StateMove]) -> dict[bytes, bytes]:
    """Returns the new id of each state and of its expiry entries, by its id in stored keys; timers keep theirs."""
    ids: dict[bytes, bytes] = {}
    for move in moves:
        if move.kind is StateKind.KEYED:
            ids[state_id(move.old_state)] = state_id(move.new_state)
            ids |= zip(expiry_ids(move.old_state), expiry_ids(move.new_state), strict=True)
        elif move.kind is StateKind.TIMERS:
            ids |= {timers: timers for timers in TIMER_IDS.values()}
    return ids


def _entries(owned: KeyGroupRange, stores: list[_OpenOrigin]) -> Iterator[Entry]:
    """Yields the entries of the states under their new keys, in order of these."""
    routes = sorted((new, at, old) for at, (_, ids) in enumerate(stores) for old, new in ids.items())
    if not routes:
        return
    for number in range(owned.first, owned.last + 1):
        group = encode_group(number)
        for new, at, old in routes:
            head = group + new
            yield from ((head + key[KEY_OFFSET:], value) for key, value in stores[at][0].scan(group + old))


def _operator_parts(rewrite: Rewrite, source: Storage, target: ImportTarget) -> list[OperatorPart]:
    """Writes the operator state of an operator; returns its parts."""
    contents: dict[int, OperatorContent] = {}
    for origin in rewrite.origins:
        for subtask, content in _moved_contents(origin, source):
            contents[subtask] = _joined(contents.get(subtask, OperatorContent()), content)
    found = []
    for subtask, content in sorted(contents.items()):
        if content != OperatorContent():
            found.append(_write_part(rewrite.result.uid, subtask, content, target))
    return found


def _moved_contents(origin: Origin, source: Storage) -> Iterator[tuple[int, OperatorContent]]:
    operator, moves = origin
    names = {move.old_state: move.new_state for move in moves if move.kind is StateKind.OPERATOR}
    has_raw = any(move.kind is StateKind.RAW for move in moves)
    if not names and not has_raw:
        return
    for part, content in read_parts(source, operator.parts):
        yield (
            part.subtask,
            OperatorContent(
                lists={names[name]: value for name, value in content.lists.items() if name in names},
                unions={names[name]: value for name, value in content.unions.items() if name in names},
                broadcasts={names[name]: value for name, value in content.broadcasts.items() if name in names},
                raw=content.raw if has_raw else [],
                raw_keyed=content.raw_keyed if has_raw else [],
            ),
        )


def _joined(one: OperatorContent, other: OperatorContent) -> OperatorContent:
    """Returns the operator state of both, which have no name in common, and raw state in one of them at most."""
    return OperatorContent(
        lists=dict(sorted({**one.lists, **other.lists}.items())),
        unions=dict(sorted({**one.unions, **other.unions}.items())),
        broadcasts=dict(sorted({**one.broadcasts, **other.broadcasts}.items())),
        raw=one.raw or other.raw,
        raw_keyed=one.raw_keyed or other.raw_keyed,
    )


def _write_part(uid: str, subtask: int, content: OperatorContent, target: ImportTarget) -> OperatorPart:
    data = msgspec.msgpack.encode(content)
    memory = StoredContent.of(data, MEMORY_LIMIT).memory
    if len(data) <= INLINE_BYTES:
        return OperatorPart(subtask=subtask, content=data, memory=memory)
    handle = write_bytes(target.storage, f"{target.prefix}{uid}-{subtask}-operator", data)
    return OperatorPart(subtask=subtask, handle=handle, memory=memory)
