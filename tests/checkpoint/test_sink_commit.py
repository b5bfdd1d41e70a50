"""What a table's token means for publishing a checkpoint: the whole table of design §4.3."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from stateflow.checkpoint.log.checkpoint_log import CheckpointLog
from stateflow.checkpoint.log.documents import EntryKind, PublishedOutput
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.checkpoint.sink_commit import Decision, SinkOutput, decide, publish
from stateflow.errors import Fenced, MissingFile, SinkDiverged, StateflowError, StorageError
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import log_entry
from tests.support.errors import raises
from tests.support.graphs import JOB, entry, head

P, C, HEAD = 20, 30, 40
"""Last published, to be published, and the newest entry that is known."""


def test_every_token_has_one_decision() -> None:
    for token, published, checkpoint, newest in product(range(7), range(6), range(6), range(6)):
        if published < checkpoint <= newest:
            assert {
                Decision.ROLLED_BACK: token < published,
                Decision.PUBLISH: token == published,
                Decision.DROPPED_CHECKPOINT: published < token < checkpoint,
                Decision.ALREADY: checkpoint <= token <= newest,
                Decision.UNKNOWN_FUTURE: newest < token,
            }[decide(token, published, checkpoint, newest)]


FILES = [Committable(path="f", size=1, rows=1)]


class MemoryTable:
    """A table in memory; the first commits find commits of others."""

    uid = "out"
    location = "/tables/out"

    def __init__(self, token: int, table_id: str = "t", gone: bool = False, others: int = 0) -> None:
        self.token: int | None = token
        self.table_id, self.version = table_id, 5
        self.gone, self.others = gone, others
        self.committed: list[tuple[int, list[Committable]]] = []

    def open_table(self) -> MemoryTable:
        return self

    def check_unshared(self) -> None:
        """No other job writes to it."""

    def missing(self, committables: list[Committable]) -> list[str]:
        return [c.path for c in committables] if self.gone else []

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        if self.others:
            self.others -= 1
            return None
        self.committed.append((token, committables))
        self.token, self.version = token, self.version + 1
        return self.version


KNOWN = PublishedOutput(table_id="t", version=5, checkpoint_id=P)


def _publish(table: MemoryTable, known: PublishedOutput = KNOWN, newest: int = HEAD) -> PublishedOutput:
    storage = MemoryStorage()
    storage.put_new(log_entry(newest), seal(entry(newest, EntryKind.CLAIM, generation=newest))[0])
    return publish(table, SinkOutput(C, FILES, known), CheckpointLog(storage, JOB), head(HEAD))


@pytest.mark.parametrize(
    ("table", "known", "published"),
    [
        (MemoryTable(P), KNOWN, True),
        (MemoryTable(P, others=3), KNOWN, True),
        (MemoryTable(0), PublishedOutput(table_id="", version=-1, checkpoint_id=0), True),
        (MemoryTable(C), KNOWN, False),
    ],
    ids=["new", "conflicts", "first-table", "published-already"],
)
def test_output_is_published_once_with_its_checkpoint_as_token(
    table: MemoryTable, known: PublishedOutput, published: bool
) -> None:
    version = 6 if published else 5
    assert _publish(table, known) == PublishedOutput(table_id="t", version=version, checkpoint_id=C)
    assert table.committed == ([(C, FILES)] if published else [])


def test_publishing_fails_after_many_conflicts() -> None:
    table = MemoryTable(P, others=1000)
    with raises(StorageError, sink="out") as refused:
        _publish(table)
    assert refused.value.facts["tries"] == 1000 - table.others
    assert table.committed == []


_WHERE = {"sink": "out", "table": MemoryTable.location}


@pytest.mark.parametrize(
    ("table", "newest", "error", "facts"),
    [
        (MemoryTable(P - 1), HEAD, SinkDiverged, {**_WHERE, "token": P - 1}),
        (MemoryTable(P, "another"), HEAD, SinkDiverged, {**_WHERE, "known": "t", "found": "another"}),
        (MemoryTable(HEAD + 1), HEAD + 1, Fenced, {"sink": "out", "token": HEAD + 1}),
        (MemoryTable(HEAD + 2), HEAD + 1, SinkDiverged, {**_WHERE, "token": HEAD + 2, "newest": HEAD + 1}),
        (MemoryTable(P, gone=True), HEAD, MissingFile, {"sink": "out", "checkpoint_id": C, "files": ["f"]}),
    ],
)
def test_what_may_not_be_published_changes_nothing(
    table: MemoryTable, newest: int, error: type[StateflowError], facts: dict[str, Any]
) -> None:
    with raises(error) as refused:
        _publish(table, newest=newest)
    assert refused.value.facts == facts
    assert refused.value.hint
    assert table.committed == []
