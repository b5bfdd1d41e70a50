"""Canonical savepoints: the same state whichever backend wrote it, for any backend, parallelism and max parallelism."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow import operations
from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.canonical.worker_pool import SavepointWorkers
from stateflow.checkpoint.savepoints.create import SavepointSpec, make_savepoint
from stateflow.clock import SystemClock
from stateflow.config.settings import SavepointSettings
from stateflow.operations import RekeyRequest, SavepointRequest, create_savepoint_into, rekey_savepoint
from stateflow.private_files import PREFIX
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.planner import RestoreOptions, make_restore_plan
from stateflow.runtime.spark.executor import SparkWorkers
from stateflow.storage import PosixStorage
from stateflow.testing.sinks import FolderSink
from tests.recovery.savepoints import BY_BACKEND, NewRoot, document_of
from tests.support import root_files, stored_state
from tests.support.cli_fixture import BUILD, JOB, CliFixture, invoke
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import BACKENDS, NAMES, PLACES, Row, Story, build_job, check_operator_state
from tests.support.restores import check_after, execute, go_back, plan, plan_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def _folder(job: AccountsJob) -> Path:
    (folder,) = (job.root / "savepoints").glob("mine-*")
    return folder


def _entries(root: Path, manifest: dict[str, Any]) -> dict[str, list[tuple[bytes, bytes]]]:
    """All stored entries of each operator, in order of keys."""
    return {
        operator["uid"]: sorted(e for s in operator["subtasks"] for e in stored_state.stored_entries(root, s))
        for operator in manifest["operators"]
    }


def _backends(manifest: dict[str, Any]) -> set[str]:
    return {s["backend"] for o in manifest["operators"] for s in o["subtasks"]}


@pytest.mark.parametrize("backend", BY_BACKEND)
def test_a_canonical_savepoint_has_the_entries_of_the_backend(job: AccountsJob, backend: str) -> None:
    job.settings = BY_BACKEND[backend]
    job.run_to(60)
    report = job.create_savepoint("mine", "--format", "canonical")
    folder = _folder(job)
    document = document_of(folder)
    assert report["format"] == document["format"] == "canonical"
    assert _backends(document["manifest"]) == {"canonical"} and _backends(job.manifest) == {backend}
    assert _entries(folder, document["manifest"]) == _entries(job.root, job.manifest)
    root_files.check_savepoint(folder)
    job.command("savepoint", "verify", "mine").check()


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize(("backend", "groups"), [("rocksdb", 128), ("memory", 5)])
def test_a_canonical_savepoint_is_restored_into_another_type(tmp_path: Path, backend: str, groups: int) -> None:
    """A sum of integers becomes one of floats, with another field, in a new root."""
    cli = CliFixture(tmp_path)
    cli.write(BUILD + "FIELDS = {'total': int}\nROWS = ROWS[:6]\n", SUMS)
    cli.run()
    request = operations.SavepointRequest(name="mine", format=SavepointFormat.CANONICAL)
    made = operations.create_savepoint(cli.root, request)
    cli.write(BUILD + "FIELDS = {'total': float, 'note': (str, 'none')}\n", SUMS.replace('"table"', '"other table"'))
    cli.root = str(tmp_path / "new")
    changed = {**BY_BACKEND[backend], "max_parallelism": groups, "parallelism": 3}
    cli.settings |= {name.replace("__", "."): str(value) for name, value in changed.items()}
    shown = invoke(*cli.command("--from-savepoint", made.path))
    assert shown.exit_code == 0, shown.output
    rows = {(row["key"], row["total"]) for row in FolderSink(tmp_path / "other table").rows()}
    assert rows == {("abc"[n % 3], sum(range(n % 3, n + 1, 3))) for n in range(6, 12)}


@pytest.mark.parametrize("golden", sorted((DATA / "canonical").iterdir()), ids=lambda folder: folder.name)
def test_savepoints_of_earlier_versions_are_read(job: AccountsJob, tmp_path: Path, golden: Path) -> None:
    """Each was written at the 50th event, and is never changed; a new form of canonical files adds another one."""
    before = root_files.digests(golden)
    roots = NewRoot(job, tmp_path, golden)
    roots.run_to(120, "--set", "parallelism=3")
    assert root_files.digests(golden) == before


# -- workers and files ------------------------------------------------------------------------------------------------


def _make(job: AccountsJob, settings: SavepointSettings, workers: SavepointWorkers) -> Path:
    """Makes a savepoint whose workers do not share a process, however small the state is."""
    workers.worth_a_worker = 0
    root = JobRoot.open(PosixStorage(job.root), SystemClock(), "a test")
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    spec = SavepointSpec(
        "mine", checkpoint, root.head().entry.published, format=SavepointFormat.CANONICAL, settings=settings
    )
    made = make_savepoint(root, spec, workers)
    return job.root / made.folder


@pytest.mark.slow(reason="runs a job in several processes")
def test_files_of_a_native_savepoint_are_merged(job: AccountsJob) -> None:
    job.run_to(60)
    job.create_savepoint("mine", "--set", "savepoint.native_files=3")
    folder = _folder(job)
    manifest = document_of(folder)["manifest"]
    keys = {f["handle"]["key"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]}
    assert len(keys) == 3
    assert _entries(folder, manifest) == _entries(job.root, job.manifest)
    job.command("savepoint", "verify", "mine").check()
    job.run_to(90)
    go_back(job, "mine")
    check_after(job)


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.spark
def test_workers_run_in_spark_tasks(job: AccountsJob, spark_session: SparkSession) -> None:
    job.run_to(60)
    before = _entries(job.root, job.manifest)
    on_spark = SparkWorkers()
    on_spark.context = spark_session.sparkContext
    folder = _make(job, SavepointSettings(worker_bytes=1, max_workers=2), on_spark)
    assert _entries(folder, document_of(folder)["manifest"]) == before
    assert spark_session.sparkContext.statusTracker().getJobIdsForGroup("stateflow-savepoint")
    root_files.check_savepoint(folder)


# -- another max parallelism ------------------------------------------------------------------------------------------


def _groups(root: Path, manifest: dict[str, Any]) -> set[int]:
    entries = [e for o in manifest["operators"] for s in o["subtasks"] for e in stored_state.stored_entries(root, s)]
    return {int.from_bytes(key[:2], "big") for key, _ in entries}


def _rekey(roots: NewRoot, groups: int | str, failpoint: str = "") -> Any:
    command = ("savepoint", "rekey", str(roots.savepoint), "--max-parallelism", groups, "--into", roots.tables.parent)
    return roots.old.begin(*map(str, (*command, "--name", "copy", "--json")), failpoint=failpoint).wait()


def _copy(roots: NewRoot, groups: int) -> Path:
    return Path(unquote(_rekey(roots, groups).check().document["path"].removeprefix("file://")))


@pytest.mark.parametrize("groups", [1, 1000])
def test_a_new_root_has_another_max_parallelism(roots: NewRoot, groups: int) -> None:
    settings = ("--set", f"max_parallelism={groups}", "--set", f"parallelism={min(3, groups)}")
    roots.run_to(120, *settings)
    assert root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]["max_parallelism"] == groups
    assert max(_groups(roots.new.root, roots.new.manifest)) < groups


def test_a_copy_of_a_savepoint_has_another_max_parallelism(roots: NewRoot) -> None:
    groups, before = 1000, document_of(roots.savepoint)
    copy = _copy(roots, groups)
    document = document_of(copy)
    # With it, a job continues with its tables.
    assert document["sinks"] == before["sinks"]
    assert (document["max_parallelism"], document["format"]) == (groups, "canonical")
    root_files.check_savepoint(copy)
    assert max(_groups(copy, document["manifest"])) < groups
    roots.savepoint = copy
    roots.run_to(120, "--set", f"max_parallelism={groups}", "--set", "parallelism=3")
    assert root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]["max_parallelism"] == groups


@pytest.mark.slow(reason="runs jobs many times")
def test_a_root_is_restored_to_a_copy_with_another_max_parallelism(roots: NewRoot) -> None:
    groups = 5
    copy = _copy(roots, groups)
    roots.old.run_to(90)
    planned = plan(roots.old, str(copy))
    assert (planned["graph"]["old_max_parallelism"], planned["graph"]["max_parallelism"]) == (groups, 128)
    hidden = {**planned, "graph": {**planned["graph"], "old_max_parallelism": None, "max_parallelism": None}}
    plan_file(roots.old).write_text(json.dumps(hidden))
    execute(roots.old).check_error(4, "plan-outdated")
    go_back(roots.old, str(copy))
    check_after(roots.old)


@pytest.mark.parametrize("step", ["share", "rekeyed"])
def test_a_killed_copy_is_completed_by_the_same_command(roots: NewRoot, step: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    roots.old.variables = {"TMPDIR": str(temporary)}
    assert _rekey(roots, 7, f"savepoint.{step}").code == KILLED
    assert bool(list(temporary.glob(f"{PREFIX}*"))) == (step == "share")
    assert not list(roots.tables.parent.glob("copy-*/_savepoint"))
    copy = _copy(roots, 7)
    assert list(temporary.glob(f"{PREFIX}*")) == []
    assert copy == _copy(roots, 7)
    assert list(roots.tables.parent.glob("copy-*")) == [copy]
    root_files.check_savepoint(copy)


def test_a_number_of_key_groups_out_of_range_is_refused(roots: NewRoot) -> None:
    for groups in ("0", "32769", "many"):
        assert _rekey(roots, groups).code == 2


# -- moves of random jobs ---------------------------------------------------------------------------------------------

ACTIONS = ["update", "clear", "add", "put", "remove", "tag", "collect", "rate", "timer", "no timer", "event timer"]
GROUPS = [1, 2, 7, 16, 64, 300]
MINUTES = [0, 20, 40, 60]


@dataclass(frozen=True)
class Setup:
    """How a job runs."""

    backend: str
    groups: int
    parallelism: int
    inline: int

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its runs."""
        return {
            "state__backend": self.backend, "state__inline_below_bytes": self.inline, "max_parallelism": self.groups,
            "parallelism": self.parallelism, "source__max_rows_per_batch": 1000,
        }  # fmt: skip


