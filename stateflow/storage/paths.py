"""Every name below a job root; nothing else builds or reads paths."""

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
REQUESTS = "requests/"

_SEQ = 20
_ENTRY = re.compile(r"log/([0-9]{20})")
_DATA = re.compile(r"data/([0-9]{20})/([0-9]{10})-([A-Za-z0-9]{1,64})/([A-Za-z0-9._-]{1,200})")
_OWNED = re.compile(r"(spark|probe)/([0-9]{20})/.+")
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,200}(/[A-Za-z0-9._-]{1,200}){0,7}")


@dataclass(frozen=True)
class DataKey:
    """Who may refer to a data file: its generation, the ordinal of its barrier, and the attempt that wrote it."""

    generation: int
    ordinal: int
    attempt: str
    name: str


def log_entry(seq: int) -> str:
    """Key of the log entry `seq`."""
    return f"{LOG}{seq:0{_SEQ}d}"


def entry_seq(key: str) -> int | None:
    """Sequence number of a log entry's key; None when it is not one."""
    match = _ENTRY.fullmatch(key)
    return int(match[1]) if match else None


def generation_folder(generation: int) -> str:
    """Prefix of everything that a run writes below ``data/``; ends with a slash."""
    return f"{DATA}{generation:0{_SEQ}d}/"


def data_folder(generation: int, ordinal: int, attempt: str) -> str:
    """Prefix of everything that one attempt writes towards one barrier; ends with a slash."""
    return f"{generation_folder(generation)}{ordinal:010d}-{attempt}/"


def data_prefixes(generation: int, ordinals: Iterable[int]) -> tuple[str, ...]:
    """Prefixes of everything that is written towards these barriers."""
    return tuple(f"{generation_folder(generation)}{ordinal:010d}-" for ordinal in ordinals)


def parse_data(key: str) -> DataKey | None:
    """What a data file's key says; None when it is not one that stateflow writes."""
    match = _DATA.fullmatch(key)
    return DataKey(int(match[1]), int(match[2]), match[3], match[4]) if match else None


def spark_location(generation: int) -> str:
    """Key prefix of the Spark checkpoint location of a run; without a slash at its end."""
    return f"{SPARK}{generation:0{_SEQ}d}"


def probe(generation: int, name: str) -> str:
    """Key for the race probe of a run that is about to claim `generation`."""
    return f"{PROBE}{generation:0{_SEQ}d}/{name}"


def owned_generation(key: str) -> int | None:
    """The run that a file of ``spark/`` or ``probe/`` belongs to; None for any other key."""
    match = _OWNED.fullmatch(key)
    return int(match[2]) if match else None


def history(seq: int, kind: str) -> str:
    """Key of the record about the log entry `seq`."""
    return f"{HISTORY}{seq:0{_SEQ}d}-{kind}.json"


def check_key(key: str) -> str:
    """Returns a key that was read from storage; raises DataError unless it stays inside the root."""
    if not _SAFE.fullmatch(key) or ".." in key.split("/") or "." in key.split("/"):
        raise DataError("a stored name is not one that stateflow writes", key=key)
    return key


SAVEPOINT = "_savepoint"
"""Of a savepoint's folder: what it consists of; written last."""
STARTED = "_started"
"""Of a savepoint's folder: somebody writes it."""
DISPOSED = "_disposed"
"""Of a savepoint's folder: somebody takes it away."""


SAVEPOINT_FILES = "files/"
"""Of a savepoint's folder: what its files' names begin with."""


def savepoint_folder(folder: str, within: str = SAVEPOINTS) -> str:
    """Prefix of everything that belongs to a savepoint; ends with a slash."""
    return f"{within}{folder}/"


def savepoint_file(key: str, within: str = SAVEPOINTS) -> tuple[str, str] | None:
    """The folder that a file of a savepoint is in, and its name there; None for any other key.

    Args:
        within: prefix of the savepoints' folders; empty outside of job roots.
    """
    match = re.fullmatch(rf"{within}([A-Za-z0-9._-]+)/(.+)", key)
    return (match[1], match[2]) if match else None


def request(request_id: str) -> str:
    """Key of what somebody asks of the job's run."""
    return f"{REQUESTS}{request_id}"


def request_seen(request_id: str) -> str:
    """Key of a run's word that it knows of a request."""
    return f"{REQUESTS}{request_id}.seen"


def request_done(request_id: str) -> str:
    """Key of what became of a request."""
    return f"{REQUESTS}{request_id}.done"
