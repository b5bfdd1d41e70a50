"""What a start refuses, so that nothing is lost in silence."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.errors import ConfigError, IncompatibleState, JobDefinitionError, SinkDiverged, UserCodeError
from stateflow.operations import collect_garbage
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.loader import create_or_open_job, load_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.planning.state_discovery import declared_states, declared_states_if_known
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource
from tests.support.errors import raises


class Row(msgspec.Struct):
    key: str
    number: int


class Count(KeyedProcessFunction[Row, Row]):
    def __init__(self, value_type: type[Any] = int) -> None:
        self.value_type = value_type

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", self.value_type))

    def process_element(self, row: Row, ctx: Context) -> tuple[Row]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return (Row(row.key, int(count)),)


class Bench:
    """A job root, a script of rows, and runs over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = [Row(f"k{i % 3}", i) for i in range(30)]

    def run(self, build: Callable[[StreamExecutionEnvironment], object], **settings: str) -> JobRun:
        layer = {"local_dir": str(self.folder / "scratch"), **settings}
        env, resolved = declare(build, "job", (layer,))
        run = JobRun(
            create_or_open_job(env.graph, resolved, open_storage(str(self.folder / "root")), SystemClock()),
            LocalExecutor(),
        )
        source = env.graph.sources[0].source
        assert isinstance(source, ScriptedSource)
        try:
            run.start()
            run_local(run, {"rows": source}, lambda result: None)
        finally:
            store_cache.close_all()
        return run

    def source(self) -> ScriptedSource:
        return ScriptedSource(Row, self.rows, self.folder / "ledger")

    def build(
        self, *sinks: str, value_type: type[Any] = int, function: Count | None = None
    ) -> Callable[[StreamExecutionEnvironment], object]:
        def build(env: StreamExecutionEnvironment) -> None:
            counts = (
                env.from_source(self.source(), uid="rows")
                .key_by("key")
                .process(function or Count(value_type), output=Row, uid="count")
            )
            for name in sinks:
                counts.sink_to(FolderSink(self.folder / name), uid=name)

        return build

    def entries(self) -> int:
        return len(list((self.folder / "root" / "log").iterdir()))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_run_that_ended_well_has_told_the_log_that_everything_is_published(bench: Bench) -> None:
    run = bench.run(bench.build("a", "b"))
    head = run.job.root.head()
    assert pending_of(head) == []
    assert {name: p.checkpoint_id for name, p in head.entry.published.items()} == {
        "a": head.checkpoint_id,
        "b": head.checkpoint_id,
    }


def test_a_sink_can_be_removed_after_a_run_that_ended_well(bench: Bench) -> None:
    bench.run(bench.build("a", "b"))
    bench.rows += [Row("k0", 30)]
    bench.run(bench.build("a"))
    assert len(FolderSink(bench.folder / "a").rows()) == 31
    assert len(FolderSink(bench.folder / "b").rows()) == 30


def test_a_sink_with_unpublished_output_cannot_be_removed(bench: Bench) -> None:
    bench.run(bench.build("a", "b"), **{"run.max_batches": "1"})
    run = _stopped_before_settling(bench)
    before = bench.entries()
    with raises(ConfigError, sinks=["b"]):
        bench.run(bench.build("a"))
    assert bench.entries() == before
    assert pending_of(run.job.root.head())


def _stopped_before_settling(bench: Bench) -> JobRun:
    """A run that ended after its last publication, as by SIGKILL."""
    env, resolved = declare(bench.build("a", "b"), "job", ({"local_dir": str(bench.folder / "scratch")},))
    run = JobRun(
        create_or_open_job(env.graph, resolved, open_storage(str(bench.folder / "root")), SystemClock()),
        LocalExecutor(),
    )
    run.finish = lambda: None  # type: ignore[method-assign]
    source = env.graph.sources[0].source
    assert isinstance(source, ScriptedSource)
    run.start()
    run_local(run, {"rows": source}, lambda result: None)
    return run


def test_a_table_that_was_dropped_is_not_made_anew(bench: Bench) -> None:
    bench.run(bench.build("a"))
    shutil.rmtree(bench.folder / "a")
    before = bench.entries()
    with raises(SinkDiverged, sink="a", found=None) as refused:
        bench.run(bench.build("a"))
    assert refused.value.facts.keys() >= {"known", "found"}
    assert bench.entries() == before
    assert not (bench.folder / "a").exists()


