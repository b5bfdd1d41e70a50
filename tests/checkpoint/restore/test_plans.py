"""A restore's plan: which checkpoint a target means, what is read again, and what the plan warns of."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stateflow.api.sink import PrintSink, Sink
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import ABORTED, ActionRecord, Ancestry, CheckpointRecord, RestoreStep, SinkMode
from stateflow.checkpoint.restore import plan_document
from stateflow.checkpoint.restore.graph_map import DroppedState, StateKind, StateMove
from stateflow.checkpoint.restore.plan_document import (
    LARGEST_DIFFERENCE,
    ONLY_SHOWN,
    GraphPlan,
    PlanPart,
    Replay,
    RestorePlan,
    SavedCheckpoint,
    SinkChange,
    SinkKind,
    SinkLeft,
    SourceAction,
    SourceChange,
    StateAction,
    StateChange,
    cautions,
    describe_replay,
    difference_of_texts,
    differing_parts,
    expected_plan_of,
    is_outdated,
    rows_removed_text,
)
from stateflow.checkpoint.restore.targets import is_at_or_before, resolve_target
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.connectors.foreach_batch import ForeachBatchSink
from stateflow.errors import ConfigError
from stateflow.outputs import output_classes
from stateflow.state.handles import Document
from tests.checkpoint.log.memory_job import MemoryJob
from tests.checkpoint.records import record


def _plan(**more: Any) -> RestorePlan:
    current = {"job": "j", "job_uuid": "u", "head_seq": 9, "generation": 1, "ordinal": 3, "checkpoint_id": 9}
    target = {"target": "3", "target_label": "checkpoint 3", "target_checkpoint_id": 3, "target_sha256": "s"}
    changes: dict[str, Any] = {"operators": ["a"], "states": [], "sources": [], "sinks": [], "parallelism": 2}
    times = {"target_committed_at": "2026-01-31T03:00:00+00:00", "made_at": "now"}
    return RestorePlan(
        **{"mode": SinkMode.RESTORE, "graph": GraphPlan(), **current, **target, **changes, **times, **more}
    )


def _source(held: bool | None, files: int | None = None) -> SourceChange:
    return SourceChange(uid="s", current_offset=9, target_offset=3, available=held, files=files)


def _changed(action: SourceAction, uid: str = "s") -> SourceChange:
    return SourceChange(uid=uid, current_offset=9, action=action)


def _sink(mode: SinkMode = SinkMode.RESTORE, others: tuple[str, ...] = (), uid: str = "out") -> SinkChange:
    return SinkChange(uid=uid, mode=mode, table_id="t", table=None, current_version=9, target_version=3, others=others)


UNREAD = SinkChange(
    uid="out", mode=SinkMode.RESTORE, table_id="t", table=None, current_version=None, read=False, rows_removed=None
)
SAVED = [SavedCheckpoint(checkpoint_id=9, savepoint="late")]
RENAMED = [_changed(SourceAction.REMOVED), _changed(SourceAction.NEW, "n")]
LEFT = [SinkLeft(uid="gone", table_id=table, checkpoint_id=9) for table in ("t", "u")]
STATES = [StateChange(uid="old", action=StateAction.DROPPED, target_bytes=3)]


@pytest.mark.parametrize(
    ("plan", "about"),
    [
        (_plan(sources=[_source(True), _source(None)], sinks=[_sink()]), []),
        (_plan(sources=[_source(False)]), ["source s"]),
        (_plan(sinks=[_sink(SinkMode.KEEP)]), [""]),
        (_plan(sinks=[_sink(), _sink(SinkMode.KEEP, uid="topic")], checkpoints_after=1), ["sink topic"]),
        (_plan(sinks=[_sink(others=("MERGE by ada",))]), ["sink out"]),
        (_plan(sinks=[msgspec.structs.replace(_sink(others=("x",)), kind=SinkKind.TABLE)]), ["table of out"]),
        (_plan(sinks=[UNREAD, _sink(SinkMode.KEEP, uid="topic")], sources=[_source(True)]), ["sink out", "sink topic"]),
        (_plan(sinks=[UNREAD, msgspec.structs.replace(UNREAD, kind=SinkKind.TOPIC)]), ["topic of out", "sink out"]),
        # The log shows that nothing of it is removed.
        (_plan(sinks=[msgspec.structs.replace(UNREAD, rows_removed=0)], sources=[_source(True)]), []),
        (_plan(states=STATES), ["state of old"]),
        (_plan(foreign=True, parent_job="other", parent_job_uuid="77"), [""]),
        (_plan(savepoint_path="s3://bucket/kept/mine", claim_mode=ClaimMode.CLAIM), [""]),
        (_plan(sinks=[_sink()], left=LEFT), ["sink gone"] * 2),
        (_plan(dropped_checkpoint_ids=[5, 9], saved=SAVED), ["", ""]),
        (_plan(run_open=True, generation=12), [""]),
        (_plan(restore_open=True), [""]),
        (_plan(graph=GraphPlan(dropped=[DroppedState(kind=StateKind.KEYED, uid="a", state="s")])), ["state a.s"]),
        (_plan(graph=GraphPlan(old_max_parallelism=128, max_parallelism=1000)), ["keyed state"]),
        (_plan(sources=[_changed(SourceAction.RESET)]), ["source s"]),
        (_plan(sources=[_changed(SourceAction.REPLACED)]), ["source s"]),
        (_plan(sources=RENAMED), ["source s", "source n", ""]),
    ],
)
def test_each_risk_is_a_caution(plan: RestorePlan, about: list[str]) -> None:
    assert [caution.about for caution in cautions(plan)] == about


@pytest.mark.parametrize("sink", [PrintSink, ForeachBatchSink], ids=lambda sink: sink.__name__)
@pytest.mark.parametrize("read", [True, False])
def test_rows_that_cannot_be_removed_are_announced_as_staying(sink: type[Sink], read: bool) -> None:
    staying = SinkChange(
        uid="told",
        kind=SinkKind.of(sink.__name__),
        mode=SinkMode.RESTORE,
        table_id="t",
        table=None,
        current_version=0,
        read=read,
        rows_removed=0 if read else None,
        rows_written_since=4,
    )
    assert rows_removed_text(staying) == "0" and rows_removed_text(_sink(SinkMode.KEEP)) == "0"
    removed = msgspec.structs.replace(_sink(), rows_removed=None, rows_written_since=4)
    assert rows_removed_text(removed) == "at most 4"
    # It is said to stay with a sink whose rows are removed, and without.
    alone, both = (describe_replay(_plan(sinks=sinks)) for sinks in ([staying], [removed, staying]))
    assert "removes" not in alone and alone.endswith("written to told after the target stay.")
    assert "written to out after" in both and both.endswith("written to told after the target stay.")
    assert "stay" not in describe_replay(_plan(sinks=[removed]))


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


def _head(kept: list[int], restores: dict[int, int] | None = None, **entry: Any) -> Any:
    """Returns the head of a job that keeps these checkpoints and went back from one entry to another."""
    steps = [RestoreStep(seq=seq, base=base) for seq, base in (restores or {}).items()]
    seq = max([*kept, *(restores or {})])
    facts = {"generation": 1, "ordinal": 3, "ended": True, "claimed_for": "", "seq": seq, **entry}
    log_entry = SimpleNamespace(ancestry=Ancestry(restores=steps), **facts)
    return SimpleNamespace(entry=log_entry, checkpoint_id=kept[-1], kept=kept)


def _rows(number: int, base: int, rows: int = 10, out: int = 0, status: str = "completed") -> CheckpointRecord:
    rows_out = {"out": out} if out else {}
    return record(number, base_checkpoint_id=base, rows_in=rows, rows_out=rows_out, duration_ms=100, status=status)


def _restored(seq: int, *kept: str, kind: str = "restore") -> ActionRecord:
    facts: dict[str, object] = {"kept_tables": list(kept)} if kept else {}
    return ActionRecord(seq=seq, kind=kind, ended_at="now", by="", facts=facts)


LINE = [_rows(2, 0, 100, 70), _rows(3, 2, 7, 5), _rows(5, 3, 8, 6), _rows(5, 5, 900, 900, ABORTED)]
BACK = [_rows(2, 0), _rows(3, 2, 1000, 50), _rows(6, 2, 5, 4), _rows(7, 6, 1, 2)]
"""A job that went back from checkpoint 3 to 2, by entry 5."""
SAVED_AGAIN = [_rows(2, 0), _rows(3, 2, 1000, 50), _rows(6, 5, 5, 4)]
"""The same from a savepoint of checkpoint 2, whose state got the id of the restore."""


@pytest.mark.parametrize(
    ("head", "after", "records", "wanted"),
    [
        (_head([2, 3, 5]), 2, LINE, Replay(15, 2, 200, {"out": 11})),
        (_head([2, 3, 5]), 5, LINE, Replay(0, 0)),
        (_head([5]), 2, LINE, Replay(15, 2, 200, {"out": 11})),
        (_head([2, 7], {5: 2}), 2, [*BACK, _restored(5)], Replay(6, 2, 200, {"out": 6})),
        (_head([2, 6], {5: 2}), 5, [*SAVED_AGAIN, _restored(5)], Replay(5, 1, 100, {"out": 4})),
        (_head([2, 6], {5: 2}), 2, [*SAVED_AGAIN, _restored(5)], Replay(5, 1, 100, {"out": 4})),
        (_head([2, 7], {5: 2}), 3, [*BACK, _restored(5)], Replay(6, 2, 200, {"out": 6}, is_again=False)),
        (_head([2], {5: 2}), 2, [*BACK[:2], _restored(5)], Replay(0, 0)),
        (_head([2, 7], {5: 2}), 2, [*BACK, _restored(5, "out")], Replay(6, 2, 200, {"out": 6}, {"out"})),
        (_head([2, 7], {5: 2}), 6, [*BACK, _restored(5, "out")], Replay(1, 1, 100, {"out": 2})),
        (_head([2, 7], {5: 2}), 2, BACK, Replay(6, 2, 200, {"out": 6}, None)),
        (_head([2, 6], {5: 2}), 2, [*SAVED_AGAIN, _restored(2, kind="relocate")], Replay(5, 1, 100, {"out": 4})),
        (_head([2, 3, 5]), 2, [LINE[0], LINE[2]], None),
        (_head([2, 5]), 2, [LINE[0], _rows(5, 4)], None),
        (_head([3, 5]), 2, [_rows(3, 1), _rows(5, 3)], None),
        (_head([3, 5]), 2, [], None),
        (_head([5]), 2, [_rows(5, 5)], None),
    ],
    ids=(
        *("later-ones", "none-later", "not-kept", "went-back", "of-a-restore", "savepoint-restored", "target-undone"),
        *("just-restored", "kept-then", "kept-before", "unrecorded-restore", "relocated", "gap", "gap-of-one"),
        *("trimmed", "no-record", "endless"),
    ),
)
def test_what_follows_the_checkpoint_counts_unless_undone_and_a_missing_record_makes_the_count_unknown(
    head: Any, after: int, records: list[CheckpointRecord | ActionRecord], wanted: Replay | None
) -> None:
    kept = frozenset(head.kept)
    assert plan_document.count_replay(head, kept, after, reversed(records)) == wanted


def test_rows_of_a_sink_are_unknown_if_a_restore_has_kept_rows_that_it_undid() -> None:
    replay = Replay(6, 2, 200, {"out": 6, "more": 2}, {"out"})
    assert [replay.rows_written(uid) for uid in ("out", "more", "new")] == [None, 2, 0]
    assert Replay(6, 2, 200, {"out": 6}, None).rows_written("out") is None


@pytest.mark.parametrize(
    ("entry", "is_open"),
    [
        ({"ended": True}, False),
        ({"ended": False}, True),
        ({"ended": False, "generation": 5, "ordinal": 0}, False),
        ({"ended": False, "generation": 5, "ordinal": 1}, True),
        ({"ended": False, "claimed_for": "request"}, False),
    ],
    ids=["ended", "works-or-killed", "a-restore", "a-run-that-went-back-by-itself", "a-restore-has-begun"],
)
def test_a_run_is_open_until_its_end_is_recorded(entry: dict[str, Any], is_open: bool) -> None:
    assert plan_document.is_run_open(_head([2, 6], {5: 2}, **entry)) is is_open


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [
        (7, 7, True),
        (8, 7, False),
        ({"0": 7, "1": 3}, {"0": 7, "1": 3}, True),
        ({"0": 7, "1": 4}, {"0": 7, "1": 3}, False),
        ({"0": 7, "1": 3}, {"0": 7}, False),
        ([7, 8], 8, True),
        ({"log": "a", "done": True, "at": 1}, 1, True),
    ],
)
def test_an_offset_is_before_a_limit_that_none_of_its_numbers_exceeds(offset: Any, limit: Any, expected: bool) -> None:
    assert is_at_or_before(offset, limit) is expected


def test_before_a_time_is_the_newest_checkpoint_that_was_committed_earlier() -> None:
    job = MemoryJob()
    for _ in range(3):
        job.commit(RetentionLimits(5))
        job.root.clock.sleep(timedelta(seconds=1))
    first, second, third = job.root.checkpoints.restorable(job.head)
    assert resolve_target(job.root, job.head, f"before:{third.at}").ref == second
    assert resolve_target(job.root, job.head, f"before:{second.at}").ref == first


# -- differences ------------------------------------------------------------------------------------------------------


def test_the_difference_of_two_texts_is_bounded_and_says_so() -> None:
    names = ("a", "b")
    assert difference_of_texts(b"x\n", b"x\n", names) == ""
    assert difference_of_texts(b"x\ny\n", b"x\nz\n", names) == "--- a\n+++ b\n@@ -1,2 +1,2 @@\n x\n-y\n+z"
    # A file whose last line has no end, and one that is not text.
    assert difference_of_texts(b"x\n", b"x", names) and "\ufffd" in (difference_of_texts(b"", b"\xff", names) or "")
    lines = "\n".join(f"{at:05} {'é' * 20}" for at in range(3000)).encode()
    cut = difference_of_texts(b"", lines, names)
    assert cut is not None and 60_000 < len(cut.encode()) <= LARGEST_DIFFERENCE and "00000" in cut
    assert cut.splitlines()[-1].startswith("\\ ")
    assert difference_of_texts(b"", b"x" * 300_000, names) is None


def test_an_expected_plan_is_compared_part_by_part() -> None:
    plan = _plan(sinks=[_sink()], left=LEFT[:1], states=STATES)
    expected = expected_plan_of(plan)
    assert differing_parts(plan, expected) == {}
    changes: dict[PlanPart, dict[str, Any]] = {
        PlanPart.TARGET: {"target_sha256": "t"},
        PlanPart.HEAD: {"generation": 2},
        PlanPart.STATE: {"states": []},
        PlanPart.SOURCES: {"sources": RENAMED},
        PlanPart.CLAIM: {"claim_mode": ClaimMode.CLAIM},
        PlanPart.KEPT: {"left": []},
    }
    for part, other in changes.items():
        assert differing_parts(msgspec.structs.replace(plan, **other), expected).keys() == {part}
    changed = msgspec.structs.replace(plan, sinks=[msgspec.structs.replace(_sink(), target_version=4)])
    assert differing_parts(changed, expected).keys() == {PlanPart.VERSIONS}
    # A plan that does not know the versions says nothing about them.
    assert differing_parts(changed, expected_plan_of(msgspec.structs.replace(plan, sinks=[UNREAD]))) == {}
    for wrong in ("x", "target=1", f"{expected},", f"other={'0' * 12}", f"{expected} "):
        with pytest.raises(ConfigError):
            differing_parts(plan, wrong)


# -- digests ----------------------------------------------------------------------------------------------------------

DECIDED: dict[type, str] = {
    RestorePlan: "job job_uuid head_seq generation ordinal checkpoint_id target target_label target_checkpoint_id "
    "target_committed_at target_sha256 savepoint_path savepoint_made_at undone foreign parent_job parent_job_uuid "
    "claim_mode mode parallelism operators states sources sinks left dropped_checkpoint_ids saved rows_again "
    "checkpoints_after run_open restore_open graph made_at job_file job_file_changed_at code_hash code_difference "
    "job_file_difference",
    GraphPlan: "maps sources drop positions_at moves dropped old_max_parallelism max_parallelism",
    StateMove: "kind old old_state new new_state",
    DroppedState: "kind uid state",
    StateChange: "uid action target_bytes olds target_parallelism",
    SourceChange: "uid current_offset target_offset available files action old",
    SinkChange: "uid mode table_id table current_version target_version read rows_removed rows_returned others",
    SinkLeft: "uid table_id checkpoint_id",
    SavedCheckpoint: "checkpoint_id savepoint",
}
"""Fields that a digest has: an approval counts for no plan with another value. `ONLY_SHOWN` has the others."""


def _digest_of_plan_with(part: Any) -> str:
    if isinstance(part, RestorePlan):
        return part.digest
    if isinstance(part, GraphPlan):
        return _plan(graph=part).digest
    if isinstance(part, StateMove):
        return _plan(graph=GraphPlan(moves=[part])).digest
    if isinstance(part, DroppedState):
        return _plan(graph=GraphPlan(dropped=[part])).digest
    lists: dict[type, str] = {
        StateChange: "states",
        SourceChange: "sources",
        SinkChange: "sinks",
        SinkLeft: "left",
        SavedCheckpoint: "saved",
    }
    return _plan(**{lists[type(part)]: [part]}).digest


@pytest.mark.parametrize(
    "part",
    [
        _plan(),
        GraphPlan(),
        StateMove(kind=StateKind.KEYED, old="a", old_state="s", new="b", new_state="s"),
        DroppedState(kind=StateKind.KEYED, uid="a", state="s"),
        STATES[0],
        _source(True),
        _sink(),
        LEFT[0],
        SAVED[0],
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_digest_has_each_field_that_is_executed_or_decided_on(part: Document) -> None:
    assert set(DECIDED) == set(output_classes(RestorePlan))
    names, decided = set(part.__struct_fields__), set(DECIDED[type(part)].split())
    # A new field belongs to one of both.
    assert names == decided | ONLY_SHOWN.get(type(part), set())
    own = _digest_of_plan_with(part)
    changed = {name: msgspec.structs.replace(part, **{name: ["other"]}) for name in names}
    assert {name for name, other in changed.items() if _digest_of_plan_with(other) != own} == decided


def test_a_plan_that_an_earlier_version_has_made_keeps_its_digest() -> None:
    plan = _plan(sinks=[_sink()], sources=[_source(True)], states=STATES)
    # As a version made it that did not have `left`, `undone`, `job_file_difference`, and of a sink `kind` and `read`.
    assert plan.digest == "94b55110d807c3d92ac42162047edbfa"
