"""Looking at everything that kept checkpoints consist of, beside whatever run is going on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateflow.checkpoint.documents import EntryRef, Manifest, OperatorState
from stateflow.checkpoint.files import check_stored, files_of
from stateflow.checkpoint.jobroot import JobRoot, kept
from stateflow.clock import SystemClock
from stateflow.config import RocksDBSettings
from stateflow.errors import ConfigError, CorruptFile, StateflowError
from stateflow.query.state import check_entry
from stateflow.runtime.operator_parts import check_part
from stateflow.state.backends import Place, read_entries
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.keyed import state_names
from stateflow.state.transfer import HostCache
from stateflow.storage import open_storage

_OWNER = "verify"


@dataclass(frozen=True)
class Verified:
    """A checkpoint of which everything is as it should be.

    Attributes:
        files, bytes: of state and positions, the manifest apart; what an earlier one had as well was read once.
        entries: of keyed state that were decoded; None when only files were read.
    """

    checkpoint_id: int
    files: int
    bytes: int
    entries: int | None


def verify(
    job_root: str, deep: bool = False, checkpoint: int | None = None, tell: Callable[[Verified], None] = lambda _: None
) -> list[Verified]:  # fmt: skip
    """Reads the log entry, manifest and all files of each kept checkpoint, and compares sizes and hashes.

    Args:
        deep: also open each store: every block has its checksum, every key is in a key group of its subtask and of a
            declared state, and every key and value decodes.
        checkpoint: only this one.
        tell: called for each checkpoint that is sound, oldest first.

    Raises MissingFile or CorruptFile for the first thing that is wrong; ConfigError when there is no such job or
    checkpoint.
    """
    root = JobRoot.open(open_storage(job_root), SystemClock(), _OWNER)
    refs = sorted(set(kept(root.head())), key=lambda ref: ref.id)
    wanted = [ref for ref in refs if checkpoint in (None, ref.id)]
    if not wanted:
        raise ConfigError("the job has no such checkpoint", hint="stateflow checkpoints list tells which are kept",
                          wanted=checkpoint, kept=[ref.id for ref in refs])  # fmt: skip
    known: set[str] = set()
    found = []
    for ref in wanted:
        with _pinned(root, ref):
            found.append(_verified(root, ref, known, deep))
        tell(found[-1])
    return found


@contextmanager
def _pinned(root: JobRoot, ref: EntryRef) -> Iterator[None]:
    # A run that goes on would collect what is being read.
    pin = root.pin(ref, _OWNER, f"verifying checkpoint {ref.id}")
    try:
        yield
    finally:
        root.unpin(pin.id)


def _verified(root: JobRoot, ref: EntryRef, known: set[str], deep: bool) -> Verified:
    handle = root.log.read_checkpoint(ref).manifest
    assert handle is not None
    manifest = root.read_manifest(handle)
    files = {file.key: file for file in files_of(manifest)}
    check_stored(root.storage, [file for key, file in files.items() if key not in known])
    known.update(files)
    entries = _entries(root, manifest) if deep else None
    return Verified(ref.id, len(files), sum(file.size for file in files.values()), entries)


def _entries(root: JobRoot, manifest: Manifest) -> int:
    count = 0
    with tempfile.TemporaryDirectory(prefix="stateflow-verify-") as scratch:
        for number, operator in enumerate(manifest.operators):
            for part in operator.parts:
                check_part(root.storage, part)
            for subtask in operator.subtasks:
                folder = Path(scratch) / f"{number}-{subtask.subtask}"
                cache = HostCache.direct(folder / "cache", root.storage, root.clock)
                count += _read_all(Place(folder / "work", cache, RocksDBSettings()), operator, subtask)
    return count


def _read_all(place: Place, operator: OperatorState, subtask: SubtaskState) -> int:
    names, count = state_names(operator.states), 0
    groups = range(subtask.first_group, subtask.last_group + 1)
    try:
        for key, value in read_entries(place, Base.of(subtask)):
            if int.from_bytes(key[:2], "big") not in groups:
                raise CorruptFile("a stored key is in a key group of another subtask", key=key.hex()[:80])
            check_entry(names, len(operator.key_types), key, value)
            count += 1
    except StateflowError as e:
        raise type(e)(
            e.message, hint=e.hint, operator=operator.uid, subtask=subtask.subtask, **e.facts
        ) from e
    except Exception as e:
        # RocksDB tells of a bad block by an error of its own.
        raise CorruptFile("a subtask's state cannot be read", operator=operator.uid, subtask=subtask.subtask,
                          reason=str(e)) from e  # fmt: skip
    return count
