"""The names of all objects below a job root; no other module builds or parses them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stateflow.errors import DataError

FORMAT = "FORMAT"
LOG = "log/"
DATA = "data/"
SPARK = "spark/"
PROBE = "probe/"
HISTORY = "history/"
SAVEPOINTS = "savepoints/"
HISTORY_INDEX = "history-index/"
RUN_FILES = "run-files/"
PROGRESS = "progress/"
BACKLOG = "backlog/"
REQUESTS = "requests/"
SERVERS = "servers/"
LAUNCHES = "launches/"

_SEQ = 20
_RUN_FILE_DIGITS = 16
_ENTRY = re.compile(r"log/([0-9]{20})")
_DATA = re.compile(r"data/([0-9]{20})/([0-9]{10})-([A-Za-z0-9]{1,64})/([A-Za-z0-9._-]{1,200})")
_OWNED = re.compile(r"(spark|probe|history-index|progress)/([0-9]{20})/.+")
_HISTORY = re.compile(r"history/([0-9]{20})-(?:checkpoints-([0-9]{1,18})-[0-9a-f]{8}\.json)?.*", re.DOTALL)
_RUN_RECORD = re.compile(r"history/[0-9]{20}-run-([0-9a-f]{16})-([0-9a-f]{16})\.json")
_BACKLOG_REPORT = re.compile(r"backlog/([0-9]{20})-[0-9]{10}")
_SERVER = re.compile(r"servers/([0-9a-f]{32})-([0-9]{10})")
_LAUNCH = re.compile(r"launches/([a-z0-9-]{1,50})/(run|result)-([0-9]{20})(?:-([0-9]{20}))?")
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,200}(/[A-Za-z0-9._-]{1,200}){0,7}")


@dataclass(frozen=True)
class DataKey:
    """The parsed key of a data file: generation of the run, ordinal of the barrier, and the attempt that wrote it."""

    generation: int
    ordinal: int
    attempt: str
    name: str


def log_entry(seq: int) -> str:
    """Returns the key of the log entry `seq`."""
    return f"{LOG}{seq:0{_SEQ}d}"


def entry_seq(key: str) -> int | None:
    """Returns the sequence number of a log entry's key; None for any other key."""
    match = _ENTRY.fullmatch(key)
    return int(match[1]) if match else None


def generation_folder(generation: int) -> str:
    """Returns the prefix of everything that a run writes below ``data/``; ends with a slash."""
    return f"{DATA}{generation:0{_SEQ}d}/"


def data_folder(generation: int, ordinal: int, attempt: str) -> str:
    """Returns the prefix of everything that one attempt writes for one barrier; ends with a slash."""
    return f"{generation_folder(generation)}{ordinal:010d}-{attempt}/"


def data_prefixes(generation: int, ordinals: Iterable[int]) -> tuple[str, ...]:
    """Returns the prefixes of everything that is written for these barriers."""
    return tuple(f"{generation_folder(generation)}{ordinal:010d}-" for ordinal in ordinals)


def parse_data(key: str) -> DataKey | None:
    """Parses the key of a data file; returns None for any other key."""
    match = _DATA.fullmatch(key)
    return DataKey(int(match[1]), int(match[2]), match[3], match[4]) if match else None


def spark_location(generation: int) -> str:
    """Returns the key prefix of a run's Spark checkpoint location; without a slash at its end."""
    return f"{SPARK}{generation:0{_SEQ}d}"


def probe_key(generation: int, name: str) -> str:
    """Returns the key of an object with which a run tests the storage before it claims `generation`."""
    return f"{PROBE}{generation:0{_SEQ}d}/{name}"


def find_owned_generation(key: str) -> int | None:
    """Returns the generation of a file of ``spark/``, ``probe/``, ``history-index/`` or ``progress/``; else None."""
    match = _OWNED.fullmatch(key)
    return int(match[2]) if match else None


def history_key(seq: int, kind: str) -> str:
    """Returns the key of the history record of the log entry `seq`."""
    return f"{HISTORY}{seq:0{_SEQ}d}-{kind}.json"


def history_records(key: str) -> int:
    """Returns the number of records in an object of the history, from its key; 1 for a key that states none."""
    match = _HISTORY.fullmatch(key)
    return int(match[2] or 1) if match else 1


def history_seq(key: str) -> int:
    """Returns the log entry of an object of the history, from its key; 0 for a key without one."""
    match = _HISTORY.fullmatch(key)
    return int(match[1]) if match else 0


def run_record_key(generation: int, *hashes: str) -> str:
    """Returns the key of the record of a run's start, which names the SHA-256 of its files."""
    return history_key(generation, "-".join(["run", *(digest[:_RUN_FILE_DIGITS] for digest in hashes)]))


def files_of_run_record(key: str) -> tuple[str, ...]:
    """Returns the begins of the names of a run's files from the key of its record; none for any other key."""
    match = _RUN_RECORD.fullmatch(key)
    return tuple(run_file_key(digest) for digest in match.groups()) if match else ()


def run_file_key(digest: str) -> str:
    """Returns the key of a file that describes runs: a job file, or a graph."""
    return f"{RUN_FILES}{digest}"


