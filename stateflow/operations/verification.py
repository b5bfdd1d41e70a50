"""Verification of the files of checkpoints and savepoints; safe while a run is active."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from stateflow.checkpoint.log.documents import EntryRef, Manifest, OperatorState, Pin
from stateflow.checkpoint.log.job_root import LEASE, JobRoot, hold_lease
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile, DataError, StateflowError
from stateflow.operations.job_root import offsets_of, open_root
from stateflow.outputs import Offset, OptionalId, OptionalText
from stateflow.query.snapshot import open_snapshot, savepoint_snapshot
from stateflow.query.state import check_entry, read_stored_entries
from stateflow.requesters import by_process
from stateflow.state.handles import SubtaskState
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.operator_content import check_parts
from stateflow.state.stored_key import decode_group
from stateflow.storage import Storage, open_storage
from stateflow.types.serializers import check_untyped

_OWNER = "verify"


@dataclass(frozen=True)
class Verified:
    """A checkpoint without damage.

    Attributes:
        checkpoint_id: its id.
        files: number of the files of state and positions, without the manifest; files that it shares with an earlier
            checkpoint were read once.
        size_bytes: size of these files.
        entries: number of decoded entries of keyed state; None when only files were read.
        code_hash: hash of the job's code that made the checkpoint; empty if it is not known.
    """

    checkpoint_id: int
    files: int
    size_bytes: int
    entries: int | None
    code_hash: OptionalText = ""


def verify(
    job_root: str,
    deep: bool = False,
    checkpoint: int | None = None,
    on_verified: Callable[[Verified], None] = lambda _: None,
) -> list[Verified]:
    """Reads the manifest and all files of each retained or pinned checkpoint, and compares sizes and hashes.

    Args:
        deep: also open each store, and check that every block matches its checksum, that every key belongs to a key
            group of its subtask and to a declared state, and that every key and value decodes.
        checkpoint: id of the only checkpoint to verify; None for all.
        on_verified: called for each checkpoint without damage, oldest first.

    Raises:
        MissingFile, CorruptFile: the first damage.
        ConfigError: the job or the checkpoint does not exist. A checkpoint that the job releases before its turn is not
            verified.
    """
    root = JobRoot.open(open_storage(job_root), SystemClock(), _OWNER)
    refs = sorted(set(root.checkpoints.list_kept(root.head())), key=lambda ref: ref.id)
    wanted = [ref for ref in refs if checkpoint in (None, ref.id)]
    if not wanted:
        raise _not_kept(root, checkpoint)
    known: set[str] = set()
    found = []
    for ref in wanted:
        # Without a pin, an active run would delete files while they are read.
        pin = _pinned(root, ref)
        if pin is not None:
            with hold_lease(root, pin):
                found.append(_verified(root, ref, known, deep))
            on_verified(found[-1])
        elif checkpoint is not None:
            raise _not_kept(root, ref.id)
    return found


def _pinned(root: JobRoot, ref: EntryRef) -> Pin | None:
    """Pins a checkpoint; returns None if the job has released it since it was listed."""
    try:
        return root.admin.pin(ref, by_process(_OWNER), f"verifying checkpoint {ref.id}", lease=LEASE)
    except DataError:
        if ref in root.checkpoints.list_kept(root.head()):
            raise
        return None


def _not_kept(root: JobRoot, wanted: int | None) -> ConfigError:
    return ConfigError(
        "the checkpoint does not exist, or was released meanwhile",
        hint="stateflow checkpoints list shows the existing ones",
        wanted=wanted,
        kept=sorted({ref.id for ref in root.checkpoints.list_kept(root.head())}),
    )


def _verified(root: JobRoot, ref: EntryRef, known: set[str], deep: bool) -> Verified:
    manifest = root.checkpoints.manifest_of(ref)
    files = {file.key: file for file in files_of(manifest)}
    check_hashes(root.storage, [file for key, file in files.items() if key not in known])
    known.update(files)
    entries = _entries(root, manifest) if deep else None
    return Verified(ref.id, len(files), sum(file.size for file in files.values()), entries, manifest.code)


def _entries(root: JobRoot, manifest: Manifest) -> int:
    count = 0
    for operator in manifest.operators:
        check_parts(root.storage, operator.parts)
        names, columns = state_names(operator.states), len(operator.key_types)
        for subtask, entries in read_stored_entries(operator, root.storage, root.clock):
            with _with_location(operator, subtask):
                for key, value in entries:
                    _check_group(subtask, key)
                    check_entry(names, columns, key, value, check_untyped)
                    count += 1
    return count


def _check_group(subtask: SubtaskState, key: bytes) -> None:
    group = decode_group(key)
    if not subtask.first_group <= group <= subtask.last_group:
        raise CorruptFile(
            "a stored key is in a key group of another subtask",
            key=key.hex()[:80],
            group=group,
            first_group=subtask.first_group,
            last_group=subtask.last_group,
        )


@contextmanager
def _with_location(operator: OperatorState, subtask: SubtaskState) -> Iterator[None]:
    """Adds operator and subtask to the facts of an error."""
    try:
        yield
    except StateflowError as e:
        raise type(e)(e.message, hint=e.hint, operator=operator.uid, subtask=subtask.subtask, **e.facts) from e


@dataclass(frozen=True)
class Verification:
    """Result of reading all files of a savepoint or checkpoint, without damage.

    Attributes:
        job: name of the job.
        label: label of the savepoint or checkpoint.
        checkpoint_id: id of the checkpoint, or of the savepoint's; 0 for a savepoint of other state.
        offsets: the position of each source, by uid.
        files: number of the files.
        size_bytes: size of the files.
    """

    job: str
    label: str
    checkpoint_id: OptionalId
    offsets: dict[str, Offset]
    files: int
    size_bytes: int


def verify_savepoint(stored: StoredSavepoint) -> Verification:
    """Reads all files of a savepoint, compares sizes and hashes, and opens the stores of its keyed state.

    Raises MissingFile or CorruptFile; also for a store that is not safe to open although its hashes match.
    """
    stored.verify()
    document = stored.document
    _open_stores(savepoint_snapshot(stored).manifest, stored.storage)
    return Verification(
        document.job,
        stored.label,
        document.checkpoint_id,
        offsets_of(document.manifest.sources),
        len(list(stored.files())),
        stored.size,
    )


def _open_stores(manifest: Manifest, storage: Storage) -> None:
    """Opens each store, and so checks that it is safe to open; reads one entry. Reads the operator state as well."""
    for operator in manifest.operators:
        check_parts(storage, operator.parts)
        for _, entries in read_stored_entries(operator, storage, SystemClock()):
            with closing(entries):
                next(entries, None)


def verify_head(job_root: str) -> Verification:
    """Reads all files of the checkpoint that the next run starts from, compares sizes and hashes, and opens its stores.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged, or a store is not safe to open.
        DataError: the job has no checkpoint, or a restore is not completed.
    """
    root = open_root(job_root)
    head = root.head()
    if head.checkpoint is None:
        raise DataError("the job has no checkpoint yet", hint="run the job first", root=job_root)
    if head.entry.rewind is not None:
        raise DataError(
            "a restore is not completed",
            hint="repeat the restore, or start the job: either completes it",
            seq=head.entry.seq,
        )
    # Pinned, because an active run would delete files while they are read.
    with open_snapshot(job_root) as newest:
        files = {f.key: f for f in files_of(newest.manifest)}
        check_hashes(newest.storage, files.values())
        _open_stores(newest.manifest, newest.storage)
    return Verification(
        root.job.job,
        newest.label if newest.checkpoint_id != head.checkpoint_id else head.checkpoint_label,
        newest.checkpoint_id,
        offsets_of(newest.manifest.sources),
        len(files),
        sum(f.size for f in files.values()),
    )
