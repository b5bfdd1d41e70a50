"""Damage to anything that a checkpoint consists of is reported by name before use, and nothing on disk changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.damaged_job import DAMAGES, Victim, check_refused, make_victim
from tests.support import root_files
from tests.support.restores import everything

KINDS = ["FORMAT", "log entry", "manifest", "sst"]
SOME = ["a bit in the middle", "half", "removed"]


@pytest.fixture(scope="module")
def resting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    victim = make_victim(tmp_path_factory.mktemp("corruption"))
    yield victim
    victim.box.end_all()


@pytest.fixture
def victim(resting: Victim) -> Iterator[Victim]:
    yield resting
    resting.reset()


@pytest.mark.parametrize(
    # A log entry that is removed was never written, as far as the log can tell; see below.
    ("kind", "damage"),
    [(k, d) for k in KINDS for d in DAMAGES if (k, d) != ("log entry", "removed")],
)
def test_damage_is_named(victim: Victim, kind: str, damage: str) -> None:
    path = victim.files(kind)[0]
    DAMAGES[damage](path)
    check_refused(victim, path)


@pytest.mark.parametrize("damage", SOME)
def test_no_file_is_left_out(victim: Victim, damage: str) -> None:
    count = len(victim.files("sst"))
    assert count >= 4
    for i in range(1, count):
        path = victim.files("sst")[i]
        DAMAGES[damage](path)
        check_refused(victim, path)
        victim.reset()


@pytest.mark.parametrize("kind", ["log entry", "manifest", "sst"])
def test_a_file_in_the_place_of_another_one_is_named(victim: Victim, kind: str) -> None:
    """One of another job, an older one, and the two exchanged."""
    path = victim.files(kind)[0]
    path.write_bytes(victim.files(kind, victim.other.root)[0].read_bytes())
    check_refused(victim, path)
    victim.reset()
    older = root_files.kept_entries(victim.root)[-2]
    other = {
        "log entry": root_files.entry_path(victim.root, victim.box.head.checkpoint),
        "manifest": victim.root / older.doc["manifest"]["key"],
        "sst": victim.files("sst")[1],
    }[kind]
    one, two = path.read_bytes(), other.read_bytes()
    assert one != two
    path.write_bytes(two)
    check_refused(victim, path)
    other.write_bytes(one)
    check_refused(victim, path)


def test_the_format_of_another_job_of_this_name_is_found_out(victim: Victim) -> None:
    path = victim.files("FORMAT")[0]
    path.write_bytes(victim.files("FORMAT", victim.other.root)[0].read_bytes())
    check_refused(victim, victim.files("log entry")[0])


def test_another_version_of_the_format_is_refused(victim: Victim) -> None:
    path = victim.files("FORMAT")[0]
    document, _ = root_files.unsealed(path.read_bytes())
    path.write_bytes(root_files.sealed({**document, "version": 2}))
    victim.run().check_error(2, "wrong-job-root", found=2)


def test_the_entry_that_ends_a_run_may_go(victim: Victim) -> None:
    """Without it everything is as if the run had been killed at its end."""
    assert victim.box.head.doc["kind"] == "admin"
    victim.files("log entry")[0].unlink()
    victim.box.finish()
    victim.box.check()


def test_a_log_that_is_gone_is_not_taken_for_a_new_job(victim: Victim) -> None:
    """A start would process everything again, and its collections would take what an operator may yet save."""
    for entry in root_files.entries(victim.root):
        root_files.entry_path(victim.root, entry.seq).unlink()
    before = everything(victim.box)
    victim.box.run().check_error(4, "data")
    assert everything(victim.box) == before


@pytest.mark.parametrize("damage", SOME)
def test_a_large_source_log_is_named(victim: Victim, damage: str) -> None:
    """Spark's source logs, where they are too large for the manifest, are files of their own."""
    path = _add_source_log(victim)
    DAMAGES[damage](path)
    check_refused(victim, path)


def _add_source_log(victim: Victim) -> Path:
    """Rewrites the newest checkpoint as one of a job whose source has a large log."""
    # Without the entry that ends the run, the checkpoint's own one is the newest, and no other has its hash.
    victim.files("log entry")[0].unlink()
    newest, manifest, stored = victim.box.head, victim.box.manifest, victim.files("manifest")[0]
    path = stored.with_name("sources-0-9.compact")
    path.write_bytes(b"a line of a log\n" * 1000)
    log = {"path": "0/9.compact", "content": None, "handle": root_files.handle_of(victim.root, path)}
    text = root_files.encoded(b"v1\n{}\n{}")
    spark = {"batch_id": 9, "offsets": text, "previous_offsets": None, "commit": text, "source_files": [log]}
    stored.write_bytes(root_files.sealed({**manifest, "spark": spark}))
    entry = {**newest.doc, "manifest": root_files.handle_of(victim.root, stored)}
    root_files.entry_path(victim.root, newest.seq).write_bytes(root_files.sealed(entry))
    assert victim.box.manifest["spark"]["source_files"] == [log]
    return path


@pytest.mark.parametrize("damage", SOME)
def test_a_retained_manifest_is_named_when_it_is_adopted(victim: Victim, damage: str) -> None:
    victim.box.reach("commit.after:2")
    newest = victim.box.lose_output()
    path = victim.root / newest.doc["retained"][-1]["manifest"]["key"]
    DAMAGES[damage](path)
    # Only who owns the job may go back, so that the run has claimed it by then.
    check_refused(victim, path, claims=True)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_collection_finds_damage_before_it_deletes(victim: Victim, kind: str) -> None:
    path = victim.files(kind)[0]
    DAMAGES["a bit in the middle"](path)
    before = root_files.digests(victim.root)
    ended = victim.box.command("gc")
    assert (ended.code, root_files.digests(victim.root)) == (4, before), str(ended)
    assert str(path.relative_to(victim.root)) in ended.error.facts.values(), str(ended)


def test_what_was_damaged_and_is_restored_runs_on(victim: Victim) -> None:
    path = victim.files("sst")[0]
    data = path.read_bytes()
    DAMAGES["half"](path)
    check_refused(victim, path)
    path.write_bytes(data)
    victim.box.finish()
    victim.box.check()
