"""What may be deleted at a head: a table of cases, each with the history that makes it matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint.gc.reachability import find_garbage, is_past
from stateflow.checkpoint.log.documents import EntryKind, LogEntry, Pin
from stateflow.storage import BlobInfo
from stateflow.storage.paths import data_folder, log_entry, parse_data, probe, spark_location
from tests.support.graphs import entry, ref

GENERATION, ORDINAL, SEQ = 10, 4, 17
"""A run that claimed at 10 and has committed four barriers; three ADMIN entries have come in between."""
HEAD = entry(SEQ, EntryKind.COMMIT, generation=GENERATION, ordinal=ORDINAL, retained=[ref(12), ref(14)])


def _pin(seq: int) -> Pin:
    return Pin(id=f"pin{seq}", checkpoint=ref(seq), owner="o", reason="r", since="now")


def _data(generation: int, ordinal: int, name: str = "000008.sst") -> str:
    return f"{data_folder(generation, ordinal, 'attempt')}{name}"


def _verdict(key: str, head: LogEntry = HEAD, live: frozenset[str] = frozenset()) -> str:
    found = find_garbage(head, live, [BlobInfo(key, 5)])
    if found.unknown:
        return "unknown"
    return "garbage" if found.garbage == (BlobInfo(key, 5),) else "kept"


@pytest.mark.parametrize(
    ("generation", "ordinal", "verdict"),
    [
        (GENERATION, ORDINAL, "garbage"),  # an attempt that lost against the one that was committed
        (GENERATION, ORDINAL - 1, "garbage"),
        (GENERATION, 0, "garbage"),
        (GENERATION, ORDINAL + 1, "kept"),  # the batch that is on its way
        (GENERATION, ORDINAL + 9, "kept"),
        (GENERATION - 1, 0, "garbage"),  # a fenced run's
        (GENERATION - 1, 99, "garbage"),
        (GENERATION + 1, 0, "kept"),  # a run that claimed after this head was read
        (SEQ, SEQ, "kept"),
    ],
)
def test_a_file_that_no_kept_checkpoint_names(generation: int, ordinal: int, verdict: str) -> None:
    assert _verdict(_data(generation, ordinal)) == verdict


@pytest.mark.parametrize("generation", [1, GENERATION])
def test_a_file_that_a_kept_checkpoint_names_stays(generation: int) -> None:
    key = _data(generation, 1)
    assert _verdict(key, live=frozenset({key})) == "kept"


def test_the_ordinal_decides_and_not_the_sequence_number() -> None:
    """Barrier 5's files were named when the head was at 14. Then ADMIN entries came: the head is at 17 now, above every
    number that the run knew, and barrier 5 still has to bring its files in."""
    admin = entry(SEQ, EntryKind.ADMIN, generation=GENERATION, ordinal=ORDINAL, checkpoint=ref(14))
    assert _verdict(_data(GENERATION, ORDINAL + 1), admin) == "kept"
    assert _verdict(_data(GENERATION, ORDINAL), admin) == "garbage"


def test_a_fresh_claim_makes_all_of_older_runs_garbage_that_is_not_live() -> None:
    claim = entry(18, EntryKind.CLAIM, generation=18, ordinal=0, checkpoint=ref(17))
    assert _verdict(_data(GENERATION, ORDINAL + 1), claim) == "garbage"
    assert _verdict(_data(18, 1), claim) == "kept"


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


# -- log entries --------------------------------------------------------------------------------------------------

CLAIM = entry(18, EntryKind.CLAIM, generation=18, checkpoint=ref(17))
ADMIN = entry(20, EntryKind.ADMIN, generation=18, checkpoint=ref(17))
FIRST = entry(2, EntryKind.ADMIN, generation=1)
OLD = frozenset(map(log_entry, (3, 14)))
"""Of checkpoints whose manifest only their own entry names."""


@pytest.mark.parametrize(
    ("head", "since"),
    [
        (HEAD, 17),  # a COMMIT is its own checkpoint
        (CLAIM, 17),  # a run of an older version walks over all entries from the present checkpoint on
        (ADMIN, 17),
        (FIRST, 1),  # no checkpoint yet: nothing goes
    ],
)
def test_entries_that_stay(head: LogEntry, since: int) -> None:
    named = replace(head, run="nonce")
    numbers = range(1, head.seq + 1)
    present = {head.seq if head.is_checkpoint else head.checkpoint.id if head.checkpoint else head.seq}
    assert {n for n in numbers if _verdict(log_entry(n), named) == "kept"} == {head.seq, *present}
    assert [n for n in numbers if _verdict(log_entry(n), head) == "kept"] == [*range(since, head.seq + 1)]
    assert all(_verdict(key, named, OLD) == "kept" for key in OLD)


def test_what_came_after_the_head_was_read_stays() -> None:
    assert {_verdict(log_entry(seq)) for seq in range(SEQ, SEQ + 5)} == {"kept"}


# -- the rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "verdict"),
    [(1, "garbage"), (GENERATION - 1, "garbage"), (GENERATION, "kept"), (GENERATION + 1, "kept")],
)
def test_locations_and_probes_of_older_runs_go(generation: int, verdict: str) -> None:
    assert _verdict(f"{spark_location(generation)}/offsets/3") == verdict
    assert _verdict(probe(generation, "abc")) == verdict


def test_location_and_probe_of_a_run_that_has_ended_go() -> None:
    ended = replace(HEAD, ended=True)
    for generation, verdict in ((GENERATION, "garbage"), (GENERATION + 1, "kept")):
        assert _verdict(f"{spark_location(generation)}/offsets/3", ended) == verdict
        assert _verdict(probe(generation, "abc"), ended) == verdict


@pytest.mark.parametrize(
    "key",
    [
        "data/notes.txt",
        "data/1/2-a/x",
        f"{_data(GENERATION, 1)}/deeper",
        "log/1",
        f"{log_entry(1)}.bak",
        "spark/x",
        "probe/readme",
        f"data/{'9' * 21}/0000000001-a/x",
        "log/" + "\u0660" * 19 + "\u0661",
        f"{_data(1, 1)}~",
        "data/",
    ],
)
def test_a_name_that_stateflow_does_not_write_is_left_alone_and_told(key: str) -> None:
    assert _verdict(key) == "unknown"


def test_findings_keep_the_sizes_and_the_order() -> None:
    blobs = [BlobInfo(_data(1, n), n) for n in range(3)] + [BlobInfo("data/x", 1), BlobInfo(_data(10, 9), 1)]
    found = find_garbage(HEAD, frozenset({_data(1, 1)}), blobs)
    assert (found.garbage, found.unknown) == ((blobs[0], blobs[2]), ("data/x",))