@dataclass(frozen=True)
class Move:
    """A job, its savepoint, and the job that begins with it.

    Attributes:
        rekeyed: max parallelism of a copy of the savepoint; None to use the savepoint itself.
        in_place: whether the job itself is restored, rather than begun in a new root.
        waits: time between the batches before the savepoint, and after it.
    """

    before: Setup
    after: Setup
    format: SavepointFormat
    writing: SavepointSettings
    rekeyed: int | None
    in_place: bool
    rows: tuple[list[Any], list[Any], list[Any]]
    waits: tuple[timedelta, timedelta]

    @property
    def raw_groups(self) -> int:
        """Key groups of raw keyed state; 0 where the max parallelism changes, because its keys are not known."""
        is_same = self.rekeyed in (None, self.before.groups) and self.before.groups == self.after.groups
        return self.before.groups if is_same else 0


def _setup(dice: random.Random, groups: int) -> Setup:
    return Setup(dice.choice(BACKENDS), groups, dice.randint(1, min(5, groups)), dice.choice([1, 4096]))


def _commands(dice: random.Random) -> list[Any]:
    count = dice.randint(1, 40)
    return [
        (dice.choice(PLACES), dice.choice(ACTIONS), dice.choice(NAMES), dice.randint(-3, 300)) for _ in range(count)
    ]


