"""Checks of this machine and of a job root's storage for ``stateflow doctor``."""

from __future__ import annotations

import enum
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from stateflow.checkpoint.history import check_history
from stateflow.checkpoint.job_requests import find_damaged_requests
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.job_root import JobRoot, next_generation, probe_job_root
from stateflow.clock import Clock
from stateflow.config import spark_versions
from stateflow.errors import StateflowError, StorageError
from stateflow.outputs import OptionalText
from stateflow.private_files import make_own_folder
from stateflow.runtime.spark.session.requirements import PYTHON, check_java, check_python, check_spark, warn_of_untested
from stateflow.storage import PutResult, Storage, open_storage
from stateflow.storage.locations import HDFS_SCHEMES
from stateflow.storage.paths import FORMAT, probe_key

_PACKAGES = ("pyspark", "delta-spark", "rocksdict", "pyarrow", "msgspec", "obstore", "hdfs", "apache-airflow")
_NEEDED = ("pyspark", "rocksdict", "pyarrow", "msgspec")
_LARGE_PACKAGES = ("pandas", "pyarrow", "pyspark")
_MIN_FREE_BYTES = 1 << 30
_MAX_SKEW_SECONDS = 60.0
_NOTE = b"stateflow doctor\n"
_SHOWN_KEYS = 5


class Health(enum.Enum):
    """Result of one check."""

    GOOD = "ok"
    WARNING = "warning"
    """No error was found, but the user should look at the finding."""
    BAD = "error"


@dataclass(frozen=True)
class Finding:
    """Result of a check, with the values found.

    Attributes:
        check: name of the check.
        health: its result.
        found: the values found.
        hint: how to fix or inspect it; empty if that is not needed.
    """

    check: str
    health: Health
    found: str
    hint: OptionalText = ""


