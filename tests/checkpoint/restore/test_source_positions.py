"""Positions of sources in a manifest for another version of the job, with Spark's files for them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import (
    HoldingSource,
    Manifest,
    SourceFile,
    SourcePosition,
    SourceWatermark,
    SparkPosition,
    WaitingRows,
)
from stateflow.checkpoint.restore.source_positions import SourceStart, match_sources, with_added_sources, with_sources
from stateflow.errors import ConfigError, CorruptFile
from tests.support.errors import raises

HEADER = 'v1\n{"batchWatermarkMs":0}\n'
UIDS = ["a", "b", "c", "d", "e"]


def _manifest(*uids: str) -> Manifest:
    """Each source is at a position with its uid, and has a log and a watermark with the uid."""
    spark = SparkPosition(
        batch_id=4,
        offsets=(HEADER + "\n".join(f"at {uid}" for uid in uids)).encode(),
        previous_offsets=(HEADER + "\n".join(f"before {uid}" for uid in uids)).encode(),
        commit=b"",
        source_files=[SourceFile(path=f"{n}/7", content=uid.encode()) for n, uid in enumerate(uids)],
    )
    return Manifest(
        job_uuid="j",
        generation=1,
        ordinal=1,
        operators=[],
        sources=[SourcePosition(uid=uid, description="reads", offset=f"at {uid}") for uid in uids],
        spark=spark,
        watermarks=[SourceWatermark(uid=uid, watermark=n, active_at=0) for n, uid in enumerate(uids)],
        columns={uid: {uid: "string"} for uid in uids},
        waiting=[WaitingRows(operator="op", inputs=list(uids), rows=1, waits_for=_holding(uids))],
    )


def _holding(uids: Iterable[str]) -> list[HoldingSource]:
    return [HoldingSource(uid=uid, split=split) for uid in uids for split in ("", "t-0")]


def _wanted(*uids: str) -> list[tuple[str, str]]:
    return [(uid, "reads") for uid in sorted(uids)]


def _lines(offsets: bytes | None) -> list[str]:
    assert offsets is not None
    text = offsets.decode()
    assert text.startswith(HEADER)
    return text.removeprefix(HEADER).split("\n")


@given(seed=st.integers(0, 1 << 32))
def test_each_source_has_the_position_and_the_files_of_its_origin(seed: int) -> None:
    dice = random.Random(seed)
    old = sorted(dice.sample(UIDS, dice.randrange(1, 5)))
    new = dice.sample(UIDS, dice.randrange(1, 5))
    # The oracle: which old source each new one continues; None for a position of its own.
    free = dice.sample(old, len(old))
    origins = {uid: free.pop() if free and dice.random() < 0.6 else None for uid in new}
    starts = {
        uid: SourceStart(origin) if origin else SourceStart(offset=f"set {uid}", logs={"0": f"set {uid}".encode()})
        for uid, origin in origins.items()
    }
    found = with_sources(_manifest(*old), _wanted(*new), starts)
    assert found.spark is not None
    uids = sorted(new)
    at = [f"at {origins[uid]}" if origins[uid] else f"set {uid}" for uid in uids]
    before = [f"before {origins[uid]}" if origins[uid] else f"set {uid}" for uid in uids]
    assert [(p.uid, p.offset) for p in found.sources] == list(zip(uids, at, strict=True))
    assert (_lines(found.spark.offsets), _lines(found.spark.previous_offsets)) == (at, before)
    logs = {file.path: file.content for file in found.spark.source_files}
    assert logs == {
        f"{n}/{'7' if origins[uid] else '0'}": (origins[uid] or f"set {uid}").encode() for n, uid in enumerate(uids)
    }
    kept = {uid: origin for uid, origin in sorted(origins.items()) if origin}
    assert [(w.uid, w.watermark) for w in found.watermarks] == [(uid, old.index(o)) for uid, o in kept.items()]
    new_of = {origin: uid for uid, origin in kept.items()}
    (waiting,) = found.waiting
    assert waiting.inputs == sorted({new_of.get(uid, uid) for uid in old})
    assert waiting.waits_for == _holding(new_of.get(uid, uid) for uid in old)
    assert found.columns == {uid: {origin: "string"} for uid, origin in kept.items()}


def test_a_manifest_with_the_job_s_sources_is_unchanged() -> None:
    manifest = _manifest("a", "b")
    assert with_added_sources(manifest, _wanted("a", "b")) is manifest


def test_removed_sources_are_those_without_a_place_in_the_job() -> None:
    found = match_sources(_manifest("a", "b", "c").sources, _wanted("b", "d", "e"), {"a": "d"}, {"e": SourceStart()})
    assert (found.removed, found.before) == (("c",), {"b": "b", "d": "a"})
    assert found.starts == {"b": SourceStart("b"), "d": SourceStart("a"), "e": SourceStart()}


@pytest.mark.parametrize("offsets", [b"v1\n{}\nat a", b"v1\n{}\nat a\nat b\nat c", b"v1\n{}\nat a\r\nat b", b"\xff"])
def test_offsets_that_are_not_those_of_the_sources_are_corrupt(offsets: bytes) -> None:
    manifest = _manifest("a", "b")
    assert manifest.spark is not None
    damaged = Manifest(
        job_uuid="j",
        generation=1,
        ordinal=1,
        operators=[],
        sources=manifest.sources,
        spark=SparkPosition(batch_id=4, offsets=offsets, previous_offsets=None, commit=b"", source_files=[]),
    )
    with raises(CorruptFile):
        with_added_sources(damaged, _wanted("a", "b", "c"))


def test_keeping_a_position_is_offered_only_for_sources_that_can_keep_positions() -> None:
    stored = _manifest("a").sources
    wanted = [("a", "another description")]
    for can_keep in (True, False):
        with pytest.raises(ConfigError) as refused:
            match_sources(stored, wanted, {}, {}, can_keep=partial(_answer, can_keep))
        assert ("a=keep" in refused.value.hint) == can_keep


def _answer(answer: bool, uid: str, before: str) -> bool:
    return answer
