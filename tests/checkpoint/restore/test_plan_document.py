"""What a restore's plan warns of before it is carried out."""

from __future__ import annotations

from typing import Any

from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.log.documents import SinkMode
from stateflow.checkpoint.log.entry_lists import RetentionLimits
from stateflow.checkpoint.restore.graph_map import DroppedState, StateKind
from stateflow.checkpoint.restore.plan_document import (
    GraphPlan,
    RestorePlan,
    SavedCheckpoint,
    SinkChange,
    SinkLeft,
    SourceAction,
    SourceChange,
    StateAction,
    StateChange,
    cautions,
    describe_replay,
    is_outdated,
)
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from tests.checkpoint.log.memory_job import MemoryJob


def _plan(**more: Any) -> RestorePlan:
    current = {"job": "j", "job_uuid": "u", "head": 9, "generation": 1, "ordinal": 3, "checkpoint_id": 9}
    target = {"target": "3", "label": "checkpoint 3", "target_checkpoint": 3, "target_sha256": "s"}
    changes: dict[str, Any] = {"operators": ["a"], "states": [], "sources": [], "sinks": [], "parallelism": 2}
    times = {"target_at": "2026-01-31T03:00:00+00:00", "made_at": "now"}
    return RestorePlan(
        **{"mode": SinkMode.RESTORE, "graph": GraphPlan(), **current, **target, **changes, **times, **more}
    )


def _source(held: bool | None, files: int | None = None) -> SourceChange:
    return SourceChange(uid="s", now="9", then="3", held=held, files=files)


def _changed(action: SourceAction, uid: str = "s") -> SourceChange:
    return SourceChange(uid=uid, now="9", then="-", action=action)


def _sink(mode: SinkMode = SinkMode.RESTORE, others: tuple[str, ...] = (), uid: str = "out") -> SinkChange:
    return SinkChange(uid=uid, mode=mode, table_id="t", table="", now=9, then=3, others=others)


SAVED = [SavedCheckpoint(checkpoint_id=9, savepoint="late")]
PLANS = {
    "nothing": _plan(sources=[_source(True), _source(None)], sinks=[_sink()]),
    "input": _plan(sources=[_source(False)]),
    "kept-table": _plan(sinks=[_sink(SinkMode.KEEP)]),
    "kept-tables-and-checkpoints": _plan(sinks=[_sink(SinkMode.KEEP)], checkpoints_after=3),
    "one-kept-table": _plan(sinks=[_sink(), _sink(SinkMode.KEEP, uid="topic")], checkpoints_after=1),
    "one-kept-table-without-records": _plan(sinks=[_sink(), _sink(SinkMode.KEEP, uid="topic")]),
    "commit-of-others": _plan(sinks=[_sink(others=("MERGE by ada",))]),
    "commits-of-others": _plan(sinks=[_sink(others=tuple(f"v{n}" for n in range(1, 1205)))]),
    "dropped-state": _plan(states=[StateChange(uid="old", action=StateAction.DROPPED, bytes=3)]),
    "other-job": _plan(foreign=True, of_job="other 77"),
    "claimed-savepoint": _plan(savepoint="s3://bucket/kept/mine", claim_mode=ClaimMode.CLAIM),
    "table-of-a-removed-sink": _plan(
        sinks=[_sink()], left=[SinkLeft(uid="gone", table_id=t, checkpoint_id=9) for t in ("t", "u")]
    ),
    "checkpoints": _plan(dropped_checkpoints=[5, 9], saved=SAVED),
    "checkpoint-with-a-savepoint": _plan(dropped_checkpoints=[9], saved=SAVED),
    "run-that-has-not-ended": _plan(run_open=True, generation=12),
    "dropped-states": _plan(graph=GraphPlan(dropped=[DroppedState(kind=StateKind.KEYED, uid="a", state="s")])),
    "other-max-parallelism": _plan(graph=GraphPlan(old_max_parallelism=128, max_parallelism=1000)),
    "set-position": _plan(sources=[_changed(SourceAction.RESET)]),
    "replaced-source": _plan(sources=[_changed(SourceAction.REPLACED)]),
    "removed-source": _plan(sources=[_changed(SourceAction.REMOVED)]),
    "source-that-may-be-renamed": _plan(sources=[_changed(SourceAction.REMOVED), _changed(SourceAction.NEW, "n")]),
}


def test_each_risk_is_a_caution(golden: SnapshotAssertion) -> None:
    found = {name: [f"  {c.about or '-'}: {c.text}\n" for c in cautions(plan)] for name, plan in PLANS.items()}
    assert "".join(f"{name}:\n{''.join(lines)}" for name, lines in found.items()) == golden


def test_the_replay_is_described_with_its_rows_and_with_input_that_is_gone(golden: SnapshotAssertion) -> None:
    sinks = [_sink()]
    plans = {
        "the input exists": _plan(sources=[_source(True), _source(True)], sinks=sinks),
        "some of the input is gone": _plan(sources=[_source(True), _source(False)], sinks=sinks),
        "it is not known whether the input exists": _plan(sources=[_source(True), _source(None)], sinks=sinks),
        "1,234 rows in 5 files": _plan(sources=[_source(True, 2), _source(True, 3)], sinks=sinks, rows_again=1234),
        "a position is set": _plan(sources=[_source(True), _changed(SourceAction.RESET)], sinks=sinks, rows_again=0),
        "a source is new": _plan(sources=[_source(True), _changed(SourceAction.NEW)], sinks=sinks, rows_again=2),
        "one table is kept": _plan(sources=[_source(True)], sinks=[*sinks, _sink(SinkMode.KEEP, uid="topic")]),
        "the tables are kept": _plan(sources=[_source(True)], sinks=[_sink(SinkMode.KEEP)]),
    }
    texts = [describe_replay(plan) for plan in plans.values()]
    assert len(set(texts)) == len(texts)
    assert "".join(f"- {name}:\n{text}\n" for name, text in zip(plans, texts, strict=True)) == golden


def test_a_commit_or_a_claim_outdates_a_plan_and_a_pin_does_not() -> None:
    job = MemoryJob()
    job.commit(RetentionLimits(2))
    entry = job.head.entry
    plan = _plan(generation=entry.generation, ordinal=entry.ordinal, checkpoint_id=job.head.checkpoint_id)
    assert job.head.checkpoint is not None
    job.root.admin.pin(job.head.checkpoint, "anna", "reads")
    assert not is_outdated(plan, job.root.head())
    job.commit(RetentionLimits(2))
    assert is_outdated(plan, job.head)
    later = _plan(generation=entry.generation, ordinal=2, checkpoint_id=job.head.checkpoint_id)
    assert not is_outdated(later, job.head)
    assert is_outdated(later, job.root.claim())
