"""``stateflow doctor``: what it reports as correct, and the problems that it reports, each with a fix."""

from __future__ import annotations

import json
import os
import platform
import py_compile
import re
import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.clock import ManualClock
from stateflow.operations.doctor import Finding, Health, examine, examine_storage, installed_version
from stateflow.runtime.spark.session.requirements import check_java
from stateflow.storage import MemoryStorage, PosixStorage, PutResult
from tests.support.cli_fixture import invoke
from tests.support.screens import normalized

MACHINE = ["Python", "Java", "packages", "compiled packages", "Spark", "scratch space"]
STORAGE = ["permissions", "put-if-absent", "job", "lifecycle rules", "requests"]
VERSIONS = dict.fromkeys(("delta-spark", "rocksdict", "pyarrow", "msgspec", "hdfs"), "1.2.3")


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


def _install(monkeypatch: pytest.MonkeyPatch, spark: str, **versions: str) -> None:
    """Lets the command find these versions of packages, whatever this machine has."""
    found = partial(examine, version_of={"pyspark": spark, **VERSIONS, **versions}.__getitem__, compiled=())
    monkeypatch.setattr("stateflow.cli.maintenance.examine", found)


def _found(local: Path, root: str = "", seconds: float = 0, compiled: tuple[str, ...] = ()) -> dict[str, Finding]:
    """The findings by what they are about, on a machine whose clock has advanced by so many seconds."""
    clock = ManualClock(1)
    clock.sleep(timedelta(seconds=seconds))
    return {f.check: f for f in examine(root, local, clock, compiled=compiled)}


def test_doctor_reports_no_problem_of_a_complete_machine(
    tmp_path: Path, local: Path, monkeypatch: pytest.MonkeyPatch, golden: SnapshotAssertion
) -> None:
    _install(monkeypatch, "4.2.0", obstore="0.12.1", **{"apache-airflow": ""})
    arguments = ("doctor", "--job-root", str(tmp_path / "root"), "--local-dir", str(local))
    shown = invoke(*arguments)
    assert shown.exit_code == 0, shown.output
    names: dict[str, Any] = {"python": platform.python_version(), "java": check_java(), "folder": tmp_path}
    assert normalized(shown.stdout, **names) == golden
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert [f["check"] for f in found] == MACHINE + STORAGE
    assert [(f["health"], f["hint"]) for f in found] == [("ok", None)] * len(found)
    assert list((tmp_path / "root").rglob("*")) == []


def test_doctor_reports_what_a_machine_lacks_with_a_hint(
    local: Path, monkeypatch: pytest.MonkeyPatch, golden: SnapshotAssertion
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    _install(monkeypatch, "3.5.0", obstore="", rocksdict="", **{"apache-airflow": ""})
    shown = invoke("doctor", "--local-dir", str(local))
    assert shown.exit_code == 6
    assert normalized(shown.stdout, python=platform.python_version(), local=local) == golden
    found = json.loads(invoke("doctor", "--json", "--local-dir", str(local)).stdout)
    assert [f["check"] for f in found] == MACHINE
    bad = {f["check"]: f for f in found if f["health"] == "error"}
    assert bad.keys() == {"Java", "packages", "Spark"} and all(f["hint"] for f in bad.values())
    assert "3.5.0" in bad["Spark"]["found"]


def test_the_packages_of_this_machine_are_found(local: Path) -> None:
    found = _found(local)
    assert (found["packages"].health, found["Spark"].health) == (Health.GOOD, Health.GOOD)
    assert installed_version("rocksdict") in found["packages"].found
    assert installed_version("a-package-that-does-not-exist") == ""


def test_doctor_warns_of_packages_that_each_process_compiles_again(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "a_large_package.py"
    module.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    packages = ("a_large_package", "one_that_is_not_there")
    found = _found(local, compiled=packages)["compiled packages"]
    assert found.health is Health.WARNING and "python -m compileall" in found.hint
    assert [name in found.found for name in packages] == [True, False]
    py_compile.compile(str(module))
    assert _found(local, compiled=packages)["compiled packages"].health is Health.GOOD


def test_doctor_rejects_scratch_space_that_others_may_write_to_and_warns_of_little_space(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.mkdir()
    os.chmod(local, 0o777)
    assert _found(local)["scratch space"].health is Health.BAD
    os.chmod(local, 0o700)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10, used=9, free=1 << 20))
    found = _found(local)["scratch space"]
    assert found.health is Health.WARNING and "0.0 GB" in found.found


def test_doctor_rejects_a_folder_or_address_that_cannot_be_a_job_root(tmp_path: Path, local: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert _found(local, str(tmp_path / "file" / "root"))["permissions"].health is Health.BAD
    assert _found(local, "ftp://nowhere")["job root"].health is Health.BAD


class Overwriting(MemoryStorage):
    """Lets each writer believe to have created an object, as storages do whose put-if-absent is broken."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        super().delete([key])
        return super().put_new(key, data)


class Forgetful(MemoryStorage):
    """Lists nothing."""

    def list(self, prefix: str, start_after: str = "") -> Any:
        return []


@pytest.mark.parametrize(
    ("storage", "what", "health"),
    [
        (Overwriting("memory://overwriting"), "put-if-absent", Health.BAD),
        (Forgetful("memory://forgetful"), "permissions", Health.BAD),
        (MemoryStorage("s3://bucket/job"), "lifecycle rules", Health.WARNING),
        (MemoryStorage("az://container/job"), "lifecycle rules", Health.WARNING),
        (MemoryStorage("webhdfs://namenode:9870/job"), "lifecycle rules", Health.GOOD),
    ],
    ids=lambda value: value.uri if isinstance(value, MemoryStorage) else None,
)
def test_what_a_storage_lacks_has_a_hint(storage: MemoryStorage, what: str, health: Health) -> None:
    (found,) = [finding for finding in examine_storage(storage, ManualClock(1)) if finding.check == what]
    assert (found.health, bool(found.hint)) == (health, health is not Health.GOOD)
    assert MemoryStorage.list(storage, "") == []


def test_doctor_warns_of_a_clock_that_is_earlier_than_the_newest_log_entry(tmp_path: Path, local: Path) -> None:
    storage, clock = PosixStorage(tmp_path / "root"), ManualClock(1)
    clock.sleep(timedelta(seconds=3600))
    JobRoot.create_or_open(storage, clock, NewJob("job", 4, {}), "another-host:7").claim()
    assert _found(local, str(tmp_path / "root"), seconds=3600)["clock"].health is Health.GOOD
    found = _found(local, str(tmp_path / "root"))
    assert found["job"].health is Health.GOOD and re.search(r"\b1\b", found["job"].found)
    assert found["clock"].health is Health.WARNING
    assert "3600 s" in found["clock"].found and "another-host:7" in found["clock"].found
