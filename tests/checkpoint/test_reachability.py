"""What may be deleted at a head: tables of cases, each with the history that makes it matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint.garbage_collector import find_garbage, is_past
from stateflow.checkpoint.log.documents import EntryKind, LogEntry
from stateflow.storage import BlobInfo
from stateflow.storage.paths import data_folder, log_entry, parse_data, probe_key, spark_location
from tests.support.graphs import entry, ref

GENERATION, ORDINAL, SEQ = 10, 4, 17
"""A run that claimed at 10 and has committed four barriers; three ADMIN entries have come in between."""
HEAD = entry(SEQ, EntryKind.COMMIT, generation=GENERATION, ordinal=ORDINAL, retained=[ref(12), ref(14)])


def _data(generation: int, ordinal: int, name: str = "000008.sst") -> str:
    return f"{data_folder(generation, ordinal, 'attempt')}{name}"


def _verdict(key: str, head: LogEntry = HEAD, live: frozenset[str] = frozenset()) -> str:
    found = find_garbage(head, live, [BlobInfo(key, 5)])
    if found.unknown:
        return "unknown"
    return "garbage" if found.garbage == (BlobInfo(key, 5),) else "kept"


CLAIM = entry(18, EntryKind.CLAIM, generation=18, ordinal=0, checkpoint=ref(17))
ADMIN = entry(SEQ, EntryKind.ADMIN, generation=GENERATION, ordinal=ORDINAL, checkpoint=ref(14))


@pytest.mark.parametrize(
    ("head", "generation", "ordinal", "verdict"),
    [
        (HEAD, GENERATION, ORDINAL, "garbage"),  # an attempt that lost against the committed one
        (HEAD, GENERATION, ORDINAL - 1, "garbage"),
        (HEAD, GENERATION, 0, "garbage"),
        (HEAD, GENERATION, ORDINAL + 1, "kept"),  # the current batch
        (HEAD, GENERATION, ORDINAL + 9, "kept"),
        (HEAD, GENERATION - 1, 0, "garbage"),  # of a fenced run
        (HEAD, GENERATION - 1, 99, "garbage"),
        (HEAD, GENERATION + 1, 0, "kept"),  # of a run that claimed after this head was read
        (HEAD, SEQ, SEQ, "kept"),
        # The ordinal decides and not the sequence number: barrier 5's files were named when the head was at 14. Then
        # ADMIN entries came: the head is above every number that the run knew, and barrier 5 is still to be committed.
        (ADMIN, GENERATION, ORDINAL + 1, "kept"),
        (ADMIN, GENERATION, ORDINAL, "garbage"),
        (CLAIM, GENERATION, ORDINAL + 1, "garbage"),  # a fresh CLAIM fences all older runs
        (CLAIM, 18, 1, "kept"),
    ],
)
def test_an_unreferenced_file_is_garbage_unless_a_later_commit_may_refer_to_that_file(
    head: LogEntry, generation: int, ordinal: int, verdict: str
) -> None:
    key = _data(generation, ordinal)
    assert _verdict(key, head) == verdict
    assert _verdict(key, head, live=frozenset({key})) == "kept"


@given(st.integers(1, 5), st.integers(0, 5), st.integers(1, 5), st.integers(0, 5), st.integers(0, 3))
def test_what_is_past_at_a_head_is_past_at_every_later_head(
    generation: int, ordinal: int, at: int, done: int, more: int
) -> None:
    """A collector may sleep as long as it likes between reading the head and deleting."""
    key = parse_data(_data(generation, ordinal))
    assert key is not None
    if is_past(key, entry(9, generation=at, ordinal=done)):
        assert is_past(key, entry(10, generation=at, ordinal=done + more))
        assert is_past(key, entry(10, EntryKind.CLAIM, generation=at + 1 + more, ordinal=0))


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (HEAD, {17}),  # a COMMIT is its own checkpoint
        (CLAIM, {17, 18}),
        (entry(20, EntryKind.ADMIN, generation=18, checkpoint=ref(17)), {17, 20}),
        (entry(2, EntryKind.ADMIN, generation=1), {2}),  # no checkpoint yet
    ],
)
def test_the_log_entries_of_the_head_and_of_its_checkpoint_are_kept(head: LogEntry, kept: set[int]) -> None:
    assert {n for n in range(1, head.seq + 1) if _verdict(log_entry(n), head) == "kept"} == kept
    # Those that came after the head was read.
    assert {_verdict(log_entry(head.seq + n), head) for n in range(5)} == {"kept"}


@pytest.mark.parametrize(
    ("generation", "running", "ended"),
    [
        (1, "garbage", "garbage"),
        (GENERATION - 1, "garbage", "garbage"),
        (GENERATION, "kept", "garbage"),
        (GENERATION + 1, "kept", "kept"),
    ],
)
def test_spark_locations_and_probes_of_older_and_ended_runs_are_garbage(
    generation: int, running: str, ended: str
) -> None:
    for key in (f"{spark_location(generation)}/offsets/3", probe_key(generation, "abc")):
        assert (_verdict(key), _verdict(key, replace(HEAD, ended=True))) == (running, ended)


@pytest.mark.parametrize(
    "key",
    [
        *"data/notes.txt data/1/2-a/x data/ log/1 spark/x probe/readme".split(),
        f"{_data(GENERATION, 1)}/deeper",
        f"{_data(1, 1)}~",
        f"{log_entry(1)}.bak",
        f"data/{'9' * 21}/0000000001-a/x",
        "log/" + "\u0660" * 19 + "\u0661",
    ],
)
def test_a_name_that_stateflow_does_not_write_is_left_alone_and_reported(key: str) -> None:
    assert _verdict(key) == "unknown"
