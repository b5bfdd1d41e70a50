"""What CLAIM, COMMIT and ADMIN entries take over, and what they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    Ancestry,
    EntryKind,
    LogEntry,
    PendingOutput,
    Pin,
    PublishedOutput,
    RestoreFacts,
    RestoreStep,
    SourcePosition,
)
from stateflow.checkpoint.log.lineage import is_ancestor
from stateflow.checkpoint.log.transitions import Adoption, Author, Commit, Kept, Settlement, pending_of
from tests.support.graphs import JOB, entry, handle, head, ref

AUTHOR = Author("writer", "nonce", "2026-01-01", "why")
SOURCES = [SourcePosition(uid="rows", description="d", offset="7")]


def _pending(checkpoint: int, sink: str = "out") -> PendingOutput:
    return PendingOutput(checkpoint_id=checkpoint, sink=sink, committables=[])


def _published(checkpoint: int) -> PublishedOutput:
    return PublishedOutput(table_id="t", version=checkpoint, checkpoint_id=checkpoint)


def _pin(seq: int) -> Pin:
    return Pin(id=f"pin{seq}", checkpoint=ref(seq), owner="o", reason="r", since="now")


FULL: dict[str, Any] = {
    "generation": 4,
    "ordinal": 2,
    "manifest": handle(4, 2),
    "retained": [ref(5), ref(6)],
    "pinned": [_pin(3)],
    "sources": SOURCES,
    "published": {"out": _published(6)},
    "requests": ["r1"],
    "ancestry": Ancestry(since=1),
}
COMMITTED = head(7, EntryKind.COMMIT, pending=[_pending(6), _pending(0)], **FULL)
"""A COMMIT: its own output is pending under the number 0, because it could not know its own."""
ADMIN = head(8, EntryKind.ADMIN, checkpoint=ref(7), pending=[_pending(7)], **FULL)


def _changes(found: LogEntry, base: Head) -> dict[str, Any]:
    """What differs from the entry before, apart from who wrote it, and when a checkpoint was that it stands on."""
    ours = {"kind", "writer", "nonce", "at", "note", "seq", "parent"}
    before, after = asdict(base.entry), asdict(found)
    if found.kind is EntryKind.CLAIM:
        assert after.pop("run") == found.nonce
    return {name: value for name, value in after.items() if value != before[name] and name not in ours}


def _check_link(found: LogEntry, base: Head, kind: EntryKind) -> None:
    assert (found.kind, found.seq, found.parent) == (kind, base.entry.seq + 1, base.sha256)
    assert (found.writer, found.nonce, found.at, found.job_uuid) == ("writer", "nonce", "2026-01-01", JOB.job_uuid)


# -- CLAIM --------------------------------------------------------------------------------------------------------


def test_the_first_claim_begins_everything() -> None:
    found = transitions.claim(JOB, None, AUTHOR, None)
    assert (found.kind, found.seq, found.generation, found.ordinal, found.parent) == (EntryKind.CLAIM, 1, 1, 0, "")
    assert (found.note, found.checkpoint, found.manifest, found.retained) == ("why", None, None, [])


def test_a_claim_is_a_new_generation_that_continues() -> None:
    found = transitions.claim(JOB, COMMITTED, AUTHOR, None)
    _check_link(found, COMMITTED, EntryKind.CLAIM)
    assert _changes(found, COMMITTED) == {
        "generation": 8,
        "ordinal": 0,
        "checkpoint": ref(7),
        "pending": [_pending(6), _pending(7)],
        "runs": 1,
    }


def test_the_claim_of_a_run_counts_and_that_of_a_restore_does_not() -> None:
    first = transitions.claim(JOB, None, AUTHOR, None)
    second = transitions.claim(JOB, Head(first, "sha"), AUTHOR, None)
    restore = transitions.claim(JOB, Head(second, "sha"), replace(AUTHOR, request="r"), None)
    assert [e.runs for e in (first, second, restore)] == [1, 2, 2]
    back = transitions.claim(
        JOB, Head(restore, "sha"), AUTHOR, Adoption(upto=0, manifest=handle(1, 1), sources=SOURCES)
    )
    assert back.runs == 2


def test_a_claim_on_another_entry_keeps_its_checkpoint() -> None:
    found = transitions.claim(JOB, ADMIN, AUTHOR, None)
    assert _changes(found, ADMIN) == {"generation": 9, "ordinal": 0, "runs": 1}


def test_going_back_drops_what_came_after() -> None:
    old = entry(
        5,
        EntryKind.COMMIT,
        generation=2,
        manifest=handle(2, 9),
        sources=[SourcePosition(uid="rows", description="d", offset="3")],
    )
    base = head(
        9,
        EntryKind.COMMIT,
        **{**FULL, "retained": [ref(4), ref(5), ref(6)]},
        pending=[_pending(4), _pending(5), _pending(6), _pending(0)],
    )
    assert old.manifest is not None
    adoption = Adoption(upto=5, manifest=old.manifest, sources=old.sources, checkpoint=ref(5))
    found = transitions.claim(JOB, base, AUTHOR, adoption)
    assert (found.generation, found.ordinal) == (10, 0)
    assert (found.checkpoint, found.manifest, found.sources) == (ref(5), old.manifest, old.sources)
    assert found.retained == [ref(4)]
    assert [p.checkpoint_id for p in found.pending] == [4, 5]
    assert found.ancestry == Ancestry(since=1, restores=[RestoreStep(seq=10, base=5)])
    assert (found.pinned, found.published) == (base.entry.pinned, base.entry.published)


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=30))
def test_every_entry_knows_what_its_state_came_from(steps: list[int | None]) -> None:
    """None: a checkpoint more. A number: back to one of those that were ever made, on whatever branch; 30 is another
    job's savepoint. The oracle keeps a set for each checkpoint."""
    base = Head(transitions.claim(JOB, None, AUTHOR, None), "sha")
    made: list[frozenset[int]] = []
    ids: list[int] = []
    present: frozenset[int] = frozenset()
    for step in steps:
        if step is None or not ids:
            new = Commit(base.entry.ordinal + 1, handle(1, 1), SOURCES)
            base = Head(transitions.commit(JOB, base, AUTHOR, new, Kept(99)), "sha")
        else:
            back = None if step == 30 else step % len(ids)
            present = frozenset() if back is None else made[back]
            facts = RestoreFacts(request="", by="", label="", base=0 if back is None else ids[back], left=0, at="")
            adoption = Adoption(upto=0, manifest=handle(1, 1), sources=SOURCES, savepoint="s", restore=facts)
            base = Head(transitions.claim(JOB, base, AUTHOR, adoption), "sha")
        present |= {base.entry.seq}
        ids.append(base.entry.seq)
        made.append(present)
        assert {i for i in ids if is_ancestor(base, i, frozenset())} == present
        assert not any(is_ancestor(base, i, frozenset()) is None for i in ids)


