"""Plans of restores from the stored graph, compared with the plans that are made with the job's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateflow import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    ValueStateDescriptor,
    operations,
)
from stateflow.api.graph import JobFile
from stateflow.api.sink import PrintSink
from stateflow.checkpoint.history import read_history, read_pending_records
from stateflow.checkpoint.log.documents import ActionRecord, CheckpointRecord, SinkMode
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.plan_document import (
    GraphChanges,
    PlanPart,
    RestorePlan,
    SourceAction,
    StateAction,
    cautions,
    differing_parts,
    expected_plan_of,
    rows_removed_text,
)
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.config.sources import resolve
from stateflow.connectors.foreach_batch import ForeachBatchSink, OutputBatch
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError, StateflowError
from stateflow.operations.job_root import open_root
from stateflow.operations.restore_previews import (
    KnownHistory,
    PreviewRequest,
    RestorePreview,
    declared_graph,
    preview_restore,
)
from stateflow.operations.restores import plan_restore as plan_of_file
from stateflow.outputs import encode_json
from stateflow.runtime.job_loader import source_descriptions
from stateflow.runtime.planning.explain import explain_job, read_explanation
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.storage.paths import HISTORY, RUN_FILES
from tests.runtime.planning.test_explain import JOBS
from tests.support import graphs
from tests.support.cli_fixture import CliFixture
from tests.support.graphs import DeclaredJob
from tests.support.local_jobs import Growing, LocalJobs, plan_restore, prepared_job

Build = Callable[[StreamExecutionEnvironment], None]


class Row(msgspec.Struct, frozen=True):
    key: str
    value: int


class Sum(KeyedProcessFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        total = (self.total.value() or 0) + row.value
        self.total.update(total)
        yield Row(row.key, total)


class Job(LocalJobs):
    """A job with one or two operators, sources and sinks, whose runs are recorded."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        given: dict[str, Any] = {"parallelism": 2, "max_parallelism": 16, "checkpoints__retained": 20}
        super().__init__(folder, **given, **settings)
        self.file = JobFile("job.py", b"build = ...", datetime(2026, 1, 31, tzinfo=UTC))
        self.number = 0

    def build(
        self, operators: tuple[str, ...] = ("sum",), sources: tuple[str, ...] = ("rows",), sinks: str = "out"
    ) -> Build:
        rows = [Row("abc"[at % 3], at) for at in range(self.number)]

        def build(env: StreamExecutionEnvironment) -> None:
            streams = [env.from_source(Growing(rows, Row), uid=uid) for uid in sources]
            stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
            for uid in operators:
                summed = stream.key_by("key").process(Sum(), output=Row, uid=uid)
                for name in sinks.split():
                    uid_of_sink = name if uid == operators[0] else f"{name}-{uid}"
                    summed.sink_to(self.sink(uid_of_sink), uid=uid_of_sink)

        return build

    def grow(self, rows: int = 4, **of: Any) -> int:
        self.number += rows
        self.run(self.build(**of))
        return self.root.head().checkpoint_id

    @property
    def root(self) -> JobRoot:
        return JobRoot.open(self.storage, self.clock)

    @property
    def known(self) -> KnownHistory:
        root = self.root
        found = read_history(root.storage, read_pending_records(root, root.head()))
        return KnownHistory(
            [r for r in found if isinstance(r, CheckpointRecord)], [r for r in found if isinstance(r, ActionRecord)]
        )

    def save(self, name: str) -> str:
        request = operations.SavepointRequest(name=name)
        return operations.create_savepoint(str(self.folder / "root"), request).path

    def go_back(self, target: int, **of: Any) -> None:
        plan = plan_restore(self, self.build(**of), target=str(target))
        execute_plan(prepared_job(self, self.build(**of)), plan, RestoreRequest(f"back-{plan.digest[:8]}"))

    def preview(self, target: object = "latest", *maps: str, **options: Any) -> RestorePreview:
        changes = GraphChanges(maps, tuple(options.pop("sources", ())))
        given = RestoreOptions(changes=changes, **options)
        return preview_restore(self.root, PreviewRequest(str(target), given), self.known)

    def plan(self, target: object = "latest", *maps: str, **options: Any) -> RestorePlan:
        found = self.preview(target, *maps, **options).plan
        assert found is not None
        return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.grow()
    job.grow()
    return job


