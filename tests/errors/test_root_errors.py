"""A job root that cannot be used, does not fit the job, or is damaged: each leads to an error that names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.checkpoint.log.documents import FORMAT_VERSION, JobFormat
from stateflow.checkpoint.log.sealed_json import seal, unseal
from stateflow.errors import ConfigError, CorruptFile, MissingFile, WrongJobRoot
from stateflow.storage import MemoryStorage, PosixStorage
from tests.support.cli_fixture import BUILD, JOB, STREAM, Case, CliFixture, check, contents
from tests.support.errors import raises

# -- the job root -------------------------------------------------------------------------------------------------


def _below_a_file(bench: CliFixture) -> None:
    bench.root = str(bench.job / "root")


def _at_a_file(bench: CliFixture) -> None:
    bench.root = str(bench.job)


def _read_only(bench: CliFixture) -> None:
    """A place where even root may not make folders."""
    bench.root = "/sys/stateflow-root"


def _other_scheme(bench: CliFixture) -> None:
    bench.root = "hdfs://name/root"


UNUSABLE = [
    Case(_below_a_file, ConfigError, shown=("job.py/root",)),
    Case(_at_a_file, ConfigError, shown=("job.py",)),
    Case(_read_only, ConfigError, {"path": "/sys/stateflow-root"}, shown=("reason=",)),
    Case(_other_scheme, ConfigError, {"uri": "hdfs://name/root"}, hint="webhdfs://"),
]


@pytest.mark.parametrize("case", UNUSABLE, ids=lambda case: case.make.__name__)
def test_a_root_that_cannot_be_used(bench: CliFixture, case: Case) -> None:
    check(bench, case)


def test_a_root_of_this_host_with_tasks_on_others(tmp_path: Path) -> None:
    from stateflow.runtime.spark.settings import check_root

    with raises(ConfigError, master="spark://example:7077") as refused:
        check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", False)
    assert "storage.shared=true" in refused.value.hint
    check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", True)
    check_root(PosixStorage(tmp_path / "root"), "local[2,4]", False)
    with raises(ConfigError, root="memory://x"):
        check_root(MemoryStorage("memory://x"), "local[2,4]", False)
    assert contents(tmp_path) == {}


def _set(name: str, value: str) -> Callable[[CliFixture], object]:
    return lambda bench: bench.settings.update({name: value})


def _format(change: Callable[[JobFormat], JobFormat]) -> Callable[[CliFixture], object]:
    def make(bench: CliFixture) -> None:
        path = Path(bench.root, "FORMAT")
        document, _ = unseal(path.read_bytes(), JobFormat, "FORMAT")
        path.write_bytes(seal(change(document))[0])

    return make


def _newer(document: JobFormat) -> JobFormat:
    return JobFormat(version=99, job=document.job, job_uuid=document.job_uuid, max_parallelism=document.max_parallelism)


def _key_by_number(bench: CliFixture) -> None:
    bench.write(BUILD.replace('key_by("key")', 'key_by("number")'))


def _without_operator(bench: CliFixture) -> None:
    bench.write(STREAM + "rows.sink_to(sink(), uid='totals')")


def _other_source(bench: CliFixture) -> None:
    bench.write(BUILD, JOB.replace("Row", "Event"))


def _other_source_uid(bench: CliFixture) -> None:
    bench.write(BUILD.replace('uid="rows"', 'uid="events"'))


CHANGED = {
    "another job": Case(_set("name", "other"), WrongJobRoot, {"found": "job", "wanted": "other"}, shown=("root=",)),
    "another max parallelism": Case(
        _set("max_parallelism", "64"), WrongJobRoot, {"found": 128, "wanted": 64}, hint="max_parallelism"
    ),
    "other key types": Case(_key_by_number, WrongJobRoot, {"uid": "sum", "found": ["string"], "wanted": ["bigint"]}),
    "a newer format": Case(_format(_newer), WrongJobRoot, {"found": 99, "known": FORMAT_VERSION}),
    "too high a parallelism": Case(_set("parallelism", "129"), ConfigError, {"value": 129, "max_parallelism": 128}),
    "an operator is gone": Case(_without_operator, ConfigError, {"uids": ["sum"]}, hint="--drop"),
    "a source has another uid": Case(_other_source_uid, ConfigError, {"found": ["rows"], "wanted": ["events"]}),
    "a source reads something else": Case(
        _other_source,
        ConfigError,
        {"uid": "rows", "before": "ScriptedSource[Row]", "now": "ScriptedSource[Event]"},
        hint="stateflow source relocate",
    ),
}


@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_a_job_that_does_not_fit_its_root(ran: CliFixture, case: Case) -> None:
    check(ran, case)


# -- damage -------------------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _newest(pattern: str) -> Callable[[CliFixture], Path]:
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
    ran: CliFixture, victim: Callable[[CliFixture], Path], damage: Callable[[Path], object]
) -> None:
    path = victim(ran)
    name = str(path.relative_to(ran.root))
    check(ran, Case(lambda b: damage(path), CorruptFile, {"file": name}))


@pytest.mark.parametrize("name", ["the manifest", "a data file of RocksDB"])
def test_a_missing_file_is_named(ran: CliFixture, name: str) -> None:
    path = VICTIMS[name](ran)
    check(ran, Case(lambda b: path.unlink(), MissingFile, {"key": str(path.relative_to(ran.root))}))
