"""Canonical savepoints: the same state whichever backend wrote it, for any backend and parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow import operations
from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.testing.sinks import FolderSink
from tests.recovery.new_roots import NewRoot
from tests.support import root_files, stored_state
from tests.support.cli_fixture import BUILD, JOB, CliFixture, invoke
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.restores import check_after, go_back

BACKENDS: dict[str, dict[str, Any]] = {
    "rocksdb": {},
    "filesystem": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    "memory": {"state__backend": "memory"},
}
CANONICAL = ("--format", "canonical")
DATA = Path(__file__).parents[1] / "data"
SUMS = f"""{JOB}

class Sum(KeyedProcessFunction):
    def open(self, ctx):
        fields = [(name, *given) if isinstance(given, tuple) else (name, given) for name, given in FIELDS.items()]
        self.figures = msgspec.defstruct("Figures", fields)
        self.sum = ctx.get_state(ValueStateDescriptor("sum", self.figures))

    def process_element(self, row, ctx):
        last = self.sum.value()
        total = row.number + (last.total if last else 0)
        self.sum.update(self.figures(total))
        yield Total(row.key, int(total))

"""


def _document(job: AccountsJob, name: str) -> tuple[Path, dict[str, Any]]:
    (folder,) = (job.root / "savepoints").glob(f"{name}-*")
    return folder, root_files.unsealed((folder / "_savepoint").read_bytes())[0]


def _entries(root: Path, manifest: dict[str, Any]) -> dict[str, list[tuple[bytes, bytes]]]:
    """All stored entries of each operator, in order of keys."""
    return {
        operator["uid"]: sorted(e for s in operator["subtasks"] for e in stored_state.stored_entries(root, s))
        for operator in manifest["operators"]
    }


def _backends(manifest: dict[str, Any]) -> set[str]:
    return {s["backend"] for o in manifest["operators"] for s in o["subtasks"]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_canonical_savepoint_has_the_entries_of_the_backend(job: AccountsJob, backend: str) -> None:
    job.settings = BACKENDS[backend]
    job.run_to(60)
    report = job.create_savepoint("mine", *CANONICAL)
    folder, document = _document(job, "mine")
    assert report["format"] == document["format"] == "canonical"
    assert _backends(document["manifest"]) == {"canonical"} and _backends(job.manifest) == {backend}
    assert _entries(folder, document["manifest"]) == _entries(job.root, job.manifest)
    root_files.check_savepoint(folder)
    job.command("savepoint", "verify", "mine").check()


@pytest.mark.parametrize(
    ("written_by", "backend", "parallelism"),
    [("rocksdb", "memory", 5), ("filesystem", "rocksdb", 1), ("memory", "filesystem", 5)],
)
def test_a_canonical_savepoint_is_restored_into_another_backend_and_parallelism(
    job: AccountsJob, written_by: str, backend: str, parallelism: int
) -> None:
    """From the command line; `test_moved_state.py` has every pair."""
    job.settings = BACKENDS[written_by]
    job.run_to(50)
    job.create_savepoint("early", *CANONICAL)
    job.run_to(90)
    job.settings = {**BACKENDS[backend], "parallelism": parallelism}
    go_back(job, "early")
    check_after(job)
    assert _backends(job.manifest) == {backend}


@pytest.mark.parametrize("groups", [128, 5])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_canonical_savepoint_is_restored_into_another_type(tmp_path: Path, backend: str, groups: int) -> None:
    """A sum of integers becomes one of floats, with another field, in a new root."""
    cli = CliFixture(tmp_path)
    cli.write(BUILD + "FIELDS = {'total': int}\nROWS = ROWS[:6]\n", SUMS)
    cli.run()
    request = operations.SavepointRequest(name="mine", format=SavepointFormat.CANONICAL)
    made = operations.create_savepoint(cli.root, request)
    cli.write(BUILD + "FIELDS = {'total': float, 'note': (str, 'none')}\n", SUMS.replace('"table"', '"other table"'))
    cli.root = str(tmp_path / "new")
    changed = {**BACKENDS[backend], "max_parallelism": groups, "parallelism": 3}
    cli.settings |= {name.replace("__", "."): str(value) for name, value in changed.items()}
    shown = invoke(*cli.command("--from-savepoint", made.path))
    assert shown.exit_code == 0, shown.output
    rows = {(row["key"], row["total"]) for row in FolderSink(tmp_path / "other table").rows()}
    assert rows == {("abc"[n % 3], sum(range(n % 3, n + 1, 3))) for n in range(6, 12)}


@pytest.mark.parametrize("failpoint", ["task.restored:2", "task.snapshot:1"])
def test_a_run_that_is_killed_after_loading_state_leaves_nothing(job: AccountsJob, failpoint: str) -> None:
    job.settings = BACKENDS["memory"]
    job.run_to(50)
    job.create_savepoint("early", *CANONICAL)
    job.run_to(90)
    job.settings = {"parallelism": 3}
    go_back(job, "early")
    job.reach(failpoint)
    check_after(job)
    assert _backends(job.manifest) == {"rocksdb"}


def test_a_run_makes_a_canonical_savepoint(job: AccountsJob) -> None:
    job.deliver(100)
    made, _ = job.asked_at("batch.begin:3", "savepoint", "create", "--name", "mine", "--json", *CANONICAL)
    assert made.check().document["taken_by"] == "run"
    folder, document = _document(job, "mine")
    assert document["format"] == "canonical" and _backends(document["manifest"]) == {"canonical"}
    root_files.check_savepoint(folder)


@pytest.mark.parametrize("step", ["started", "share", "copied", "complete"])
def test_a_killed_canonical_savepoint_is_complete_or_does_not_exist(job: AccountsJob, step: str) -> None:
    job.run_to(60)
    create = ("savepoint", "create", "--name", "mine", "--request-id", "r1", "--json", *CANONICAL)
    assert job.begin(*create, failpoint=f"savepoint.{step}").wait().code == KILLED
    job.command(*create).check()
    job.command("gc").check()
    folders = list((job.root / "savepoints").glob("mine-*"))
    complete = [f for f in folders if (f / "_savepoint").read_bytes() != b"given up\n"]
    assert len(complete) == 1
    root_files.check_savepoint(complete[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("golden", sorted((DATA / "canonical").iterdir()), ids=lambda folder: folder.name)
def test_savepoints_of_earlier_versions_are_read(job: AccountsJob, tmp_path: Path, golden: Path, backend: str) -> None:
    """Each was written at the 50th event, and is never changed; a new form of canonical files adds another one."""
    before = root_files.digests(golden)
    roots = NewRoot(job, tmp_path, golden)
    roots.new.settings = {**roots.new.settings, **BACKENDS[backend]}
    roots.run_to(120, "--set", "parallelism=3")
    assert root_files.digests(golden) == before