def _move(seed: int) -> Move:
    """A job that is restored in place keeps its max parallelism."""
    dice = random.Random(seed)
    in_place, groups = dice.random() < 0.5, dice.choice(GROUPS)
    after = groups if in_place or dice.random() < 0.3 else dice.choice(GROUPS)
    return Move(
        before=_setup(dice, groups), after=_setup(dice, after), format=dice.choice(list(SavepointFormat)),
        writing=SavepointSettings(
            worker_bytes=dice.choice([1, 100, 1 << 30]), max_workers=dice.randint(1, 6), native_files=dice.randint(0, 3)
        ),
        rekeyed=dice.choice([None, None, *GROUPS]), in_place=in_place,
        rows=(_commands(dice), _commands(dice), _commands(dice)),
        waits=(timedelta(minutes=dice.choice(MINUTES)), timedelta(minutes=dice.choice(MINUTES))),
    )  # fmt: skip


def _jobs(story: Story, setup: Setup, name: str) -> LocalJobs:
    return LocalJobs(story.folder / name, story.clock, **setup.settings)


def _savepoint(move: Move, jobs: LocalJobs, into: Path) -> str:
    request = SavepointRequest("moved", from_head=True, format=move.format, settings=move.writing)
    path = create_savepoint_into(jobs.storage.uri, request, str(into)).path
    if move.rekeyed is None:
        return path
    return rekey_savepoint(RekeyRequest(path, move.rekeyed, str(into), "copy")).path


