"""``stateflow doctor``: each thing that it looks at is told when it is well, and with the way out when it is not."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
from collections import namedtuple
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow import examination
from stateflow.checkpoint.job_format import NewJob
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.clock import ManualClock
from stateflow.examination import Finding, Health, _lifecycle, examine
from stateflow.storage import MemoryStorage, PosixStorage, PutResult, locate
from tests.cli.test_cli import invoke

HOUR = timedelta(hours=1)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this machine lets Python keep what it compiles is not for these tests to say."""
    monkeypatch.setattr(examination, "_SLOW_TO_COMPILE", ())


def found(root: str, local: Path, clock: ManualClock | None = None) -> dict[str, Finding]:
    return {f.what: f for f in examine(root, local, clock or ManualClock(1))}


def test_where_all_is_well_it_says_so_and_leaves_nothing(tmp_path: Path, local: Path) -> None:
    shown = invoke("doctor", "--job-root", str(tmp_path / "root"), "--local-dir", str(local))
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert {line[0] for line in lines} == {"ok"}
    assert "none there yet" in shown.stdout and "one of several writers wins" in shown.stdout
    assert list((tmp_path / "root").rglob("*")) == []


def test_without_a_job_root_it_looks_at_the_machine_alone(local: Path) -> None:
    told = json.loads(invoke("doctor", "--json", "--local-dir", str(local)).stdout)
    assert [t["what"] for t in told] == [
        "Python",
        "Java",
        "packages",
        "compiled packages",
        "Spark",
        "scratch space",
    ]


def test_no_java_is_told_with_how_to_get_one(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    shown = invoke("doctor", "--local-dir", str(local))
    assert shown.exit_code == 6
    assert "bad  Java" in shown.stdout and "hint: install Java 17" in shown.stdout


def test_packages_that_are_missing_and_a_spark_that_is_not_supported(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "_version", lambda name: {"pyspark": "3.5.0"}.get(name, ""))
    told = found("", local)
    assert told["packages"].health is Health.BAD and "rocksdict is not there" in told["packages"].found
    assert told["Spark"].health is Health.BAD and "3.5.0" in told["Spark"].found


def test_packages_that_each_process_compiles_anew_are_to_be_looked_at(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "a_large_package.py"
    module.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(examination, "_SLOW_TO_COMPILE", ("a_large_package", "one_that_is_not_there"))
    told = found("", local)["compiled packages"]
    assert told.health is Health.LOOK and told.found == "each process compiles a_large_package anew"
    assert "python -m compileall" in told.hint
    py_compile.compile(str(module))
    assert found("", local)["compiled packages"].health is Health.GOOD


def test_scratch_space_that_others_may_write_to_is_bad_and_little_of_it_is_to_be_looked_at(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.mkdir()
    os.chmod(local, 0o777)
    assert found("", local)["scratch space"].health is Health.BAD
    os.chmod(local, 0o700)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1 << 20))
    told = found("", local)["scratch space"]
    assert told.health is Health.LOOK and "0.0 GB free" in told.found


def test_a_root_that_cannot_be_one_is_told(tmp_path: Path, local: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert found(str(tmp_path / "file" / "root"), local)["permissions"].health is Health.BAD
    assert found("ftp://nowhere", local)["job root"].health is Health.BAD


class Careless(MemoryStorage):
    """Lets everybody believe to have created an object, as storages do whose put-if-absent is broken."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        super().delete([key])
        return super().put_new(key, data)


def test_a_storage_whose_put_if_absent_is_broken_is_found(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Careless("memory://careless")
    monkeypatch.setitem(locate._memory, storage.uri, storage)
    told = found(storage.uri, local)
    assert told["put-if-absent"].health is Health.BAD and "use another storage" in told["put-if-absent"].hint
    assert told["lifecycle rules"].health is Health.LOOK
    assert storage.list("") == []


@pytest.mark.parametrize(("uri", "health"), [
    ("s3://bucket/job", Health.LOOK), ("az://container/job", Health.LOOK), ("webhdfs://namenode:9870/job", Health.GOOD),
])  # fmt: skip
def test_only_buckets_have_lifecycle_rules(uri: str, health: Health) -> None:
    assert _lifecycle(MemoryStorage(uri)).health is health


class Forgetful(MemoryStorage):
    """Lists nothing."""

    def list(self, prefix: str, start_after: str = "") -> list[object]:  # type: ignore[override]
        return []


def test_a_storage_that_does_not_list_what_was_written_is_found(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Forgetful("memory://forgetful")
    monkeypatch.setitem(locate._memory, storage.uri, storage)
    assert found(storage.uri, local)["permissions"].health is Health.BAD


def test_a_clock_that_is_behind_the_newest_entry_is_told_with_whose_that_is(
    tmp_path: Path, local: Path
) -> None:
    clock = ManualClock(1)
    clock.sleep(HOUR)
    root = JobRoot.create_or_open(
        PosixStorage(tmp_path / "root"), clock, NewJob("job", 4, {}), "another-host:7"
    )
    root.claim()
    assert found(str(tmp_path / "root"), local, clock)["clock"].health is Health.GOOD
    told = found(str(tmp_path / "root"), local)
    assert told["job"].health is Health.GOOD and "log entry 1" in told["job"].found
    assert (
        told["clock"].health is Health.LOOK and "3600 s behind that of another-host:7" in told["clock"].found
    )
