"""Whether this machine, and the storage of a job root, are as a run needs them: what ``stateflow doctor`` asks."""

from __future__ import annotations

import enum
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.probe import next_generation, probe_job_root
from stateflow.clock import Clock
from stateflow.errors import StateflowError, StorageError
from stateflow.runtime.versions import check_java, check_python, check_spark
from stateflow.state.transfer import private_folder
from stateflow.storage import PutResult, Storage, open_storage
from stateflow.storage.locate import HDFS_SCHEMES
from stateflow.storage.paths import FORMAT, probe

_PACKAGES = ("pyspark", "delta-spark", "rocksdict", "pyarrow", "msgspec", "obstore", "hdfs", "apache-airflow")
_NEEDED = ("pyspark", "rocksdict", "pyarrow", "msgspec")
_SLOW_TO_COMPILE = ("pandas", "pyarrow", "pyspark")
_LITTLE_SPACE = 1 << 30
_LARGE_SKEW = 60.0
_NOTE = b"stateflow doctor\n"


class Health(enum.Enum):
    """What one look said."""

    GOOD = "ok"
    LOOK = "look"
    """Nothing is wrong that could be seen; somebody should see to it all the same."""
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """What was looked at, and what was found.

    Attributes:
        hint: the way out; empty where none is needed.
    """

    what: str
    health: Health
    found: str
    hint: str = ""


def examine(job_root: str, local_dir: Path, clock: Clock) -> list[Finding]:
    """Looks at versions, scratch space, and, if there is a job root, at its storage.

    Args:
        job_root: empty to leave the storage out.
    """
    findings = [
        _tried("Python", check_python, ".".join(map(str, sys.version_info[:3]))),
        _java(),
        _packages(),
        _compiled(),
        _tried("Spark", lambda: check_spark(_version("pyspark")), _version("pyspark")),
        _scratch(local_dir),
    ]
    return [*findings, *(_storage(job_root, clock) if job_root else [])]


def _tried(what: str, check: Callable[[], None], good: str) -> Finding:
    try:
        check()
    except StateflowError as e:
        return Finding(what, Health.BAD, e.sentence, e.hint)
    return Finding(what, Health.GOOD, good)


def _java() -> Finding:
    try:
        return Finding("Java", Health.GOOD, check_java())
    except StateflowError as e:
        return Finding("Java", Health.BAD, e.sentence, e.hint)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _packages() -> Finding:
    found = {package: _version(package) for package in _PACKAGES}
    shown = ", ".join(f"{package} {number or 'is not there'}" for package, number in found.items())
    missing = [package for package in _NEEDED if not found[package]]
    if missing:
        return Finding("packages", Health.BAD, shown, "pip install -r requirements.txt")
    return Finding("packages", Health.GOOD, shown)


def _compiled() -> Finding:
    """Some installers leave compiling to the first import, and PYTHONDONTWRITEBYTECODE lets nobody keep the result."""
    without = [name for name in _SLOW_TO_COMPILE if not _is_compiled(name)]
    if without:
        hint = f"that is a second of CPU; python -m compileall -q {sysconfig.get_path('purelib')}"
        told = f"each process compiles {', '.join(without)} anew"
        return Finding("compiled packages", Health.LOOK, told, hint)
    return Finding("compiled packages", Health.GOOD, "kept")


def _is_compiled(module: str) -> bool:
    spec = find_spec(module)
    return spec is None or spec.cached is None or Path(spec.cached).exists()


def _scratch(local_dir: Path) -> Finding:
    def check() -> None:
        private_folder(local_dir)

    found = _tried("scratch space", check, str(local_dir))
    if found.health is not Health.GOOD:
        return found
    free = shutil.disk_usage(local_dir).free
    told = f"{local_dir}, {free / 1e9:.1f} GB free"
    if free < _LITTLE_SPACE:
        return Finding("scratch space", Health.LOOK, told, "state that a host works on is kept there")
    return Finding("scratch space", Health.GOOD, told)


def _storage(job_root: str, clock: Clock) -> list[Finding]:
    try:
        storage = open_storage(job_root)
        generation = next_generation(storage, clock)
    except StateflowError as e:
        return [Finding("job root", Health.BAD, e.sentence, e.hint)]
    findings = [
        _tried(
            "permissions",
            lambda: _write_and_delete(storage, clock, generation),
            "write, read, list and delete",
        ),
        _tried("put-if-absent", lambda: probe_job_root(storage, clock), "one of several writers wins"),
    ]
    return [*findings, *_log(storage, clock), _lifecycle(storage)]


def _head(storage: Storage, clock: Clock) -> Head | None:
    return JobRoot.open(storage, clock).log.read_head() if storage.size(FORMAT) is not None else None


def _write_and_delete(storage: Storage, clock: Clock, generation: int) -> None:
    key = probe(generation, clock.new_id())
    try:
        written = storage.put_new(key, _NOTE)
        found = storage.get(key)
        listed = [blob.key for blob in storage.list(key)]
    finally:
        storage.delete([key])
    if (written, found, listed) != (PutResult.CREATED, _NOTE, [key]):
        raise StorageError("the storage does not give back what was written a moment ago", hint="it must be strongly "
                           "consistent", written=written.value, listed=listed)  # fmt: skip


def _log(storage: Storage, clock: Clock) -> list[Finding]:
    head = _head(storage, clock)
    if head is None:
        return [Finding("job", Health.GOOD, "none there yet: the first run makes it")]
    job = Finding("job", Health.GOOD, f"stands at {head.stand}, log entry {head.entry.seq}")
    ahead = (datetime.fromisoformat(head.entry.at) - clock.now()).total_seconds()
    if ahead > _LARGE_SKEW:
        told = f"this host's is {ahead:.0f} s behind that of {head.entry.writer}, which wrote the newest log entry"
        return [job, Finding("clock", Health.LOOK, told, "let both hosts keep time by NTP: processing time, ages and "
                             "timeouts go by it")]  # fmt: skip
    return [job, Finding("clock", Health.GOOD, "not behind the newest log entry")]


def _lifecycle(storage: Storage) -> Finding:
    if storage.local_path("x") is not None or storage.uri.partition("://")[0] in HDFS_SCHEMES:
        return Finding("lifecycle rules", Health.GOOD, "a file system has none")
    return Finding("lifecycle rules", Health.LOOK, "they cannot be seen from here", "no rule of the bucket may delete "
                   "objects below the job root, nor move them to where they cannot be read at once; one that aborts "
                   "incomplete multipart uploads is welcome")  # fmt: skip
