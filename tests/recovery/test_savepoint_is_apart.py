"""A savepoint is the user's: it holds no output, making it publishes and notifies nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support import root_files
from tests.support.job_fixture import AccountsJob


def _names(document: Any) -> Iterator[str]:
    """The names of all fields, at any depth."""
    if isinstance(document, dict):
        yield from document
        document = list(document.values())
    if isinstance(document, list):
        for value in document:
            yield from _names(value)


def test_it_names_no_output(box: AccountsJob) -> None:
    """Also where its checkpoint's output was pending a moment before."""
    box.deliver(50)
    box.reach("commit.after:3")
    pending = box.head.doc["pending"]
    assert pending and {"pending", "committables"} <= set(_names(box.head.doc))
    box.create_savepoint("mine", "--patience", "0.2", "--job", box.job_file, with_job=True)
    stored = box.savepoints["mine"]
    assert stored["checkpoint_id"] == box.head.checkpoint
    assert not {"pending", "committables"} & set(_names(stored))
    files = [c["path"] for output in pending for c in output["committables"]]
    assert files and not [path for path in files if path in str(stored)]


def test_making_it_touches_no_table(early: AccountsJob) -> None:
    before = root_files.digests(early.folder / "tables")
    early.create_savepoint("more")
    early.create_savepoint("from-head", "--from-head")
    assert root_files.digests(early.folder / "tables") == before


def test_making_it_notifies_nobody(box: AccountsJob) -> None:
    """Functions are notified of checkpoints, each soon after its commit, also of that which a savepoint is made of; of
    nothing else: a savepoint's entries in the log have numbers, too."""
    box.job = "checkpointed"
    box.deliver(60)
    made, _ = box.asked_at("batch.begin:3", "savepoint", "create", "--name", "beside")
    made.check()
    box.create_savepoint("resting")
    box.run_to(90)
    notified = {row["told"] for row in box.rows("told")} - {0}
    others = {e.seq for e in root_files.entries(box.root) if not e.is_checkpoint}
    recorded = {r["checkpoint_id"] for r in root_files.history(box.root) if "checkpoint_id" in r}
    assert notified and notified <= recorded and not notified & others
