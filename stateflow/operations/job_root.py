"""Access to a job root by commands and Airflow tasks, which may be concurrent with a run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stateflow.checkpoint.log.documents import SourcePosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError
from stateflow.storage import Storage, open_storage


@dataclass(frozen=True)
class JobCode:
    """A job file and its settings, for operations that need the job's sinks and operators.

    Attributes:
        layers: settings in addition to those of the job file; a later layer overrides an earlier one.
    """

    file: Path
    layers: tuple[SettingsLayer, ...] = ()


def pins_of(root: JobRoot, owner: str, purpose: str) -> list[str]:
    """Returns the ids of pins that were not made by a run.

    Args:
        owner: owner of the pins.
        purpose: their reason, as the owner gave it.
    """
    pins = root.head().entry.pinned
    return [p.id for p in pins if (p.owner, p.reason, p.generation) == (owner, purpose, 0)]


def now(root: JobRoot) -> str:
    """Returns the current time in the ISO 8601 format of stored documents."""
    return root.clock.now().isoformat(timespec="milliseconds")


def open_root(job_root: str) -> JobRoot:
    """Opens the job root at a URI. Raises ConfigError when it does not exist."""
    return open_root_in(open_storage(job_root))


def open_root_in(storage: Storage) -> JobRoot:
    """Opens the job root in a storage. Raises ConfigError when there is none."""
    return JobRoot.open(storage, SystemClock(), f"{socket.gethostname()}:{os.getpid()}")


def drop_pin(job_root: str, pin_id: str) -> None:
    """Removes a pin. Raises ConfigError when it does not exist."""
    root = open_root(job_root)
    if all(pin.id != pin_id for pin in root.head().entry.pinned):
        raise ConfigError("the pin does not exist", hint="stateflow pins lists the existing ones", pin=pin_id)
    root.admin.unpin(pin_id)


def require_job(job_root: str) -> None:
    """Raises ConfigError when the job does not exist: an empty result would hide a wrong path."""
    open_root(job_root)


def offsets_of(positions: Iterable[SourcePosition]) -> dict[str, str]:
    """Returns the offset of each source by uid."""
    return {p.uid: p.offset for p in positions}