def installed_version(package: str) -> str:
    """Returns the version of a package; empty when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def examine(
    job_root: str,
    local_dir: Path,
    clock: Clock,
    version_of: Callable[[str], str] = installed_version,
    compiled: Sequence[str] = _LARGE_PACKAGES,
) -> list[Finding]:
    """Checks versions, scratch space and, if a job root is given, its storage.

    Args:
        job_root: URI of the job root; empty to skip the storage.
        local_dir: folder for scratch files.
        version_of: returns the version of a package; empty for one that is not installed.
        compiled: large packages whose bytecode should be stored.
    """
    spark = version_of("pyspark")
    findings = [_python(), _java(), _packages(version_of), _compiled(compiled), _spark(spark), _scratch(local_dir)]
    return [*findings, *(_storage(job_root, clock) if job_root else [])]


def _finding_of(what: str, check: Callable[[], None], good: str) -> Finding:
    try:
        check()
    except StateflowError as e:
        return Finding(what, Health.BAD, e.sentence, e.hint)
    return Finding(what, Health.GOOD, good)


def _java() -> Finding:
    try:
        java = check_java()
    except StateflowError as e:
        return Finding("Java", Health.BAD, e.sentence, e.hint)
    return _tested("Java", str(java), warn_of_untested(java.major, PYTHON[1]))


def _tested(what: str, found: str, warnings: Sequence[str]) -> Finding:
    return Finding(what, Health.WARNING, found, warnings[0]) if warnings else Finding(what, Health.GOOD, found)


def _python() -> Finding:
    found = _finding_of("Python", check_python, ".".join(map(str, sys.version_info[:3])))
    return found if found.health is Health.BAD else _tested("Python", found.found, warn_of_untested())


def _spark(release: str) -> Finding:
    found = _finding_of("Spark", lambda: check_spark(release), release)
    return found if found.health is Health.BAD else _tested("Spark", release, spark_versions.warn_of_untested(release))


def _packages(version_of: Callable[[str], str]) -> Finding:
    found = {package: version_of(package) for package in _PACKAGES}
    shown = ", ".join(f"{package} {number or 'not installed'}" for package, number in found.items())
    missing = [package for package in _NEEDED if not found[package]]
    if missing:
        return Finding("packages", Health.BAD, shown, "pip install -r requirements.txt")
    return Finding("packages", Health.GOOD, shown)


def _compiled(packages: Sequence[str]) -> Finding:
    """Checks for stored bytecode.

    Some installers leave compilation to the first import, and with PYTHONDONTWRITEBYTECODE every process compiles
    again.
    """
    without = [name for name in packages if not _is_compiled(name)]
    if without:
        hint = (
            f"this takes about a second of CPU each time; run python -m compileall -q {sysconfig.get_path('purelib')}"
        )
        found = f"each process compiles {', '.join(without)} again"
        return Finding("compiled packages", Health.WARNING, found, hint)
    return Finding("compiled packages", Health.GOOD, "their bytecode is stored")


def _is_compiled(module: str) -> bool:
    spec = find_spec(module)
    return spec is None or spec.cached is None or Path(spec.cached).exists()


def _scratch(local_dir: Path) -> Finding:
    def check() -> None:
        make_own_folder(local_dir)

    found = _finding_of("scratch space", check, str(local_dir))
    if found.health is not Health.GOOD:
        return found
    free = shutil.disk_usage(local_dir).free
    text = f"{local_dir}, {free / 1e9:.1f} GB free"
    if free < _MIN_FREE_BYTES:
        return Finding("scratch space", Health.WARNING, text, "it holds the local state of running tasks")
    return Finding("scratch space", Health.GOOD, text)


def _storage(job_root: str, clock: Clock) -> list[Finding]:
    try:
        return examine_storage(open_storage(job_root), clock)
    except StateflowError as e:
        return [Finding("job root", Health.BAD, e.sentence, e.hint)]


def examine_storage(storage: Storage, clock: Clock) -> list[Finding]:
    """Checks the storage of a job root, and its job if one exists; removes the objects that it writes.

    Raises StorageError or ConfigError when the storage cannot be listed.
    """
    generation = next_generation(storage, clock)
    findings = [
        _finding_of(
            "permissions", lambda: _write_and_delete(storage, clock, generation), "write, read, list and delete"
        ),
        _finding_of("put-if-absent", lambda: probe_job_root(storage, clock), "exactly one of several writers succeeds"),
    ]
    return [
        *findings,
        *_findings_of("job", lambda: _log(storage, clock)),
        *_findings_of("history", lambda: _history(storage, clock)),
        *_findings_of("lifecycle rules", lambda: [_lifecycle(storage)]),
        *_findings_of("requests", lambda: [_requests(storage)]),
    ]


def _findings_of(name: str, examine: Callable[[], list[Finding]]) -> list[Finding]:
    """Returns what `examine` finds, or its error as a finding, so that the other findings are shown."""
    try:
        return examine()
    except StateflowError as e:
        return [Finding(name, Health.BAD, e.sentence, e.hint)]


def _head(storage: Storage, clock: Clock) -> Head | None:
    return JobRoot.open(storage, clock).log.read_head() if storage.size(FORMAT) is not None else None


def _write_and_delete(storage: Storage, clock: Clock, generation: int) -> None:
    key = probe_key(generation, clock.new_id())
    try:
        written = storage.put_new(key, _NOTE)
        found = storage.get(key)
        listed = [blob.key for blob in storage.list(key)]
    finally:
        storage.delete([key])
    if (written, found, listed) != (PutResult.CREATED, _NOTE, [key]):
        raise StorageError(
            "the storage does not return what was just written",
            hint="use a strongly consistent storage",
            written=written.value,
            listed=listed,
        )


def _log(storage: Storage, clock: Clock) -> list[Finding]:
    head = _head(storage, clock)
    if head is None:
        return [Finding("job", Health.GOOD, "none yet: the first run creates it")]
    job = Finding("job", Health.GOOD, f"at {head.checkpoint_label}, log entry {head.entry.seq}")
    ahead = (datetime.fromisoformat(head.entry.at) - clock.now()).total_seconds()
    if ahead > _MAX_SKEW_SECONDS:
        text = (
            f"this host's clock is {ahead:.0f} s behind the clock of {head.entry.writer}, which wrote the newest log "
            "entry"
        )
        return [
            job,
            Finding(
                "clock",
                Health.WARNING,
                text,
                "synchronize both hosts by NTP: processing time, ages and timeouts depend on it",
            ),
        ]
    return [job, Finding("clock", Health.GOOD, "not behind the newest log entry")]


def _history(storage: Storage, clock: Clock) -> list[Finding]:
    if storage.size(FORMAT) is None:
        return []
    check = check_history(JobRoot.open(storage, clock))
    if error := check.error():
        raise error
    newer = f", {len(check.unverified)} not verified yet" if check.unverified else ""
    return [Finding("history", Health.GOOD, f"{len(check.verified)} objects as recorded{newer}")]


def _requests(storage: Storage) -> Finding:
    if damaged := find_damaged_requests(storage):
        shown = ", ".join(damaged[:_SHOWN_KEYS]) + (
            f" and {len(damaged) - _SHOWN_KEYS} more" if damaged[_SHOWN_KEYS:] else ""
        )
        return Finding("requests", Health.WARNING, f"damaged: {shown}", "runs skip these files; delete them")
    return Finding("requests", Health.GOOD, "none is damaged")


def _lifecycle(storage: Storage) -> Finding:
    if storage.local_path("x") is not None or storage.uri.partition("://")[0] in HDFS_SCHEMES:
        return Finding("lifecycle rules", Health.GOOD, "not applicable to a file system")
    return Finding(
        "lifecycle rules",
        Health.WARNING,
        "they cannot be checked",
        "no rule of the bucket may delete objects in the job root, nor move them to a tier without immediate access; a "
        "rule that aborts incomplete multipart uploads is recommended",
    )