def history_index_key(generation: int, unique: str) -> str:
    """Returns the key of an index of the history that a run writes."""
    return f"{HISTORY_INDEX}{generation:0{_SEQ}d}/{unique}"


def progress_folder(generation: int) -> str:
    """Returns the prefix of the reports of a run's progress; ends with a slash."""
    return f"{PROGRESS}{generation:0{_SEQ}d}/"


def progress_key(generation: int, number: int) -> str:
    """Returns the key of a report of a run's progress; the one with the highest number counts."""
    return f"{progress_folder(generation)}{number:010d}"


def restored_table_key(seq: int, uid: str) -> str:
    """Returns the key of the report that the restore of the log entry `seq` has restored the table of a sink."""
    return f"{progress_folder(seq)}table-{uid}"


def backlog_key(generation: int, number: int) -> str:
    """Returns the key of a run's report of the input that waits; the last one of all runs counts."""
    return f"{BACKLOG}{generation:0{_SEQ}d}-{number:010d}"


def backlog_generation(key: str) -> int:
    """Returns the generation of the run that has written a report of the input that waits; 0 for any other key."""
    match = _BACKLOG_REPORT.fullmatch(key)
    return int(match[1]) if match else 0


def check_key(key: str) -> str:
    """Returns a key that was read from storage. Raises DataError when it could lead out of the root."""
    if not _SAFE.fullmatch(key) or ".." in key.split("/") or "." in key.split("/"):
        raise DataError("a stored document refers to an object key that stateflow does not write", key=key)
    return key


SAVEPOINT = "_savepoint"
"""Object in a savepoint's folder that lists its files; written last."""
STARTED = "_started"
"""Object in a savepoint's folder that marks the start of writing it."""
DISPOSED = "_disposed"
"""Object in a savepoint's folder that marks the start of its removal."""
CLAIMS = "claims/"
"""Prefix of the numbered slots within a savepoint's folder that decide which job owns it."""
SAVEPOINT_FILES = "files/"
"""Prefix of a savepoint's files within its folder."""


def savepoint_folder(folder: str, within: str = SAVEPOINTS) -> str:
    """Returns the prefix of everything that belongs to a savepoint; ends with a slash."""
    return f"{within}{folder}/"


def savepoint_file(key: str, within: str = SAVEPOINTS) -> tuple[str, str] | None:
    """Returns the folder of a savepoint's file and its name in that folder; None for any other key.

    Args:
        within: prefix of the savepoints' folders; empty outside of job roots.
    """
    match = re.fullmatch(rf"{within}([A-Za-z0-9._-]+)/(.+)", key)
    return (match[1], match[2]) if match else None


def claim_slot(folder: str, number: int) -> str:
    """Returns the key of a slot of a savepoint's claims."""
    return f"{folder}{CLAIMS}{number:08d}"


def claim_number(folder: str, key: str) -> int | None:
    """Returns the number of a slot of a savepoint's claims; None for any other key."""
    match = re.fullmatch(rf"{re.escape(folder)}{CLAIMS}([0-9]{{8}})", key)
    return int(match[1]) if match else None


def request_key(request_id: str) -> str:
    """Returns the key of a request to the job's run."""
    return f"{REQUESTS}{request_id}"


def request_seen_key(request_id: str) -> str:
    """Returns the key of a run's acknowledgement of a request."""
    return f"{REQUESTS}{request_id}.seen"


def request_done_key(request_id: str) -> str:
    """Returns the key of the result of a request."""
    return f"{REQUESTS}{request_id}.done"


def launch_folder(launch: str) -> str:
    """Returns the prefix of what the driver of a launch stores for the process that has submitted it."""
    return f"{LAUNCHES}{launch}/"


def launch_run_key(launch: str, generation: int) -> str:
    """Returns the key of the record that a run belongs to a launch."""
    return f"{launch_folder(launch)}run-{generation:0{_SEQ}d}"


def launch_result_key(launch: str, generation: int, seq: int) -> str:
    """Returns the key of the result of a launch.

    Args:
        launch: id of the launch.
        generation: of the driver's newest run; 0 if it has not claimed the job.
        seq: number of the newest log entry when the driver ended.
    """
    return f"{launch_folder(launch)}result-{generation:0{_SEQ}d}-{seq:0{_SEQ}d}"


def parse_launch(key: str) -> tuple[str, str, int, int] | None:
    """Returns launch, ``run`` or ``result``, generation and log entry of an object of a launch; None for another key.

    The log entry of a ``run`` is 0.
    """
    match = _LAUNCH.fullmatch(key)
    return (match[1], match[2], int(match[3]), int(match[4] or 0)) if match else None


def server_key(server_id: str, number: int) -> str:
    """Returns the key of the lease `number` of a state server."""
    return f"{SERVERS}{server_id}-{number:010d}"


def parse_server(key: str) -> tuple[str, int] | None:
    """Returns the id of a state server and the number of its lease; None for any other key."""
    match = _SERVER.fullmatch(key)
    return (match[1], int(match[2])) if match else None