def test_another_table_in_the_place_of_ours_is_refused(bench: Bench) -> None:
    bench.run(bench.build("a"))
    run = bench.run(bench.build("a", "other"))
    shutil.rmtree(bench.folder / "a")
    shutil.copytree(bench.folder / "other", bench.folder / "a")
    known = run.head.entry.published["a"].table_id
    with raises(SinkDiverged, sink="a", known=known) as refused:
        bench.run(bench.build("a", "other"))
    assert refused.value.facts["found"] not in (None, known)


def test_a_state_of_another_type_is_refused_before_the_claim(bench: Bench) -> None:
    bench.run(bench.build("a"), **{"run.max_batches": "1"})
    before = bench.entries()
    with raises(IncompatibleState, operator="count", stored="int", declared="str"):
        bench.run(bench.build("a", value_type=str))
    assert bench.entries() == before
    bench.run(bench.build("a"))
    assert len(FolderSink(bench.folder / "a").rows()) == 30


def test_a_task_refuses_it_too_when_the_driver_could_not_ask(bench: Bench) -> None:
    class OpenedByTasksOnly(Count):
        opened = 0

        def open(self, ctx: RuntimeContext) -> None:
            type(self).opened += 1
            if self.opened == 1:
                raise OSError("only workers reach this")
            super().open(ctx)

    run = bench.run(bench.build("a"), **{"run.max_batches": "1"})
    with raises(IncompatibleState, stored="int", declared="str"):
        bench.run(bench.build("a", function=OpenedByTasksOnly(str)))
    assert run.job.root.head().entry.generation > run.head.entry.generation, "it was refused before the claim"
    bench.run(bench.build("a"))
    assert len(FolderSink(bench.folder / "a").rows()) == 30


def test_a_widened_state_goes_on_and_the_manifest_knows_both_types(bench: Bench) -> None:
    bench.run(bench.build("a"), **{"run.max_batches": "1"})
    run = bench.run(bench.build("a", value_type=float))
    assert run.manifest is not None
    newest = run.job.root.checkpoints.manifest_at(run.job.root.head())
    assert newest is not None
    (schema,) = newest.operators[0].states
    assert schema.type is not None and schema.type.root.kind == "float"
    assert [old.root.kind for old in schema.earlier] == ["int"]
    assert newest.columns == {"rows": {"key": "string", "number": "bigint"}}
    assert len(FolderSink(bench.folder / "a").rows()) == 30


def test_declared_states_are_found_on_a_copy_and_closed(bench: Bench) -> None:
    class Opened(Count):
        closed = 0

        def close(self) -> None:
            type(self).closed += 1

    function = Opened()
    env = StreamExecutionEnvironment()
    env.from_source(bench.source(), uid="rows").key_by("key").process(function, output=Row, uid="count")
    declared = declared_states(plan_job(env.graph, 1), 128)
    assert [(d.schema.name, d.schema.value_type) for d in declared["count"].keyed] == [("count", "int")]
    assert not hasattr(function, "count") and Opened.closed == 1


def test_an_open_that_needs_what_only_tasks_have_does_not_stop_a_start(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Elsewhere(Count):
        def open(self, ctx: RuntimeContext) -> None:
            raise OSError("only workers reach this")

    env = StreamExecutionEnvironment()
    env.from_source(bench.source(), uid="rows").key_by("key").process(Elsewhere(), output=Row, uid="count")
    plan = plan_job(env.graph, 1)
    assert declared_states_if_known(plan, 128) == {}
    assert "only workers reach this" in caplog.text
    with raises(UserCodeError, operator="count") as refused:
        declared_states(plan, 128)
    assert "only workers reach this" in refused.value.message


def test_a_preview_of_retention_tells_what_retention_then_does(bench: Bench) -> None:
    bench.run(bench.build("a"))
    root = str(bench.folder / "root")
    preview = collect_garbage(root, retain=1, dry_run=True)
    done = collect_garbage(root, retain=1)
    assert preview.files > 0
    # The entry that lets the older checkpoints go is in the log only afterwards.
    assert (preview.files, preview.bytes_freed, preview.retained) == (done.files, done.bytes_freed, done.retained)


@pytest.mark.parametrize("name", ["json", "msgspec"])
def test_a_job_file_may_not_take_the_name_of_another_module(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text("def build(env): ...\n")
    with raises(JobDefinitionError, path=str(path), module=name):
        load_job(path)


def test_a_job_file_is_what_it_is_now_whatever_its_time_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "edited.py"
    for version in (1, 2):
        path.write_text(f"VERSION = {version}\ndef build(env): ...\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert load_job(path).VERSION == version
    assert list(tmp_path.iterdir()) == [path], "nothing is written beside it"