def _go_back(story: Story, move: Move, savepoint: str) -> LocalJobs:
    """Restores the job itself, which has processed other rows after its savepoint."""
    old = _jobs(story, move.before, "old")
    noise = [Row(len(story.rows) + n, *place, "add", "", 1) for n, place in enumerate(PLACES)]
    old.run(build_job(old, [*story.rows, *noise], move.raw_groups))
    jobs = _jobs(story, move.after, "old")
    plan = make_restore_plan(jobs.prepare(story.build(jobs)).job, savepoint, RestoreOptions())
    execute_plan(jobs.prepare(story.build(jobs)).job, plan, RestoreRequest("back"))
    return jobs


def _check(story: Story, jobs: LocalJobs) -> None:
    story.check(jobs)
    root = jobs.prepare(story.build(jobs)).job.root
    manifest = root.checkpoints.manifest_at(root.head())
    assert manifest is not None
    check_operator_state(manifest, root.storage, story.expected, story.raw_groups)


def _check_move(move: Move, folder: Path) -> None:
    story = Story(folder, move.raw_groups)
    old = _jobs(story, move.before, "old")
    story.apply(old, move.rows[0])
    story.clock.sleep(move.waits[0])
    story.apply(old, move.rows[1])
    savepoint = _savepoint(move, old, folder / "savepoints")
    story.clock.sleep(move.waits[1])
    if move.in_place:
        new = _go_back(story, move, savepoint)
    else:
        new = story.start(_jobs(story, move.after, "new"), savepoint)
    _check(story, new)
    story.apply(new, move.rows[2])
    _check(story, new)
    story.check_timers(new)


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.slow(reason="as many examples as elsewhere"))])
def test_moved_state_equals_plain_dictionaries(share: int) -> None:
    """A part of the usual examples, because each runs two jobs several times."""

    @settings(max_examples=max(1, settings().max_examples // share))
    @given(seed=st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _check_move(_move(seed), Path(folder))

    check()


def test_random_moves_are_of_every_kind() -> None:
    """A test of the examples: without this, moves to the same place would pass."""
    found = [_move(seed) for seed in range(300)]
    assert {(m.before.backend, m.after.backend, m.in_place) for m in found} == set(
        product(BACKENDS, BACKENDS, [False, True])
    )
    assert {(m.format, m.rekeyed is None, m.before.groups == m.after.groups) for m in found} == set(
        product(SavepointFormat, [False, True], [False, True])
    )
    assert any(m.before.parallelism > m.after.parallelism for m in found)
    assert any(m.before.parallelism < m.after.parallelism for m in found)
    assert sum(m.raw_groups > 0 and m.before.parallelism != m.after.parallelism for m in found) > 30