def comparable(plan: RestorePlan, like: RestorePlan) -> dict[str, Any]:
    """Returns a plan as the plan `like`, which has less, would have it."""
    found, known = msgspec.to_builtins(plan), msgspec.to_builtins(like)
    assert isinstance(found, dict) and isinstance(known, dict)
    sinks = {sink["uid"]: sink for sink in known["sinks"]}
    for sink in found["sinks"]:
        sink["read"] = False
        if sinks[sink["uid"]]["rows_removed"] is None:
            sink |= dict.fromkeys(("target_version", "rows_removed", "rows_returned"))
    for source in found["sources"]:
        source |= {"available": None, "files": None}
    return {**found, "made_at": "", "code_hash": None, "code_difference": None}


def check_same(plan: RestorePlan, real: RestorePlan) -> None:
    assert comparable(real, plan) == comparable(plan, plan)
    assert differing_parts(real, expected_plan_of(plan)) == {}


def error_of(call: Callable[..., object], *given: object, **named: object) -> StateflowError:
    with pytest.raises(ConfigError) as e:
        call(*given, **named)
    return e.value


def test_it_is_the_plan_that_is_made_with_the_code_apart_from_tables_and_inputs(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    job.save("early")
    job.grow(8)
    for target in (first, "latest", "early", f"before:rows={job.number - 5}", "before:2999-01-01T00:00"):
        plan = job.plan(target)
        check_same(plan, plan_restore(job, job.build(), target=str(target)))
    plan = job.plan(first)
    assert [saved.savepoint for saved in plan.saved] == ["early"] and plan.rows_again == job.number - 4
    assert (plan.sinks[0].rows_removed, plan.sinks[0].target_version, plan.sinks[0].read) == (None, None, False)
    # Nothing was written after the newest checkpoint, as the log shows.
    newest, real = job.plan("latest").sinks[0], plan_restore(job, job.build()).sinks[0]
    assert (newest.rows_removed, newest.target_version) == (0, None) == (real.rows_removed, real.target_version)


def test_a_savepoint_that_was_disposed_of_saves_no_checkpoint(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    outside = f"file://{job.folder}/outside"
    operations.create_savepoint_into(str(job.folder / "root"), operations.SavepointRequest(name="away"), outside)
    job.save("early")
    job.save("late")
    saved = job.plan(first).saved
    assert [each.savepoint for each in saved[:2]] == ["early", "late"] and saved[2].savepoint.startswith(outside)
    assert saved == plan_restore(job, job.build(), target=str(first)).saved
    operations.dispose(str(job.folder / "root"), "early")
    assert job.plan(first).saved == plan_restore(job, job.build(), target=str(first)).saved == saved[1:]


def test_versions_are_not_guessed_after_a_restore(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    job.go_back(first)
    plan, real = job.plan("latest"), plan_restore(job, job.build())
    check_same(plan, real)
    assert plan.sinks[0].rows_removed is None
    job.grow()
    check_same(job.plan(first), plan_restore(job, job.build(), target=str(first)))


def written(plan: RestorePlan) -> dict[str, int | None]:
    return {sink.uid: sink.rows_written_since for sink in plan.sinks}


def test_the_rows_written_since_are_those_that_a_restore_removes_from_a_table_that_only_grows(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    job.save("early")
    second = job.grow(8)
    job.grow(3, sinks="out new")
    for target in (first, "early", second, "latest"):
        plan = job.plan(target)
        real = plan_restore(job, job.build(sinks="out new"), target=str(target))
        assert written(plan) == written(real) == {s.uid: s.rows_removed for s in real.sinks}, target
    # A sink that the target does not have: all of its rows.
    assert written(job.plan(first)) == {"out": 15, "new": 3}
    assert written(job.plan("latest")) == {"out": 0, "new": 0}
    # What is kept is what is written a second time.
    assert written(job.plan(first, keep_tables=frozenset({"new"}))) == {"out": 15, "new": 3}


def _receive(rows: pa.Table, batch: OutputBatch) -> None:
    """Receives rows, which no restore can remove."""


class Telling(Job):
    """A job that prints its rows, and gives them to a function, as well."""

    def build(self, *_: Any, **of: Any) -> Build:
        rows = [Row("abc"[at % 3], at) for at in range(self.number)]

        def build(env: StreamExecutionEnvironment) -> None:
            stream = env.from_source(Growing(rows, Row), uid="rows")
            stream.sink_to(self.sink("out"), uid="out")
            stream.sink_to(PrintSink(limit=0), uid="printed")
            stream.sink_to(ForeachBatchSink(_receive, on_rewind="keep"), uid="given")

        return build


def test_a_plan_announces_no_rows_removed_that_cannot_be(tmp_path: Path) -> None:
    job = Telling(tmp_path)
    first = job.grow()
    job.grow()
    real, plan = plan_restore(job, job.build(), target=str(first)), job.plan(first)
    check_same(plan, real)
    assert {s.uid: (s.rows_removed, s.rows_returned) for s in real.sinks} == {
        "out": (4, 0),
        "printed": (0, 0),
        "given": (0, 0),
    }
    assert {s.uid: rows_removed_text(s) for s in plan.sinks} == {"out": "at most 4", "printed": "0", "given": "0"}
    # Whether the function refuses the restore is only in the job file.
    found, known = ({caution.about for caution in cautions(each)} for each in (plan, real))
    assert found - known == {"function of given, sink out"}


def test_rows_that_a_restore_has_removed_do_not_count(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    job.grow(8)
    job.save("undone")
    job.go_back(first)
    assert written(job.plan("latest")) == {"out": 0}
    job.grow(3)
    again = job.number - 4
    for target in (first, "undone"):
        plan, real = job.plan(target), plan_restore(job, job.build(), target=str(target))
        (sink,) = real.sinks
        assert written(plan) == written(real) == {"out": sink.rows_removed} == {"out": again}, target
    assert (plan.undone, plan.rows_again, sink.rows_returned) == (True, None, 12)
    assert job.preview("undone").replay_ms is None


def test_rows_that_a_restore_has_kept_make_the_number_unknown(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    job.grow(8)
    plan = plan_restore(job, job.build(), target=str(first), keep_tables=frozenset({"out"}))
    execute_plan(prepared_job(job, job.build()), plan, RestoreRequest(f"keep-{plan.digest[:8]}"))
    after = job.grow(3)
    assert written(job.plan(first)) == {"out": None}
    job.grow(2)
    assert written(job.plan(after)) == {"out": 2}


def test_rows_of_a_sink_that_an_earlier_restore_has_left_and_that_came_back_are_unknown(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    job.grow(8, sinks="out more")
    plan = plan_restore(job, job.build(), target=str(first), keep_tables=frozenset({"more"}))
    assert [left.uid for left in plan.left] == ["more"]
    execute_plan(prepared_job(job, job.build()), plan, RestoreRequest(f"left-{plan.digest[:8]}"))
    assert job.known.actions[-1].facts["kept_tables"] == ["more"]
    after = job.grow(3, sinks="out more")
    real = plan_restore(job, job.build(sinks="out more"), target=str(first))
    again = job.number - 4
    assert written(job.plan(first)) == written(real) == {"out": again, "more": None}
    removed = {sink.uid: sink.rows_removed for sink in real.sinks}
    assert removed["out"] == again and (removed["more"] or 0) > again
    job.grow(1, sinks="out more")
    assert written(job.plan(after)) == {"out": 1, "more": 1}


def test_the_time_to_read_the_input_again_is_that_of_the_checkpoints_since_the_target(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    took = [r.duration_ms for r in job.known.checkpoints if r.checkpoint_id > first]
    assert job.preview(first).replay_ms == pytest.approx(sum(took))
    assert job.preview("latest").replay_ms == 0
    assert job.preview(first, sources=["rows=earliest"]).replay_ms is None
    # Without the record of a checkpoint, neither is known.
    less = KnownHistory(job.known.checkpoints[:-1], job.known.actions)
    found = preview_restore(job.root, PreviewRequest(str(first)), less)
    assert found.plan is not None and (found.replay_ms, written(found.plan)) == (None, {"out": None})


def test_the_checks_tell_what_is_known(job: Job) -> None:
    def checks() -> dict[str, bool | None]:
        return {check.name: check.ok for check in job.preview().checks}

    well = {"no-run": True, "no-restore": True, "newest-checkpoint": True, "graph": True, "target-files": True}
    assert checks() == well
    run = job.prepare(job.build())
    run.start()
    run.abandon()
    assert checks() == {**well, "no-run": False}
    manifest = job.root.checkpoints.manifest_at(job.root.head())
    assert manifest is not None
    job.storage.delete([next(file.key for operator in manifest.operators for file in operator.files)])
    assert checks() == {**well, "no-run": False, "target-files": False}


def test_a_dropped_operator_is_named_as_with_the_code(job: Job) -> None:
    first = job.grow(operators=("sum", "other"))
    fewer = job.build()
    real = error_of(lambda: plan_restore(job, fewer, target=str(first)))
    plan = plan_restore(job, fewer, target=str(first), drop=["other"])
    execute_plan(prepared_job(job, fewer), plan, RestoreRequest(f"drop-{plan.digest[:8]}"))
    job.grow()
    found = error_of(lambda: job.plan(first))
    assert (found.code, found.message) == (real.code, real.message)
    run = job.known.newest_run
    assert run is not None and found.facts["graph_of_generation"] == run.seq
    plan = job.plan(first, drop=frozenset({"other"}))
    check_same(plan, plan_restore(job, job.build(), target=str(first), drop=["other"]))
    assert {s.uid: s.action for s in plan.states} == {"sum": StateAction.MATCHED, "other": StateAction.DROPPED}


def test_a_renamed_operator_and_source_are_mapped(job: Job) -> None:
    first = job.root.head().checkpoint_id
    new: dict[str, Any] = {"operators": ("total",), "sources": ("lines",)}
    maps = ("sum=total", "rows=lines")
    plan = plan_restore(job, job.build(**new), *maps, target=str(first))
    execute_plan(prepared_job(job, job.build(**new)), plan, RestoreRequest(f"new-{plan.digest[:8]}"))
    job.grow(**new)
    plan = job.plan(first, *maps)
    check_same(plan, plan_restore(job, job.build(**new), *maps, target=str(first)))
    assert [(m.old, m.new) for m in plan.graph.moves] == [("sum", "total")]
    real = error_of(lambda: plan_restore(job, job.build(**new), target=str(first)))
    assert error_of(lambda: job.plan(first)).code == real.code


def test_the_position_of_a_source_is_a_text(job: Job) -> None:
    (change,) = job.plan(sources=["rows=earliest"]).sources
    assert (change.action, change.target_offset) == (SourceAction.RESET, "earliest")
    assert "known" in error_of(lambda: job.plan(sources=["other=earliest"])).facts
    for wrong in ("rows", "rows=soon", "rows=timestamp:noon"):
        error_of(job.plan, sources=[wrong])


def test_kept_tables(job: Job) -> None:
    job.grow(sinks="out more")
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    plan = job.plan(first, keep_tables=frozenset({"more"}))
    check_same(plan, plan_restore(job, job.build(sinks="out more"), target=str(first), keep_tables=frozenset({"more"})))
    assert {s.uid: s.mode for s in plan.sinks} == {"more": SinkMode.KEEP, "out": SinkMode.RESTORE}
    assert "uids" in error_of(lambda: job.plan(first, keep_tables=frozenset({"none"}))).facts
    kept = job.plan(first, sinks=SinkMode.KEEP)
    check_same(kept, plan_restore(job, job.build(sinks="out more"), target=str(first), sinks=SinkMode.KEEP))


def test_a_savepoint_of_another_job(job: Job, tmp_path: Path) -> None:
    other = Job(tmp_path / "other")
    other.grow()
    path = other.save("theirs")
    refused = error_of(lambda: job.plan(path))
    assert refused.facts["this_job"] == job.root.job.job_uuid
    plan = job.plan(path, from_other_job=True)
    assert plan.foreign and plan.sinks[0].mode is SinkMode.KEEP and plan.rows_again is None
    check_same(plan, plan_restore(job, job.build(), target=path, from_other_job=True))
    claimed = job.plan(path, from_other_job=True, claim_mode=ClaimMode.CLAIM)
    assert differing_parts(claimed, expected_plan_of(plan)).keys() == {PlanPart.CLAIM}


def test_wrong_targets(job: Job, tmp_path: Path) -> None:
    for target in ("7777777", "none", "before:rows=0", "before:soon", "before:nothing=1", str(tmp_path), "x" * 5000):
        real = error_of(plan_restore, job, job.build(), target=target)
        found = error_of(job.plan, target)
        assert (found.code, found.facts) == (real.code, real.facts), target
    assert error_of(lambda: job.plan(claim_mode=ClaimMode.CLAIM)).code == "config"


def test_conditions_are_not_compared_with_any_number_of_savepoints(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateflow.operations.restore_previews._MOST_POINTS", 2)
    job.save("one")
    job.save("two")
    assert job.plan("before:2999-01-01").target_checkpoint_id == job.root.head().checkpoint_id
    job.save("three")
    assert error_of(lambda: job.plan("before:2999-01-01")).facts["most"] == 2
    assert "three" not in error_of(lambda: job.plan("none")).hint
    assert job.plan("three").target_checkpoint_id == job.root.head().checkpoint_id


def test_a_job_without_a_checkpoint_has_no_plan(tmp_path: Path) -> None:
    job = Job(tmp_path)
    run = job.prepare(job.build())
    run.start()
    run.abandon()
    assert error_of(job.preview).code == error_of(lambda: plan_restore(job, job.build())).code


def test_without_a_stored_graph_there_are_checks_only(job: Job) -> None:
    for blob in job.storage.list(RUN_FILES):
        job.storage.delete([blob.key])
    found = job.preview()
    assert (found.plan, found.generation) == (None, 0)
    assert {c.name: c.ok for c in found.checks}["graph"] is None
    assert error_of(lambda: job.preview("none")).code == "config"
    for blob in job.storage.list(HISTORY):
        if "-run-" in blob.key:
            job.storage.delete([blob.key])
    assert job.preview().plan is None


def test_a_graph_that_is_not_of_the_newest_run_is_named(job: Job) -> None:
    job.file = None
    job.grow()
    assert {c.name: c.ok for c in job.preview().checks}["graph"] is False


def test_the_parts_that_differ_are_named_in_words(job: Job) -> None:
    first = job.root.checkpoints.restorable(job.root.head())[0].id
    expected = expected_plan_of(job.plan(first))
    assert len(expected) < 250
    job.grow()
    found = differing_parts(plan_restore(job, job.build(), target="latest"), expected)
    newest = job.root.head().checkpoint_id
    assert found.keys() == {PlanPart.TARGET, PlanPart.HEAD} and str(newest) in found[PlanPart.HEAD]
    # An expected plan that knows the versions is compared with them, too.
    known = expected_plan_of(plan_restore(job, job.build(), target=str(first)))
    later = plan_restore(job, job.build(), target="latest")
    assert PlanPart.VERSIONS in differing_parts(later, known)
    for wrong in ("x", "target=1", f"{expected},", f"other={'0' * 12}", f"{expected} "):
        error_of(differing_parts, later, wrong)


# -- a job file -------------------------------------------------------------------------------------------------------


def test_a_job_that_was_launched_has_the_same_plan_and_the_difference_of_its_file(tmp_path: Path) -> None:
    cli = CliFixture(tmp_path)
    cli.run()
    root = open_root(cli.root)
    found = read_history(root.storage, read_pending_records(root, root.head()))
    known = KnownHistory(
        [r for r in found if isinstance(r, CheckpointRecord)], [r for r in found if isinstance(r, ActionRecord)]
    )
    code = operations.JobCode(cli.job, (dict(cli.settings),))
    options = RestoreOptions()
    plan, real = (
        preview_restore(root, PreviewRequest("latest"), known).plan,
        plan_of_file(cli.root, code, "latest", options),
    )
    assert plan is not None and (plan.job_file_difference, real.job_file_difference) == (None, "")
    of_file = {"job_file": None, "job_file_changed_at": None, "job_file_difference": None}
    check_same(plan, msgspec.structs.replace(real, **of_file))
    before = cli.job.read_text()
    cli.job.write_text(f"{before}# a change\n")
    changed = plan_of_file(cli.root, code, "latest", options).job_file_difference
    assert changed is not None and changed.splitlines()[-1] == "+# a change"
    # The plan is still the one that was shown: its parts are.
    assert differing_parts(plan_of_file(cli.root, code, "latest", options), expected_plan_of(plan)) == {}
    for blob in root.storage.list(RUN_FILES):
        root.storage.delete([blob.key])
    assert plan_of_file(cli.root, code, "latest", options).job_file_difference is None


class Both(KeyedCoProcessFunction[graphs.Row, graphs.Row, graphs.Row]):
    def process_element1(self, row: graphs.Row, ctx: Context) -> None: ...

    def process_element2(self, row: graphs.Row, ctx: Context) -> None: ...


class Rules(KeyedBroadcastProcessFunction[graphs.Row, graphs.Row, graphs.Row]):
    def process_element(self, row: graphs.Row, ctx: Context) -> None: ...

    def process_broadcast_element(self, row: graphs.Row, ctx: Context) -> None: ...


def _inputs(job: DeclaredJob) -> None:
    other = job.source("more")
    both = job.rows.key_by("key", "number").connect(other.key_by("key", "number"))
    both.process(Both(), output=graphs.Row, uid="both").sink_to(graphs.Nowhere(), uid="out")
    job.rows.key_by("key").connect(other.broadcast()).process(Rules(), output=graphs.Row, uid="rules")


@pytest.mark.parametrize("declare", [*JOBS.values(), _inputs], ids=[*JOBS, "inputs"])
def test_a_stored_graph_has_the_operators_keys_sources_and_sinks_of_the_plan(
    declare: Callable[[DeclaredJob], object],
) -> None:
    job = DeclaredJob()
    declare(job)
    settings = resolve({"name": "job", "parallelism": 2})
    stored = read_explanation(encode_json(explain_job(job.env.graph, settings, on_spark=False)).encode())
    assert stored == explain_job(job.env.graph, settings, on_spark=False)
    plan, graph = plan_job(job.env.graph, 2), declared_graph(stored, 16)
    assert (graph.key_types, graph.sources) == (plan.key_types, source_descriptions(plan))
    assert set(graph.sinks) == {node.uid for node in job.env.graph.sinks} and graph.parallelism == 2


def test_a_graph_of_another_version_is_not_read() -> None:
    for data in (b"", b"[]", b"{}", b'{"job": 1}', b"\xff", b"[" * 100_000):
        assert read_explanation(data) is None
