"""Looking at everything that kept checkpoints consist of, beside whatever run is going on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stateflow.checkpoint.documents import EntryRef, Manifest, OperatorState
from stateflow.checkpoint.files import check_stored, files_of
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile, StateflowError
from stateflow.query.state import check_entry, stored_entries
from stateflow.runtime.operator_parts import check_part
from stateflow.state.handles import SubtaskState
from stateflow.state.keyed import state_names
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
    """Reads the manifest and all files of each kept checkpoint, and compares sizes and hashes.

    Args:
        deep: also open each store: every block has its checksum, every key is in a key group of its subtask and of a
            declared state, and every key and value decodes.
        checkpoint: only this one.
        tell: called for each checkpoint that is sound, oldest first.

    Raises MissingFile or CorruptFile for the first thing that is wrong; ConfigError when there is no such job or
    checkpoint.
    """
    root = JobRoot.open(open_storage(job_root), SystemClock(), _OWNER)
    refs = sorted(set(root.kept(root.head())), key=lambda ref: ref.id)
    wanted = [ref for ref in refs if checkpoint in (None, ref.id)]
    if not wanted:
        raise ConfigError("the job has no such checkpoint", hint="stateflow checkpoints list tells which are kept",
                          wanted=checkpoint, kept=[ref.id for ref in refs])  # fmt: skip
    known: set[str] = set()
    found = []
    for ref in wanted:
        # A run that goes on would collect what is being read.
        with root.pinned(ref, _OWNER, f"verifying checkpoint {ref.id}"):
            found.append(_verified(root, ref, known, deep))
        tell(found[-1])
    return found


def _verified(root: JobRoot, ref: EntryRef, known: set[str], deep: bool) -> Verified:
    manifest = root.manifest_of(ref)
    files = {file.key: file for file in files_of(manifest)}
    check_stored(root.storage, [file for key, file in files.items() if key not in known])
    known.update(files)
    entries = _entries(root, manifest) if deep else None
    return Verified(ref.id, len(files), sum(file.size for file in files.values()), entries)


def _entries(root: JobRoot, manifest: Manifest) -> int:
    count = 0
    for operator in manifest.operators:
        for part in operator.parts:
            check_part(root.storage, part)
        names, columns = state_names(operator.states), len(operator.key_types)
        for subtask, entries in stored_entries(operator, root.storage, root.clock):
            with _told_of(operator, subtask):
                for key, value in entries:
                    _check_group(subtask, key)
                    check_entry(names, columns, key, value)
                    count += 1
    return count


def _check_group(subtask: SubtaskState, key: bytes) -> None:
    if not subtask.first_group <= int.from_bytes(key[:2], "big") <= subtask.last_group:
        raise CorruptFile("a stored key is in a key group of another subtask", key=key.hex()[:80])


@contextmanager
def _told_of(operator: OperatorState, subtask: SubtaskState) -> Iterator[None]:
    """Names operator and subtask in whatever is wrong."""
    try:
        yield
    except StateflowError as e:
        raise type(e)(
            e.message, hint=e.hint, operator=operator.uid, subtask=subtask.subtask, **e.facts
        ) from e
