"""What a user is told about a job root that cannot be used, does not fit the job, or is damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.checkpoint.documents import JobFormat
from stateflow.checkpoint.envelope import seal, unseal
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    MissingFile,
    WrongJobRoot,
)
from stateflow.storage import MemoryStorage, PosixStorage
from tests.errors.kit import BUILD, JOB, STREAM, Bench, Case, check, contents

# -- the job root -------------------------------------------------------------------------------------------------


def _below_a_file(bench: Bench) -> None:
    bench.root = str(bench.job / "root")


def _at_a_file(bench: Bench) -> None:
    bench.root = str(bench.job)


def _read_only(bench: Bench) -> None:
    """A place where even root may not make folders."""
    bench.root = "/sys/stateflow-root"


def _other_scheme(bench: Bench) -> None:
    bench.root = "hdfs://name/root"


@pytest.mark.parametrize("case", [
    Case(_below_a_file, ConfigError, "config", ("job.py",)),
    Case(_at_a_file, ConfigError, "config", ("job.py",)),
    Case(_read_only, ConfigError, "config", ("/sys/stateflow-root", "write")),
    Case(_other_scheme, ConfigError, "config", ("hdfs://name/root",)),
], ids=lambda case: case.make.__name__)  # fmt: skip
def test_a_root_that_cannot_be_used(bench: Bench, case: Case) -> None:
    check(bench, case)


def test_a_root_of_this_host_with_tasks_on_others(tmp_path: Path) -> None:
    from stateflow.runtime.spark_settings import check_root

    with pytest.raises(ConfigError, match="on this host only") as refused:
        check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", False)
    assert refused.value.facts["master"] == "spark://example:7077"
    assert "storage.shared=true" in refused.value.hint
    check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", True)
    check_root(PosixStorage(tmp_path / "root"), "local[2,4]", False)
    with pytest.raises(ConfigError, match="in memory"):
        check_root(MemoryStorage("memory://x"), "local[2,4]", False)
    assert contents(tmp_path) == {}


def _set(name: str, value: str) -> Callable[[Bench], object]:
    return lambda bench: bench.settings.update({name: value})


def _format(change: Callable[[JobFormat], JobFormat]) -> Callable[[Bench], object]:
    def make(bench: Bench) -> None:
        path = Path(bench.root, "FORMAT")
        document, _ = unseal(path.read_bytes(), JobFormat, "FORMAT")
        path.write_bytes(seal(change(document))[0])

    return make


def _newer(document: JobFormat) -> JobFormat:
    return JobFormat(
        version=99, job=document.job, job_uuid=document.job_uuid, max_parallelism=document.max_parallelism
    )


def _key_by_number(bench: Bench) -> None:
    bench.write(BUILD.replace('key_by("key")', 'key_by("number")'))


def _without_operator(bench: Bench) -> None:
    bench.write(STREAM + "rows.sink_to(sink(), uid='totals')")


def _other_source(bench: Bench) -> None:
    bench.write(BUILD, JOB.replace("Row", "Event"))


def _other_source_uid(bench: Bench) -> None:
    bench.write(BUILD.replace('uid="rows"', 'uid="events"'))


CHANGED = {
    "another job": Case(_set("name", "other"), WrongJobRoot, "wrong-job-root", ("'job'", "'other'", "root")),
    "another max parallelism": Case(
        _set("max_parallelism", "64"), WrongJobRoot, "wrong-job-root", ("128", "64")
    ),
    "other key types": Case(_key_by_number, WrongJobRoot, "wrong-job-root", ("'sum'", "string", "bigint")),
    "a newer format": Case(_format(_newer), WrongJobRoot, "wrong-job-root", ("99", "format")),
    "too high a parallelism": Case(_set("parallelism", "129"), ConfigError, "config", ("129", "128")),
    "an operator is gone": Case(_without_operator, ConfigError, "config", ("'sum'", "uids")),
    "a source has another uid": Case(_other_source_uid, ConfigError, "config", ("'rows'", "'events'")),
    "a source reads something else": Case(
        _other_source, ConfigError, "config", ("'rows'", "[Row]", "[Event]")
    ),
}


@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_a_job_that_does_not_fit_its_root(ran: Bench, case: Case) -> None:
    check(ran, case)


# -- damage -------------------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _newest(pattern: str) -> Callable[[Bench], Path]:
    return lambda bench: max(Path(bench.root).glob(pattern))


VICTIMS = {
    "FORMAT": _newest("FORMAT"),
    "the newest log entry": _newest("log/*"),
    "the manifest": _newest("data/*/*/manifest.json"),
    "a data file of RocksDB": lambda bench: bench.state_files()[-1],
}


@pytest.mark.parametrize("damage", [_flip, _truncate], ids=["bit", "end"])
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS)
def test_a_damaged_file_is_named(
    ran: Bench, victim: Callable[[Bench], Path], damage: Callable[[Path], object]
) -> None:
    path = victim(ran)
    name = str(path.relative_to(ran.root))
    check(ran, Case(lambda b: damage(path), CorruptFile, "corrupt-file", (name,)))


@pytest.mark.parametrize("victim", [v for k, v in VICTIMS.items() if k not in ("FORMAT", "the newest log entry")],
                         ids=[k for k in VICTIMS if k not in ("FORMAT", "the newest log entry")])  # fmt: skip
def test_a_missing_file_is_named(ran: Bench, victim: Callable[[Bench], Path]) -> None:
    path = victim(ran)
    check(ran, Case(lambda b: path.unlink(), MissingFile, "missing-file", (str(path.relative_to(ran.root)),)))
