"""What CLAIM, COMMIT and ADMIN entries take over from the entry before, and what they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import Head, is_ancestor
from stateflow.checkpoint.log.documents import (
    Ancestry,
    ClaimedSavepoint,
    EntryKind,
    EntryRef,
    LogEntry,
    PendingOutput,
    Pin,
    PublishedOutput,
    RestoreFacts,
    SourcePosition,
)
from stateflow.checkpoint.log.transitions import Adoption, Author, Commit, Kept, Settlement, pending_of
from stateflow.state.handles import FileHandle
from tests.support.graphs import JOB, handle, head, ref

AUTHOR = Author("writer", "nonce", "2026-01-01", "why")
RESTORE = replace(AUTHOR, request="r")
OUTPUT = PendingOutput(checkpoint_id=0, sink="out", committables=[])


def _sources(offset: str) -> list[SourcePosition]:
    return [SourcePosition(uid="rows", description="d", offset=offset)]


def _claim(base: Head | None, adoption: Adoption | None = None, author: Author = AUTHOR) -> LogEntry:
    return transitions.claim(JOB, base, author, adoption)


def _commit(base: Head, ordinal: int, kept: int = 2, published: int = 0) -> LogEntry:
    new = Commit(ordinal, handle(base.entry.generation, ordinal), _sources(f"{base.entry.seq}"), [OUTPUT])
    if published:
        tables = {"out": PublishedOutput(table_id="t", version=published, checkpoint_id=published)}
        new = replace(new, published=tables, settled=frozenset({(published, "out")}))
    return transitions.commit(JOB, base, AUTHOR, new, Kept(kept))


def _pin(base: Head, checkpoint: int, generation: int = 0) -> LogEntry:
    names = {"owner": "o", "reason": "r", "since": "now"}
    pin = Pin(id=f"pin{checkpoint}", checkpoint=ref(checkpoint), generation=generation, **names)
    return transitions.pin(JOB, base, AUTHOR, pin)


BACK_TO_7 = Adoption(upto=7, manifest=handle(6, 1), sources=_sources("6"), checkpoint=ref(7))
IMPORTED = Adoption(upto=0, manifest=handle(9, 9), sources=_sources("0"), savepoint="s")
CLAIMED = ClaimedSavepoint(folder="savepoints/s-00000000/", id="s", name="s", generation=0)
PUBLISHED = Settlement({}, frozenset((checkpoint, "out") for checkpoint in range(20)), 7)

STEPS: list[tuple[str, Callable[[Head], LogEntry]]] = [
    ("a run commits its first checkpoint", lambda base: _commit(base, 1)),
    ("which is pinned", lambda base: _pin(base, 2)),
    ("its next checkpoint; the output of the first one was published", lambda base: _commit(base, 2, published=2)),
    ("a run claims the job", _claim),
    ("a restore claims the job, which is not counted as a run", lambda base: _claim(base, author=RESTORE)),
    ("a run commits a checkpoint", lambda base: _commit(base, 1)),
    ("and another one", lambda base: _commit(base, 2)),
    ("an unknown pin is removed", lambda base: transitions.unpin(JOB, base, AUTHOR, "pin9")),
    ("the pin is removed", lambda base: transitions.unpin(JOB, base, AUTHOR, "pin2")),
    ("the retention is shortened", lambda base: transitions.retain(JOB, base, AUTHOR, 4)),
    ("and never lengthened", lambda base: transitions.retain(JOB, base, AUTHOR, 2)),
    ("a checkpoint after that", lambda base: _commit(base, 3)),
    ("a run goes back to checkpoint 7", lambda base: _claim(base, BACK_TO_7)),
    ("and ends after its output is published", lambda base: transitions.settle(JOB, base, AUTHOR, PUBLISHED)),
    ("a run begins with another job's savepoint", lambda base: _claim(base, IMPORTED)),
    (
        "a restore announces that it claims a savepoint",
        lambda base: transitions.claim(JOB, base, RESTORE, None, CLAIMED),
    ),
    ("and adopts its state", lambda base: _claim(base, replace(IMPORTED, claimed=CLAIMED))),
    ("a run commits a checkpoint, which changes nothing of that", lambda base: _commit(base, 1)),
    (
        "the savepoint is deleted",
        lambda base: transitions.end_claim(JOB, base, AUTHOR, base.entry.claimed_savepoints[0]),
    ),
]


def _text(value: Any) -> str:
    match value:
        case list():
            return f"[{', '.join(map(_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{name}: {_text(each)}' for name, each in value.items())}}}"
        case FileHandle():
            return value.key.removesuffix("-driver/manifest.json")
        case Pin():
            return str(value.id)
        case EntryRef():
            return f"{value.id} of {value.at} ({_text(value.manifest)})"
        case ClaimedSavepoint():
            return f"{value.folder} of generation {value.generation} in checkpoint {value.checkpoint}"
        case PendingOutput() | PublishedOutput():
            return f"output of {value.checkpoint_id}"
        case SourcePosition():
            return f"{value.uid} up to {value.offset}"
        case Ancestry():
            return f"restored {[(step.seq, step.base) for step in value.restores]}"
    return str(value) or "''"


def _changes(found: LogEntry, base: Head) -> list[str]:
    """Checks the link to the entry before, and returns all other differences."""
    link = {"seq": base.entry.seq + 1, "parent": base.sha256, "writer": "writer", "nonce": "nonce", "note": "why"}
    link |= {"kind": found.kind, "at": AUTHOR.at, **({"run": "nonce"} if found.kind is EntryKind.CLAIM else {})}
    before, after = asdict(base.entry), asdict(found)
    assert {name: after.pop(name) for name in link} == link
    return [f"  {name}: {_text(value)}\n" for name, value in after.items() if value != before[name]]


def test_each_entry_takes_over_everything_except_these_changes(golden: SnapshotAssertion) -> None:
    base = Head(_claim(None), "sha1")
    assert (base.entry.kind, base.entry.seq, base.entry.parent) == (EntryKind.CLAIM, 1, "")
    lines = ["1 claim: the log begins\n", *(f"  {k}: {_text(v)}\n" for k, v in asdict(base.entry).items() if v)]
    for title, step in STEPS:
        found = step(base)
        lines += [f"{found.seq} {found.kind}: {title}\n", *_changes(found, base)]
        base = Head(found, f"sha{found.seq}")
        assert base.checkpoint_id == found.seq or not found.is_checkpoint
    assert "".join(lines) == golden


def test_output_of_a_commit_has_its_checkpoint_s_number_from_the_next_entry_on() -> None:
    older = PendingOutput(checkpoint_id=6, sink="out", committables=[])
    committed = head(7, EntryKind.COMMIT, pending=[older, OUTPUT])
    following = Head(_pin(committed, 6), "sha8")
    assert [[p.checkpoint_id for p in pending_of(each)] for each in (committed, following)] == [[6, 7], [6, 7]]


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=30))
def test_every_entry_knows_its_ancestors(steps: list[int | None]) -> None:
    """None: one more checkpoint. A number: back to one of those ever made, on any branch; 30 is another job's
    savepoint. The oracle keeps a set for each checkpoint."""
    base = Head(_claim(None), "sha")
    ids: list[int] = []
    ancestors: list[frozenset[int]] = []
    present: frozenset[int] = frozenset()
    for step in steps:
        if step is None or not ids:
            base = Head(_commit(base, base.entry.ordinal + 1, kept=99), "sha")
        else:
            back = None if step == 30 else step % len(ids)
            present = frozenset() if back is None else ancestors[back]
            facts = RestoreFacts(request="", by="", label="", base=0 if back is None else ids[back], left=0, at="")
            base = Head(_claim(base, replace(IMPORTED, restore=facts)), "sha")
        present |= {base.entry.seq}
        ids.append(base.entry.seq)
        ancestors.append(present)
        assert [is_ancestor(base, i, frozenset()) for i in ids] == [i in present for i in ids]


def test_a_claim_ends_the_pins_of_older_runs_and_keeps_those_of_readers() -> None:
    base = Head(_commit(Head(_claim(None), "sha1"), 1), "sha2")
    base = Head(_pin(base, 2), "sha3")
    base = Head(_pin(base, 3, generation=1), "sha4")
    assert [pin.id for pin in base.entry.pinned] == ["pin2", "pin3"]
    assert [pin.id for pin in _claim(base).pinned] == ["pin2"]


def test_published_output_of_one_sink_leaves_that_of_other_sinks_pending() -> None:
    other = PendingOutput(checkpoint_id=0, sink="other", committables=[])
    first = Commit(1, handle(1, 1), _sources("1"), [OUTPUT, other])
    base = Head(transitions.commit(JOB, Head(_claim(None), "sha1"), AUTHOR, first, Kept(2)), "sha2")
    pending = _commit(base, 2, published=2).pending
    assert [(each.checkpoint_id, each.sink) for each in pending] == [(2, "other"), (0, "out")]
