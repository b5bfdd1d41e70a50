"""Requests to a run: when they expire, which answer counts, and which of them are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

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
from stateflow.checkpoint.log.documents import Answer, Origin, Request, RequestKind
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.storage import MemoryStorage, PutResult
from tests.checkpoint.log.memory_job import MemoryJob

_AT = datetime(2026, 1, 31, tzinfo=UTC)


def _request(number: int = 0, until: str = "") -> Request:
    at = (_AT + timedelta(seconds=number)).isoformat()
    return Request(
        id=f"r{number}", kind=RequestKind.STOP, savepoint="", origin=Origin.MANUAL, by="anna", at=at, until=until
    )


def _answer(number: int = 0) -> Answer:
    return Answer(id=f"r{number}", status=DONE, checkpoint_id=7, at=(_AT + timedelta(seconds=number)).isoformat())


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
