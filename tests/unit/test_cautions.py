"""What a person should know about a restore's plan before it is carried out."""

from __future__ import annotations

from typing import Any

from stateflow.checkpoint.documents import SinkMode
from stateflow.checkpoint.proposal import (
    Caution,
    Proposal,
    SavedCheckpoint,
    SinkChange,
    SinkLeft,
    SourceChange,
    StateAction,
    StateChange,
    cautions,
    replayed,
)


def _plan(**more: Any) -> Proposal:
    plain: dict[str, Any] = {
        "job": "j", "job_uuid": "u", "head": 9, "generation": 1, "ordinal": 3, "checkpoint_id": 9, "target": "3",
        "label": "checkpoint 3", "target_checkpoint": 3, "target_at": "2026-01-31T03:00:00+00:00",
        "target_sha256": "s", "mode": SinkMode.RESTORE, "parallelism": 2, "operators": ["a"], "states": [],
        "sources": [], "sinks": [], "made_at": "now",
    }  # fmt: skip
    return Proposal(**{**plain, **more})


def _sink(mode: SinkMode = SinkMode.RESTORE, others: tuple[str, ...] = ()) -> SinkChange:
    return SinkChange(uid="out", mode=mode, table_id="t", now=9, then=3, others=others)


def test_a_plain_plan_needs_none() -> None:
    held = [SourceChange(uid="s", now="9", then="3", held=h) for h in (True, None)]
    assert cautions(_plan(sources=held, sinks=[_sink()])) == []


def test_commits_of_others_are_one_line_per_table() -> None:
    (one,) = cautions(_plan(sinks=[_sink(others=("MERGE by ada",))]))
    assert one == Caution("table of out", "1 commit by others would be undone as well: MERGE by ada")
    (many,) = cautions(_plan(sinks=[_sink(others=tuple(f"v{n}" for n in range(1, 1205)))]))
    assert many.says == "1,204 commits by others would be undone as well: v1; v2; v3; and 1,201 more"


def test_each_thing_to_know_is_told() -> None:
    found = cautions(_plan(
        sources=[SourceChange(uid="s", now="9", then="3", held=False)], sinks=[_sink(SinkMode.KEEP)],
        states=[StateChange(uid="old", action=StateAction.DROPPED, bytes=3)], foreign=True, of_job="other 77",
        left=[SinkLeft(uid="gone", table_id="t", checkpoint_id=9)], dropped_checkpoints=[5, 9],
    ))  # fmt: skip
    assert [c.about for c in found] == ["table of gone", "source s", "state of old", "", "", ""]
    said = " | ".join(c.says for c in found)
    assert "does not have everything any more that came since: those rows do not come again" in said
    assert "another job's: other 77" in said and "restored: 5, 9" in said and "a second time" in said


def test_a_checkpoint_with_a_savepoint_is_not_out_of_reach() -> None:
    saved = [SavedCheckpoint(checkpoint_id=9, savepoint="late")]
    gone, kept = cautions(_plan(dropped_checkpoints=[5, 9], saved=saved))
    assert "5" in gone.says and "9" not in gone.says
    assert "9" in kept.says and "late" in kept.says and "5" not in kept.says
    (kept,) = cautions(_plan(dropped_checkpoints=[9], saved=saved))
    assert "late" in kept.says


def test_a_run_that_has_not_ended_is_a_caution() -> None:
    (found,) = cautions(_plan(run_open=True, generation=12))
    assert "12" in found.says


def test_what_is_read_again_is_counted_and_rows_are_said_to_come_back_only_if_they_do() -> None:
    def source(held: bool | None, files: int | None = None) -> SourceChange:
        return SourceChange(uid="s", now="9", then="3", held=held, files=files)

    said = {
        held: replayed(_plan(sources=[source(True), source(held)], sinks=[_sink()]))
        for held in (True, False, None)
    }
    assert len(set(said.values())) == 3 and "not all" in said[False]
    counted = replayed(_plan(sources=[source(True, 2), source(True, 3)], sinks=[_sink()], rows_again=1234))
    assert "1,234 rows in 5 files" in counted
    assert "unknown" in replayed(_plan(sources=[source(True)])), "no record is no row count"
    assert "removed" not in replayed(_plan(sources=[source(True)], sinks=[_sink(SinkMode.KEEP)]))
