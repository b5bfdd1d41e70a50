"""Which savepoints retention deletes: periodic ones of this job, too many or too old, and never the last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stateflow.checkpoint.log.documents import Manifest, Origin, Savepoint
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.cleanup import SavepointRule, expired_savepoints, uncounted_savepoints
from stateflow.errors import ConfigError
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import savepoint_folder
from tests.support.errors import raises

NOW = datetime(2026, 6, 1, tzinfo=UTC)
MINE, DAY = "a" * 32, timedelta(days=1)


def _savepoint(name: str, days: float, origin: Origin = Origin.PERIODIC, job_uuid: str = MINE) -> StoredSavepoint:
    document = Savepoint(
        version=1,
        id=name,
        name=name,
        origin=origin,
        made_at=(NOW - timedelta(days=days)).isoformat(),
        committed_at=(NOW - timedelta(days=days)).isoformat(),
        by="a test",
        job="flights",
        job_uuid=job_uuid,
        max_parallelism=128,
        checkpoint_id=1,
        manifest=Manifest(job_uuid=MINE, generation=1, ordinal=1, operators=[], sources=[]),
        sinks={},
    )
    return _in_folder(f"{name}-00000000", document)


def _in_folder(folder: str, document: Savepoint) -> StoredSavepoint:
    return StoredSavepoint(MemoryStorage(), savepoint_folder(folder), document, "")


def _expired(savepoints: list[StoredSavepoint], keep: int | None = None, max_age: timedelta | None = None) -> list[str]:
    return [
        s.document.name for s in expired_savepoints(savepoints, MINE, SavepointRule(keep=keep, max_age=max_age), NOW)
    ]


WEEK = [_savepoint(f"d{day}", day) for day in range(7)]
VERY_OLD = [_savepoint("old", 400), _savepoint("older", 500)]


@pytest.mark.parametrize(
    ("savepoints", "keep", "max_age", "expired"),
    [
        (WEEK, None, None, []),
        (WEEK, 3, None, ["d6", "d5", "d4", "d3"]),
        (WEEK[::-1], 7, None, []),
        (WEEK, None, 4 * DAY, ["d6", "d5"]),
        (WEEK, 6, 4 * DAY, ["d6", "d5"]),
        (WEEK, 2, 4 * DAY, ["d6", "d5", "d4", "d3", "d2"]),
        (VERY_OLD, None, DAY, ["older"]),
        ([_savepoint("copied", 100, job_uuid="b" * 32), *WEEK], 7, None, []),
    ],
    ids=["no-limit", "count", "order-of-the-list", "age", "age-is-stricter", "count-is-stricter", "newest", "others"],
)
def test_periodic_savepoints_expire_by_count_or_age(
    savepoints: list[StoredSavepoint], keep: int | None, max_age: timedelta | None, expired: list[str]
) -> None:
    assert _expired(savepoints, keep, max_age) == expired


@pytest.mark.parametrize("origin", [o for o in Origin if o is not Origin.PERIODIC])
def test_other_savepoints_are_neither_deleted_nor_counted(origin: Origin) -> None:
    assert _expired([_savepoint("mine", 100, origin), *WEEK, _savepoint("newest", 0, origin)], keep=6) == ["d6"]


def test_a_rule_that_keeps_none_is_refused() -> None:
    with raises(ConfigError, keep=0):
        _expired(WEEK, keep=0)
    with raises(ConfigError, max_age=str(timedelta())):
        _expired(WEEK, max_age=timedelta())


def test_copies_and_savepoints_from_the_future_are_neither_deleted_nor_counted() -> None:
    renamed = _in_folder("elsewhere", WEEK[0].document)
    copy = _in_folder("d1-11111111", WEEK[1].document)
    future = _savepoint("future", -0.001)
    assert uncounted_savepoints([*WEEK, renamed, copy, future], NOW) == [WEEK[1], renamed, copy, future]
