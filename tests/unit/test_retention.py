"""Which savepoints retention lets go: periodic ones of this job, too many or too old, and never the last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import Manifest, Origin, Savepoint
from stateflow.checkpoint.savepoints.retention import SavepointRule, expired_savepoints
from stateflow.errors import ConfigError
from tests.support.errors import raises

NOW = datetime(2026, 6, 1, tzinfo=UTC)
MINE = "a" * 32


def savepoint(name: str, days: float, origin: Origin = Origin.PERIODIC, job_uuid: str = MINE) -> Savepoint:
    return Savepoint(
        version=1,
        id=name,
        name=name,
        origin=origin,
        made_at=(NOW - timedelta(days=days)).isoformat(),
        by="a test",
        job="flights",
        job_uuid=job_uuid,
        max_parallelism=128,
        checkpoint_id=1,
        manifest=_manifest(),
        sinks={},
    )


def _manifest() -> Manifest:
    return Manifest(job_uuid=MINE, generation=1, ordinal=1, operators=[], sources=[])


def gone(savepoints: list[Savepoint], **rule: object) -> list[str]:
    found = expired_savepoints(savepoints, MINE, SavepointRule(**rule), NOW)  # type: ignore[arg-type]
    return [s.name for s in found]


WEEK = [savepoint(f"d{day}", day) for day in range(7)]


def test_by_count_the_newest_stay() -> None:
    assert gone(WEEK, keep=3) == ["d6", "d5", "d4", "d3"]
    assert gone(WEEK[::-1], keep=7) == []


def test_by_age() -> None:
    assert gone(WEEK, max_age=timedelta(days=4)) == ["d6", "d5"]


def test_either_reason_is_enough() -> None:
    assert gone(WEEK, keep=6, max_age=timedelta(days=4)) == ["d6", "d5"]
    assert gone(WEEK, keep=2, max_age=timedelta(days=4)) == ["d6", "d5", "d4", "d3", "d2"]


def test_without_a_limit_all_stay() -> None:
    assert gone(WEEK) == []


def test_the_newest_stays_however_old_it_is() -> None:
    old = [savepoint("old", 400), savepoint("older", 500)]
    assert gone(old, max_age=timedelta(days=1)) == ["older"]


@pytest.mark.parametrize("origin", [o for o in Origin if o is not Origin.PERIODIC])
def test_others_are_neither_deleted_nor_counted(origin: Origin) -> None:
    mixed = [savepoint("mine", 100, origin), *WEEK, savepoint("newest", 0, origin)]
    assert gone(mixed, keep=6) == ["d6"]


def test_another_job_s_are_left_alone() -> None:
    assert gone([savepoint("copied", 100, job_uuid="b" * 32), *WEEK], keep=7) == []


def test_a_rule_that_keeps_none_is_refused() -> None:
    with raises(ConfigError, keep=0):
        gone(WEEK, keep=0)
    with raises(ConfigError, max_age=str(timedelta())):
        gone(WEEK, max_age=timedelta())


@given(
    st.lists(st.tuples(st.floats(0, 100), st.sampled_from(Origin)), max_size=12),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 100),
)
def test_the_newest_and_all_that_are_not_periodic_stay(
    taken: list[tuple[float, Origin]], keep: int | None, days: int | None
) -> None:
    savepoints = [savepoint(f"s{n}", age, origin) for n, (age, origin) in enumerate(taken)]
    lost = set(gone(savepoints, keep=keep, max_age=timedelta(days=days) if days else None))
    periodic = [s for s in savepoints if s.origin is Origin.PERIODIC]
    assert lost <= {s.name for s in periodic}
    if periodic:
        newest = max(s.made_at for s in periodic)
        assert any(s.name not in lost for s in periodic if s.made_at == newest)
    assert keep is None or len(periodic) - len(lost) <= keep
