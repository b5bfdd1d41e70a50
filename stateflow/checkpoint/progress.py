"""How far a run is in a batch that takes long, and a restore in its tables: reports for display only.

They are objects below ``progress/``, in a folder of the run's or the restore's log entry. No protocol step depends on
them, and a garbage collection deletes those of older runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from stateflow.checkpoint.log.documents import RunProgress
from stateflow.errors import DataError, StateflowError
from stateflow.storage import Storage
from stateflow.storage.paths import progress_folder, progress_key, restored_table_key
from stateflow.types.decoders import decode_json

log = logging.getLogger(__name__)

_LARGEST_REPORT = 1 << 20


def write_progress(storage: Storage, generation: int, number: int, progress: RunProgress) -> None:
    """Stores how far a run is, in place of its report with the number before. Raises StorageError or ConfigError."""
    storage.put_new(progress_key(generation, number), msgspec.json.encode(progress))
    storage.delete([progress_key(generation, number - 1)])


def read_progress(storage: Storage, generation: int) -> RunProgress | None:
    """Returns the newest report of a run's progress; None without one, or if it cannot be decoded."""
    folder = progress_folder(generation)
    keys = [blob.key for blob in storage.list(folder) if blob.key.removeprefix(folder).isdigit()]
    try:
        return decode_json(RunProgress, storage.get(keys[-1], _LARGEST_REPORT)) if keys else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DataError):
        return None


def report_restored_table(storage: Storage, seq: int, uid: str) -> None:
    """Stores that the restore of the log entry `seq` has restored the table of a sink, for display.

    An error is logged and not raised: the token in the table decides whether it is restored.
    """
    try:
        # An earlier attempt of the same restore may have stored it.
        storage.put_new(restored_table_key(seq, uid), b"")
    except Exception as e:
        known = isinstance(e, StateflowError | OSError)
        log.warning("could not report that the table of %s is restored: %s", uid, e, exc_info=None if known else e)


def forget_restored_tables(storage: Storage, seq: int, uids: Iterable[str]) -> None:
    """Deletes the reports of a restore that is completed. An error is logged: a collection deletes them as well."""
    try:
        storage.delete([restored_table_key(seq, uid) for uid in uids])
    except (StateflowError, OSError) as e:
        log.warning("could not delete the reports of a restore: %s", e)


def find_restored_tables(storage: Storage, seq: int) -> tuple[str, ...]:
    """Returns the uids of the sinks whose tables the restore of the log entry `seq` has reported as restored."""
    prefix = restored_table_key(seq, "")
    return tuple(blob.key.removeprefix(prefix) for blob in storage.list(prefix))
