"""A job root that cannot be used, or does not fit the job: each leads to an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.log.documents import FORMAT_VERSION, JobFormat
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.errors import ConfigError, WrongJobRoot
from stateflow.runtime.spark.session.requirements import check_root
from stateflow.storage import MemoryStorage, PosixStorage
from tests.support.cli_fixture import BUILD, JOB, STREAM, Case, CliFixture, check, contents
from tests.support.errors import raises

# -- roots that cannot be used ----------------------------------------------------------------------------------------

UNUSABLE = {
    "below a file": Case(lambda b: setattr(b, "root", str(b.job / "root")), ConfigError, shown=("job.py/root",)),
    "at a file": Case(lambda b: setattr(b, "root", str(b.job)), ConfigError, shown=("job.py",)),
    # A place where even root may not make folders.
    "read-only": Case(
        lambda b: setattr(b, "root", "/sys/stateflow-root"),
        ConfigError,
        {"path": "/sys/stateflow-root"},
        shown=("reason=",),
    ),
    "another scheme": Case(
        lambda b: setattr(b, "root", "hdfs://name/root"), ConfigError, {"uri": "hdfs://name/root"}, hint="webhdfs://"
    ),
}


@pytest.mark.parametrize("case", UNUSABLE.values(), ids=UNUSABLE)
def test_a_root_that_cannot_be_used_is_refused(cli: CliFixture, case: Case) -> None:
    check(cli, case)


def test_a_root_on_this_host_is_refused_if_tasks_run_on_other_hosts(tmp_path: Path) -> None:
    with raises(ConfigError, master="spark://example:7077") as refused:
        check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", False)
    assert "storage.shared=true" in refused.value.hint
    check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", True)
    check_root(PosixStorage(tmp_path / "root"), "local[2,4]", False)
    with raises(ConfigError, root="memory://x"):
        check_root(MemoryStorage("memory://x"), "local[2,4]", False)
    assert contents(tmp_path) == {}


# -- roots of another job ---------------------------------------------------------------------------------------------


def _set(name: str, value: str) -> Callable[[CliFixture], object]:
    return lambda cli: cli.settings.update({name: value})


def _write(build: str, head: str = JOB) -> Callable[[CliFixture], object]:
    return lambda cli: cli.write(build, head)


def _newer_format(cli: CliFixture) -> None:
    path = Path(cli.root, "FORMAT")
    document, _ = unseal(path.read_bytes(), JobFormat, "FORMAT")
    path.write_bytes(seal(msgspec.structs.replace(document, version=99))[0])


CHANGED = {
    "another job": Case(_set("name", "other"), WrongJobRoot, {"found": "job", "wanted": "other"}, shown=("root=",)),
    "another max parallelism": Case(
        _set("max_parallelism", "64"), WrongJobRoot, {"found": 128, "wanted": 64}, hint="max_parallelism"
    ),
    "other key types": Case(
        _write(BUILD.replace('key_by("key")', 'key_by("number")')),
        WrongJobRoot,
        {"uid": "sum", "found": ["string"], "wanted": ["bigint"]},
    ),
    "a newer format": Case(_newer_format, WrongJobRoot, {"found": 99, "known": FORMAT_VERSION}),
    "too high a parallelism": Case(_set("parallelism", "129"), ConfigError, {"value": 129, "max_parallelism": 128}),
    "an operator is gone": Case(
        _write(STREAM + "rows.sink_to(sink(), uid='totals')"), ConfigError, {"uids": ["sum"]}, hint="--drop"
    ),
    "a source has another uid": Case(
        _write(BUILD.replace('uid="rows"', 'uid="events"')), ConfigError, {"found": ["rows"], "wanted": ["events"]}
    ),
    "a source reads something else": Case(
        _write(BUILD, JOB.replace("Row", "Event")),
        ConfigError,
        {"uid": "rows", "before": "ScriptedSource[Row]", "now": "ScriptedSource[Event]"},
        hint="stateflow source relocate",
    ),
}


@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_a_job_that_does_not_fit_its_root_is_refused(ran: CliFixture, case: Case) -> None:
    check(ran, case)