def test_on_top_of_an_entry_that_does_not_know_it_is_known_from_there_on() -> None:
    old = head(7, EntryKind.COMMIT, **{**FULL, "ancestry": None})
    claim = Head(transitions.claim(JOB, old, AUTHOR, None), "sha")
    assert claim.entry.ancestry == Ancestry(since=8)
    retained = {5, 6, 7}
    assert [is_ancestor(claim, i, retained) for i in (4, 5, 7, 8)] == [None, True, True, True]


# -- COMMIT -------------------------------------------------------------------------------------------------------


def test_a_commit_brings_a_checkpoint_and_retains_the_one_before() -> None:
    new = Commit(3, handle(4, 3), SOURCES, [_pending(0, "a")], {"a": _published(7)}, frozenset({(7, "out")}))
    found = transitions.commit(JOB, COMMITTED, AUTHOR, new, Kept(6))
    _check_link(found, COMMITTED, EntryKind.COMMIT)
    assert _changes(found, COMMITTED) == {
        "ordinal": 3,
        "manifest": handle(4, 3),
        "retained": [ref(6), ref(7)],
        "pending": [_pending(6), _pending(0, "a")],
        "published": {"out": _published(6), "a": _published(7)},
        "oldest_retained": 6,
    }
    assert found.retained[-1] == COMMITTED.checkpoint
    assert (found.retained[-1].manifest, found.retained[-1].at) == (handle(4, 2), "now")


def test_a_checkpoint_id_is_the_sequence_number_of_its_commit() -> None:
    found = transitions.commit(JOB, ADMIN, AUTHOR, Commit(3, handle(4, 3), SOURCES), Kept(7))
    assert Head(found, "x").checkpoint_id == 9
    assert found.retained == [ref(7)]


def test_the_first_commit_retains_nothing() -> None:
    claim = Head(transitions.claim(JOB, None, AUTHOR, None), "sha1")
    found = transitions.commit(JOB, claim, AUTHOR, Commit(1, handle(1, 1), SOURCES), Kept(2))
    assert (found.seq, found.retained, found.checkpoint) == (2, [], None)


# -- ADMIN --------------------------------------------------------------------------------------------------------


def test_a_pin_adds_itself_and_nothing_else() -> None:
    found = transitions.pin(JOB, COMMITTED, AUTHOR, _pin(6))
    _check_link(found, COMMITTED, EntryKind.ADMIN)
    assert _changes(found, COMMITTED) == {
        "pinned": [_pin(3), _pin(6)],
        "checkpoint": ref(7),
        "pending": [_pending(6), _pending(7)],
    }
    assert (found.generation, found.ordinal) == (4, 2)


def test_unpinning_removes_one() -> None:
    base = head(8, EntryKind.ADMIN, checkpoint=ref(7), pinned=[_pin(3), _pin(6)], ancestry=FULL["ancestry"])
    assert _changes(transitions.unpin(JOB, base, AUTHOR, "pin3"), base) == {"pinned": [_pin(6)]}
    assert _changes(transitions.unpin(JOB, base, AUTHOR, "no such"), base) == {}


def test_shortening_the_retention_never_lengthens_it() -> None:
    assert _changes(transitions.retain(JOB, ADMIN, AUTHOR, 7), ADMIN) == {"retained": [], "oldest_retained": 7}
    found = transitions.retain(JOB, ADMIN, AUTHOR, 6)
    assert _changes(found, ADMIN) == {"retained": [ref(6)], "oldest_retained": 6}
    assert _changes(transitions.retain(JOB, Head(found, "sha9"), AUTHOR, 5), Head(found, "sha9")) == {}


def test_settling_drops_what_is_published() -> None:
    found = transitions.settle(
        JOB, COMMITTED, AUTHOR, Settlement({"out": _published(7)}, frozenset({(6, "out"), (7, "out")}), 7)
    )
    _check_link(found, COMMITTED, EntryKind.ADMIN)
    assert _changes(found, COMMITTED) == {
        "pending": [],
        "published": {"out": _published(7)},
        "checkpoint": ref(7),
        "ended": True,
        "collected": 7,
    }


# -- pending output -----------------------------------------------------------------------------------------------


def test_pending_output_has_its_checkpoint_s_number_from_the_next_entry_on() -> None:
    assert [p.checkpoint_id for p in pending_of(COMMITTED)] == [6, 7]
    following = Head(transitions.pin(JOB, COMMITTED, AUTHOR, _pin(6)), "sha8")
    assert [p.checkpoint_id for p in pending_of(following)] == [6, 7]
