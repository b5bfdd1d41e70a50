"""What a start refuses, so that no state and no output is lost unnoticed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.errors import ConfigError, IncompatibleState, SinkDiverged, UserCodeError
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.planning.state_discovery import discover_state_schemas, discover_states_if_possible
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import Build, Growing, LocalJobs

ROWS = [Row(f"k{i % 3}", i) for i in range(30)]


class Count(KeyedProcessFunction[Row, Row]):
    def __init__(self, value_type: type[Any] = int) -> None:
        self.value_type = value_type

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", self.value_type))

    def process_element(self, row: Row, ctx: Context) -> tuple[Row]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return (Row(row.key, int(count)),)


class CountJobs(LocalJobs):
    """Runs of a job that counts the rows of each key, ten rows to a batch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, source__max_rows_per_batch=10)
        self.input = list(ROWS)

    def build(self, *sinks: str, function: Count | None = None) -> Build:
        def build(env: StreamExecutionEnvironment) -> None:
            rows = env.from_source(Growing(self.input, Row), uid="rows").key_by("key")
            counts = rows.process(function or Count(), output=Row, uid="count")
            for name in sinks:
                counts.sink_to(self.sink(name), uid=name)

        return build

    def count(self, *sinks: str, function: Count | None = None, **settings: Any) -> JobRun:
        run = self.prepare(self.build(*sinks, function=function), **settings)
        self.execute(run)
        return run

    def entries(self) -> int:
        return len(list((self.folder / "root" / "log").iterdir()))


@pytest.fixture
def jobs(tmp_path: Path) -> CountJobs:
    return CountJobs(tmp_path)


def test_a_finished_run_has_recorded_its_publications_so_that_a_sink_can_be_removed(jobs: CountJobs) -> None:
    head = jobs.count("a", "b").job.root.head()
    assert pending_of(head) == []
    assert {name: p.checkpoint_id for name, p in head.entry.published.items()} == {
        "a": head.checkpoint_id,
        "b": head.checkpoint_id,
    }
    jobs.input += [Row("k0", 30)]
    jobs.count("a")
    assert (len(jobs.rows("a")), len(jobs.rows("b"))) == (31, 30)


def test_a_sink_with_pending_output_cannot_be_removed(jobs: CountJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.count("a", "b", run__max_batches=1)
    run = jobs.prepare(jobs.build("a", "b"))
    # It ends after its last publication, as by SIGKILL.
    monkeypatch.setattr(run, "finish", lambda: None)
    jobs.execute(run)
    before = jobs.entries()
    with raises(ConfigError, sinks=["b"]):
        jobs.count("a")
    assert jobs.entries() == before
    assert pending_of(run.job.root.head())


def test_a_sink_keeps_its_uid_while_its_table_is_the_same(jobs: CountJobs) -> None:
    def renamed(env: StreamExecutionEnvironment) -> None:
        env.from_source(Growing(jobs.input, Row), uid="rows").sink_to(jobs.sink("a"), uid="b")

    jobs.count("a")
    with raises(ConfigError, sink="b", before="a"):
        jobs.run(renamed)


def test_a_dropped_table_is_not_created_again(jobs: CountJobs) -> None:
    jobs.count("a")
    shutil.rmtree(jobs.folder / "a")
    before = jobs.entries()
    with raises(SinkDiverged, sink="a", found=None) as refused:
        jobs.count("a")
    assert refused.value.facts.keys() >= {"known", "found"}
    assert jobs.entries() == before
    assert not (jobs.folder / "a").exists()


class OpenedByTasksOnly(Count):
    opened = 0

    def open(self, ctx: RuntimeContext) -> None:
        type(self).opened += 1
        if self.opened == 1:
            raise OSError("only workers reach this")
        super().open(ctx)


@pytest.mark.parametrize(("function", "facts"), [(Count, {"operator": "count"}), (OpenedByTasksOnly, {})])
def test_a_state_of_another_type_is_refused_before_the_claim_or_else_by_a_task(
    jobs: CountJobs, function: type[Count], facts: dict[str, str]
) -> None:
    run = jobs.count("a", run__max_batches=1)
    before = jobs.entries()
    with raises(IncompatibleState, stored="int", declared="str", **facts):
        jobs.count("a", function=function(str))
    if function is Count:
        assert jobs.entries() == before
    else:
        assert run.job.root.head().entry.generation > run.head.entry.generation
    jobs.count("a")
    assert len(jobs.rows("a")) == 30


def test_a_widened_state_is_restored_and_the_manifest_has_both_types(jobs: CountJobs) -> None:
    jobs.count("a", run__max_batches=1)
    run = jobs.count("a", function=Count(float))
    newest = run.job.root.checkpoints.manifest_at(run.job.root.head())
    assert newest is not None and run.manifest is not None
    (schema,) = newest.operators[0].states
    assert schema.type is not None and schema.type.root.kind == "float"
    assert [old.root.kind for old in schema.earlier] == ["int"]
    assert newest.columns == {"rows": {"key": "string", "number": "bigint", "other": "double"}}
    assert len(jobs.rows("a")) == 30


def _plan(function: Count) -> JobPlan:
    env = StreamExecutionEnvironment()
    rows = env.from_source(Growing(ROWS, Row), uid="rows").key_by("key")
    rows.process(function, output=Row, uid="count")
    return plan_job(env.graph, 1)


def test_an_open_that_fails_in_the_driver_does_not_prevent_a_start(caplog: pytest.LogCaptureFixture) -> None:
    class FailsToOpen(Count):
        def open(self, ctx: RuntimeContext) -> None:
            raise OSError("only workers reach this")

    plan = _plan(FailsToOpen())
    assert discover_states_if_possible(plan, 128) == {}
    assert "only workers reach this" in caplog.text
    with raises(UserCodeError, operator="count") as refused:
        discover_state_schemas(plan, 128)
    assert "only workers reach this" in refused.value.message
