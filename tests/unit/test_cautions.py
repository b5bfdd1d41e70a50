"""What a person should know about a restore's plan before it is carried out."""

from __future__ import annotations

import re
from typing import Any

from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.log.documents import SinkMode
from stateflow.checkpoint.restore.plan_document import (
    Caution,
    RestorePlan,
    SavedCheckpoint,
    SinkChange,
    SinkLeft,
    SourceChange,
    StateAction,
    StateChange,
    cautions,
    describe_replay,
)


def _plan(**more: Any) -> RestorePlan:
    plain: dict[str, Any] = {
        "job": "j",
        "job_uuid": "u",
        "head": 9,
        "generation": 1,
        "ordinal": 3,
        "checkpoint_id": 9,
        "target": "3",
        "label": "checkpoint 3",
        "target_checkpoint": 3,
        "target_at": "2026-01-31T03:00:00+00:00",
        "target_sha256": "s",
        "mode": SinkMode.RESTORE,
        "parallelism": 2,
        "operators": ["a"],
        "states": [],
        "sources": [],
        "sinks": [],
        "made_at": "now",
    }
    return RestorePlan(**{**plain, **more})


def _sink(mode: SinkMode = SinkMode.RESTORE, others: tuple[str, ...] = ()) -> SinkChange:
    return SinkChange(uid="out", mode=mode, table_id="t", now=9, then=3, others=others)


def _numbers(caution: Caution) -> list[str]:
    """The whole numbers in a caution's text that are words of their own."""
    return re.findall(r"\b\d[\d,]*\b", caution.text)


def test_a_plain_plan_needs_none() -> None:
    held = [SourceChange(uid="s", now="9", then="3", held=h) for h in (True, None)]
    assert cautions(_plan(sources=held, sinks=[_sink()])) == []


def test_commits_of_others_are_one_line_per_table() -> None:
    (one,) = cautions(_plan(sinks=[_sink(others=("MERGE by ada",))]))
    assert "out" in one.about and _numbers(one) == ["1"] and "MERGE by ada" in one.text
    (many,) = cautions(_plan(sinks=[_sink(others=tuple(f"v{n}" for n in range(1, 1205)))]))
    assert "out" in many.about and _numbers(many) == ["1,204", "1,201"]
    assert re.findall(r"\bv\d+", many.text) == ["v1", "v2", "v3"]


def test_each_thing_to_know_is_a_caution(golden: SnapshotAssertion) -> None:
    found = cautions(
        _plan(
            sources=[SourceChange(uid="s", now="9", then="3", held=False)],
            sinks=[_sink(SinkMode.KEEP), _sink(others=("MERGE by ada",))],
            states=[StateChange(uid="old", action=StateAction.DROPPED, bytes=3)],
            foreign=True,
            of_job="other 77",
            left=[SinkLeft(uid="gone", table_id=t, checkpoint_id=9) for t in ("t", "u")],
            dropped_checkpoints=[5, 8, 9],
            saved=[SavedCheckpoint(checkpoint_id=8, savepoint="late")],
            run_open=True,
            generation=12,
        )
    )
    assert "".join(f"{c.about or '-'}: {c.text}\n" for c in found) == golden


def test_a_checkpoint_with_a_savepoint_is_not_out_of_reach() -> None:
    saved = [SavedCheckpoint(checkpoint_id=9, savepoint="late")]
    gone, kept = cautions(_plan(dropped_checkpoints=[5, 9], saved=saved))
    assert "5" in gone.text and "9" not in gone.text
    assert "9" in kept.text and "late" in kept.text and "5" not in kept.text
    (kept,) = cautions(_plan(dropped_checkpoints=[9], saved=saved))
    assert "late" in kept.text


def test_a_run_that_has_not_ended_is_a_caution() -> None:
    (found,) = cautions(_plan(run_open=True, generation=12))
    assert _numbers(found) == ["12"]


def test_what_is_read_again_is_counted_and_rows_come_back_only_if_they_do(golden: SnapshotAssertion) -> None:
    def source(held: bool | None, files: int | None = None) -> SourceChange:
        return SourceChange(uid="s", now="9", then="3", held=held, files=files)

    plans = {
        "the input is there": _plan(sources=[source(True), source(True)], sinks=[_sink()]),
        "some of the input is gone": _plan(sources=[source(True), source(False)], sinks=[_sink()]),
        "it is not known whether the input is there": _plan(sources=[source(True), source(None)], sinks=[_sink()]),
        "1,234 rows in 5 files": _plan(sources=[source(True, 2), source(True, 3)], sinks=[_sink()], rows_again=1234),
        "the tables are kept": _plan(sources=[source(True)], sinks=[_sink(SinkMode.KEEP)]),
    }
    texts = [describe_replay(plan) for plan in plans.values()]
    assert len(set(texts)) == len(texts)
    assert "".join(f"- {name}:\n{text}\n" for name, text in zip(plans, texts, strict=True)) == golden
