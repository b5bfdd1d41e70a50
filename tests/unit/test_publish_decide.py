"""What a table's token means for publishing a checkpoint: the whole table of design §4.3."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stateflow.checkpoint.log.checkpoint_log import CheckpointLog
from stateflow.checkpoint.log.documents import EntryKind, PublishedOutput
from stateflow.checkpoint.log.sealed_json import seal
from stateflow.checkpoint.sink_commit import Decision, Output, decide, publish
from stateflow.errors import Fenced, MissingFile, SinkDiverged, StateflowError, StorageError
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import log_entry
from tests.support.errors import raises
from tests.support.graphs import JOB, entry, head

P, C, HEAD = 20, 30, 40
"""Last published, to be published, and the newest entry that is known."""


@pytest.mark.parametrize(
    ("token", "decision"),
    [
        (0, Decision.ROLLED_BACK),
        (P - 1, Decision.ROLLED_BACK),
        (P, Decision.PUBLISH),
        (P + 1, Decision.FOREIGN),
        (C - 1, Decision.FOREIGN),
        (C, Decision.ALREADY),
        (C + 1, Decision.ALREADY),
        (HEAD, Decision.ALREADY),
        (HEAD + 1, Decision.UNKNOWN_FUTURE),
        (1 << 60, Decision.UNKNOWN_FUTURE),
    ],
)
def test_the_token_decides(token: int, decision: Decision) -> None:
    assert decide(token, P, C, HEAD) is decision


def test_a_table_that_was_never_published_to() -> None:
    assert decide(0, 0, 2, 2) is Decision.PUBLISH
    assert decide(2, 0, 2, 2) is Decision.ALREADY
    assert decide(3, 0, 2, 2) is Decision.UNKNOWN_FUTURE


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50), st.integers(1, 50))
def test_nothing_is_left_to_a_guess(token: int, published: int, checkpoint: int, newest: int) -> None:
    assume(published < checkpoint <= newest)
    decision = decide(token, published, checkpoint, newest)
    assert (decision is Decision.PUBLISH) == (token == published)
    assert (decision is Decision.FOREIGN) == (published < token < checkpoint)
    assert (decision is Decision.ALREADY) == (checkpoint <= token <= newest)
    assert (decision is Decision.ROLLED_BACK) == (token < published)
    assert (decision is Decision.UNKNOWN_FUTURE) == (token > newest)
    if decision is Decision.PUBLISH:
        assert decide(checkpoint, published, checkpoint, newest) is Decision.ALREADY


# -- publishing ---------------------------------------------------------------------------------------------------

FILES = [Committable(path="f", size=1, rows=1)]


class Table:
    """A table in memory; each `open_table` is a handle of its own."""

    uid = "out"
    location = "/tables/out"

    def __init__(self, token: int, table_id: str = "t", gone: bool = False, others: int = 0) -> None:
        self.token, self.table_id, self.version = token, table_id, 5
        self.gone, self.others = gone, others
        self.committed: list[tuple[int, list[Committable]]] = []

    def open_table(self) -> Table:
        return self

    def missing(self, committables: list[Committable]) -> list[str]:
        return [c.path for c in committables] if self.gone else []

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        if self.others:
            self.others -= 1
            return None
        self.committed.append((token, committables))
        self.token, self.version = token, self.version + 1
        return self.version


def _publish(table: Table, known: PublishedOutput | None = None, newest: int = HEAD) -> PublishedOutput:
    storage = MemoryStorage()
    storage.put_new(log_entry(newest), seal(entry(newest, EntryKind.CLAIM, generation=newest))[0])
    known = known or PublishedOutput(table_id="t", version=5, checkpoint_id=P)
    return publish(table, Output(C, FILES, known), CheckpointLog(storage, JOB), head(HEAD))


def test_output_is_published_with_its_checkpoint_as_token() -> None:
    table = Table(P)
    assert _publish(table) == PublishedOutput(table_id="t", version=6, checkpoint_id=C)
    assert table.committed == [(C, FILES)]


def test_published_output_is_not_published_again() -> None:
    table = Table(C)
    assert _publish(table) == PublishedOutput(table_id="t", version=5, checkpoint_id=C)
    assert table.committed == []


def test_a_conflict_is_decided_anew_with_a_new_handle() -> None:
    table = Table(P, others=3)
    assert _publish(table).checkpoint_id == C
    assert len(table.committed) == 1


def test_a_table_that_never_stands_still_is_given_up() -> None:
    table = Table(P, others=1000)
    with raises(StorageError, sink="out") as refused:
        _publish(table)
    assert refused.value.facts["tries"] == 1000 - table.others
    assert table.committed == []


def test_the_first_table_is_taken_as_it_is() -> None:
    assert _publish(Table(0, "new"), PublishedOutput(table_id="", version=-1, checkpoint_id=0)).table_id == "new"


_AT = {"sink": "out", "table": Table.location}


@pytest.mark.parametrize(
    ("table", "newest", "error", "facts"),
    [
        (Table(P - 1), HEAD, SinkDiverged, {**_AT, "token": P - 1}),
        (Table(P, "another"), HEAD, SinkDiverged, {**_AT, "known": "t", "found": "another"}),
        (Table(HEAD + 1), HEAD + 1, Fenced, {"sink": "out", "token": HEAD + 1}),
        (Table(HEAD + 2), HEAD + 1, SinkDiverged, {**_AT, "token": HEAD + 2, "newest": HEAD + 1}),
        (Table(P, gone=True), HEAD, MissingFile, {"sink": "out", "checkpoint": C, "files": ["f"]}),
    ],
)
def test_what_may_not_be_published_changes_nothing(
    table: Table, newest: int, error: type[StateflowError], facts: dict[str, Any]
) -> None:
    with raises(error) as refused:
        _publish(table, newest=newest)
    assert refused.value.facts == facts
    assert refused.value.hint
    assert table.committed == []
