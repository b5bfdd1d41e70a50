"""Records of a job: its history of checkpoints, and requests to a run with their answers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from stateflow.checkpoint import history
from stateflow.checkpoint.history import read_history, read_records, trim_history, write_records
from stateflow.checkpoint.job_requests import (
    DONE,
    LIMIT,
    RequestClient,
    RequestTimeouts,
    is_expired,
    open_requests,
    post,
    post_answer,
    read_answer,
    trim_requests,
)
from stateflow.checkpoint.log.documents import (
    ABORTED,
    CheckpointRecord,
    Origin,
    Request,
    RequestAnswer,
    RequestKind,
    seq_of,
)
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.storage import MemoryStorage, PutResult, paths
from tests.checkpoint.log.memory_job import MemoryJob
from tests.checkpoint.records import record


def _ids(records: Iterable[CheckpointRecord]) -> list[int]:
    return [each.checkpoint_id for each in records]


def test_a_damaged_record_is_left_out() -> None:
    storage = MemoryStorage()
    write_records(storage, [record(1)], "01" * 16)
    write_records(storage, [record(2), record(3)], "ab" * 16)
    write_records(storage, [record(4)], "cd" * 16)
    write_records(storage, [], "ef" * 16)
    for number, data in ((5, b"{}"), (6, b'{"ended_at": "\xff"}'), (7, b"x" * (17 << 20))):
        storage.put_new(paths.history_key(number, "checkpoint"), data)
        storage.put_new(paths.history_key(number, "checkpoints-2-01234567"), data)
    assert _ids(read_records(storage)) == [1, 2, 3, 4]
    assert _ids(read_records(storage, newest=2)) == [3, 4]


def test_trimming_keeps_at_least_the_given_number_of_records() -> None:
    storage = MemoryStorage()
    for first in range(1, 31, 3):
        write_records(storage, [record(n) for n in range(first, first + 3)], "ab" * 16)
    trim_history(storage, keep=30)
    assert _ids(read_records(storage)) == list(range(1, 31))
    trim_history(storage, keep=7)
    assert _ids(read_records(storage)) == list(range(22, 31))


def test_records_too_many_for_one_object_are_divided_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted ones, which all have the id of the checkpoint before them."""
    storage = MemoryStorage()
    records = [replace(record(7), ordinal=n, status=ABORTED) for n in range(9)]
    too_large = replace(record(8), driver="x" * 2000)
    monkeypatch.setattr(history, "LIMIT", 2 * len(msgspec.json.encode(records[0])) + 10)
    write_records(storage, [*records, too_large], "ab" * 16)
    assert sorted(r.ordinal for r in read_records(storage)) == list(range(9))


def test_of_a_stored_and_a_pending_record_of_one_checkpoint_the_stored_one_counts() -> None:
    storage = MemoryStorage()
    write_records(storage, [record(1), record(2)], "ab" * 16)
    write_records(storage, [record(2), record(3)], "cd" * 16)
    pending = [replace(record(n), duration_ms=9) for n in (3, 4)]
    found = [(r.checkpoint_id, r.duration_ms == 9) for r in read_records(storage, pending=pending)]
    assert found == [(1, False), (2, False), (3, False), (4, True)]
    assert _ids(read_records(storage, newest=3, pending=pending)) == [2, 3, 4]
    aborted = replace(record(5), status=ABORTED)
    assert _ids(read_records(storage, pending=[aborted])) == [1, 2, 3, 5]
    assert [seq_of(r) for r in read_history(storage, [aborted, *pending])] == [1, 2, 3, 4]


_AT = datetime(2026, 1, 31, tzinfo=UTC)


def _request(number: int = 0, until: str = "") -> Request:
    at = (_AT + timedelta(seconds=number)).isoformat()
    return Request(
        id=f"r{number}", kind=RequestKind.STOP, savepoint="", origin=Origin.MANUAL, by="anna", at=at, until=until
    )


def _answer(number: int = 0) -> RequestAnswer:
    return RequestAnswer(
        id=f"r{number}", status=DONE, checkpoint_id=7, at=(_AT + timedelta(seconds=number)).isoformat()
    )


class _AnsweredMeanwhile(MemoryStorage):
    """A run answers each request right before the requester withdraws that."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        if key.endswith(".done"):
            super().put_new(key, seal(_answer(), LIMIT)[0])
        return super().put_new(key, data)


def test_an_answer_that_comes_before_the_withdrawal_counts() -> None:
    root = MemoryJob(_AnsweredMeanwhile()).root
    request = post(root.storage, _request())
    assert RequestClient(root, RequestTimeouts(acknowledge=timedelta())).wait(request) == _answer()


@pytest.mark.parametrize(("after", "expired"), [(-1, False), (0, False), (1, True)])
def test_a_request_expires_after_its_end_and_never_without_one(after: int, expired: bool) -> None:
    now = _AT + timedelta(milliseconds=after)
    assert is_expired(_request(until=_AT.isoformat()), now) is expired
    assert not is_expired(_request(), now)


def test_the_oldest_answered_requests_are_deleted_as_a_whole() -> None:
    storage = MemoryStorage()
    for number in range(13):
        post(storage, _request(number))
        if number:
            post_answer(storage, _answer(number))
    trim_requests(storage, keep=10)
    assert [request.id for request in open_requests(storage)] == ["r0"]
    assert [number for number in range(13) if read_answer(storage, f"r{number}")] == list(range(3, 13))
