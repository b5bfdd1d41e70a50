"""A job whose input folder moved: which folders are refused, kills on the way, and the rows that come out of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import failpoints
from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.documents import Manifest, PendingOutput, SourceFile, SourcePosition, SparkPosition
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.lineage import is_ancestor
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_bytes, write_manifest
from stateflow.checkpoint.log.retained import Retention
from stateflow.checkpoint.log.transitions import Commit, pending_of
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile
from stateflow.operations.relocation import FileCheck, check_files, files_of_source
from stateflow.runtime.spark.checkpoint_location import source_log
from stateflow.runtime.spark.source_paths import FolderMove, logged_files, relocate_description, relocate_log
from stateflow.storage import PosixStorage
from stateflow.storage.paths import data_folder
from tests.support import root_files
from tests.support.errors import raises
from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import ASKED, AccountsJob
from tests.support.processes import Ended, spawn

STEPS = [name for name in failpoints.NAMES if name in ASKED and name.startswith("relocate.")]
"""In the order in which a move comes to them."""
NEW = "moved %41ü (1)+'x~;=, é"


class MovedJob(FlightsJob):
    """A job whose input may be elsewhere."""

    place: Path | None = None

    @property
    def input(self) -> Path:
        return self.place or super().input

    def relocate(self, to: Path, *more: str, failpoint: str = "") -> Ended:
        move = ("--source", "flights", "--from", str(self.folder / "flights"), "--to", str(to))
        return self.command("source", "relocate", *move, "--json", *more, failpoint=failpoint)


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[MovedJob]:
    scratch = {
        "spark__conf__spark.local.dir": tmp_path / "spark",
        "spark__conf__spark.sql.streaming.fileSource.log.compactInterval": 2,
    }
    box = MovedJob(tmp_path / "job", scratch, job="small_flights", launcher=spawn)
    yield box
    box.end_all()
    for process in box.processes:
        process.wait_family()


@pytest.mark.spark
@pytest.mark.slow
def test_no_row_is_processed_twice_or_left_out(flights: MovedJob) -> None:
    """Over a compacted source log, kills at each step, and a name that is written in several ways."""
    flights.deliver(3)
    flights.finish()
    old, new = flights.input, flights.folder / NEW
    _check_refusals(flights, new)
    shutil.rmtree(new)
    flights.place = Path(shutil.move(old, new))
    for step in STEPS:
        flights.marker.unlink(missing_ok=True)
        assert flights.relocate(new, failpoint=step).code == -9
        assert flights.command("verify").code == 0
    done = flights.relocate(new)
    assert done.code == 0 and json.loads(done.out)["repeated"], str(done)
    assert root_files.head(flights.root).doc["sources"][0]["description"].endswith(f"{new}]")
    assert [r["kind"] for r in root_files.history(flights.root) if r.get("kind") == "relocate"] == ["relocate"]
    flights.deliver(5)
    refused = flights.run()
    assert refused.code == 2, str(refused)
    flights.finish(job__flights=new)
    flights.check_results()
    flights.check_clean()


def _check_refusals(flights: MovedJob, new: Path) -> None:
    head = root_files.head(flights.root).seq

    def report(*more: str) -> dict[str, Any]:
        done = flights.relocate(new, "--dry-run", *more)
        assert done.code == 0, str(done)
        return json.loads(done.out)  # type: ignore[no-any-return]

    assert flights.relocate(new).code == 2
    shutil.copytree(flights.input, new)
    (new / "0001.parquet").rename(new / "late.parquet")
    missing = flights.relocate(new)
    assert missing.error.facts["missing"] == 1 and "0001.parquet" in missing.err
    (new / "late.parquet").rename(new / "0001.parquet")
    shutil.copy(new / "0001.parquet", new / "late.parquet")
    (new / "_SUCCESS").touch()
    found = report("--check", "content")
    assert (found["seen"], found["unread"], found["dry_run"]) == (3, 1, True)
    shutil.copy(new / "0002.parquet", new / "0001.parquet")
    assert report()["seen"] == 3
    changed = flights.relocate(new, "--check", "content")
    assert changed.error.facts["changed"] == 1 and "0001.parquet" in changed.err
    shutil.copy(flights.input / "0001.parquet", new / "0001.parquet")
    for wrong in (("--source", "nothing"), ("--from", str(flights.folder / "other"))):
        assert flights.relocate(new, *wrong).code == 2
    assert root_files.head(flights.root).seq == head


def test_every_step_has_a_failpoint() -> None:
    assert STEPS == ["relocate.claimed", "relocate.stored", "relocate.adopted"]


# -- the log ----------------------------------------------------------------------------------------------------------


def _root_with_two_sources(root: Path, files: Path, uids: tuple[str, str]) -> JobRoot:
    """A job whose newest checkpoint has read files of two folders, the first of them many, with pending output."""
    made = JobRoot.create_or_open(PosixStorage(root), SystemClock(), NewJob("job", 128, {}), "test")
    head = made.claim()
    names = {uid: [f"{n:05d}" for n in range(count)] for uid, count in zip(uids, (400, 3), strict=True)}
    for uid, each in names.items():
        (files / uid).mkdir(parents=True)
        for name in each:
            (files / uid / name).touch()
    logs = [_log(*((files / uid / name).as_uri() for name in names[uid])) for uid in uids]
    large = write_bytes(made.storage, f"{data_folder(head.entry.generation, 1, 'driver')}sources-0-9.compact", logs[0])
    spark = SparkPosition(
        batch_id=9,
        offsets=b"v1\n{}\n{}\n{}",
        previous_offsets=None,
        commit=b"",
        source_files=[SourceFile(path="0/9.compact", handle=large), SourceFile(path="1/9", content=logs[1])],
    )
    sources = [SourcePosition(uid=u, description=f"FileSource[csv:{files / u}]", offset="{}") for u in uids]
    manifest = Manifest(
        job_uuid=made.job.job_uuid,
        generation=head.entry.generation,
        ordinal=1,
        operators=[],
        sources=sources,
        spark=spark,
    )
    handle = write_manifest(made.storage, data_folder(head.entry.generation, 1, "driver"), manifest)
    output = [PendingOutput(checkpoint_id=0, sink="out", committables=[])]
    commit = Commit(ordinal=1, manifest=handle, sources=sources, output=output)
    assert isinstance(made.commit(head, commit, Retention(3)), Appended)
    return made


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("uid", ["a", "b"])
def test_a_move_that_was_killed_is_done_once(box: AccountsJob, tmp_path: Path, step: str, uid: str) -> None:
    files = tmp_path / "files"
    root = _root_with_two_sources(box.root, files, ("a", "b"))
    before = root.head()
    new = tmp_path / "other" / uid
    shutil.copytree(files, tmp_path / "other")
    move = ("source", "relocate", "--source", uid, "--from", str(files), "--to", str(tmp_path / "other"), "--json")
    assert box.command(*move, failpoint=step).code == -9
    done = box.command(*move, "--check", "content")
    assert done.code == 0, str(done)
    report = json.loads(done.out)
    assert report["repeated"] == (step == "relocate.adopted")
    # The files of the other source, in the folder next to this one, do not count.
    assert report["unread"] == 0
    head = root.head()
    manifest = root.checkpoints.manifest_at(head)
    assert manifest is not None and manifest.spark is not None
    folders = {
        f: {s.path.parent for s in logged_files(source_log(root.storage, entry), f)}
        for entry in manifest.spark.source_files
        for f in [entry.path]
    }
    wanted = {"0/9.compact": files / "a", "1/9": files / "b"} | {("0/9.compact" if uid == "a" else "1/9"): new}
    assert folders == {path: {PurePosixPath(folder)} for path, folder in wanted.items()}
    other = "b" if uid == "a" else "a"
    assert {p.uid: p.description for p in head.entry.sources} == {
        uid: f"FileSource[csv:{new}]",
        other: f"FileSource[csv:{files / other}]",
    }
    # Nothing is lost of what the checkpoint was to publish, nor the checkpoint itself, nor where its savepoints stand.
    assert [(p.checkpoint_id, p.sink) for p in pending_of(head)] == [(before.checkpoint_id, "out")]
    assert [ref.id for ref in head.entry.retained] == [before.checkpoint_id]
    assert is_ancestor(head, before.checkpoint_id, {ref.id for ref in root.checkpoints.restorable(head)})
    box.collect()
    check_hashes(root.storage, files_of(manifest))
    assert len([r for r in root_files.history(box.root) if r.get("kind") == "relocate"]) == 1


# -- paths ------------------------------------------------------------------------------------------------------------

_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda n: n not in (".", "..")
)
_FOLDERS = st.lists(_NAMES, min_size=1, max_size=3).map(lambda names: PurePosixPath("/", *names))


@given(old=_FOLDERS, new=_FOLDERS, names=st.lists(_NAMES, max_size=3), back=st.booleans())
def test_a_path_is_replaced_and_found_again(
    old: PurePosixPath, new: PurePosixPath, names: list[str], back: bool
) -> None:
    move = FolderMove(old, new)
    log = _log(*(FolderMove(PurePosixPath("/x"), old / name).uri("file:///x") for name in names))
    moved = relocate_log(log, "0/1", move)
    assert [f.path for f in logged_files(moved, "0/1")] == [new / name for name in names]
    if back:
        assert relocate_log(moved, "0/1", FolderMove(new, old)) == log


@pytest.mark.parametrize("uri", ["file:///other/a", "file:///older/a", "s3a://bucket/old/a", "/old/a"])
def test_files_elsewhere_are_refused(uri: str) -> None:
    with raises(ConfigError, file=uri, folder="/old"):
        relocate_log(_log(uri), "0/1", FolderMove(PurePosixPath("/old"), PurePosixPath("/new")))


@pytest.mark.parametrize("line", [b"{", b"{}", b'{"path": 3, "timestamp": 1}', b'{"path": "file:///a"}'])
def test_what_spark_does_not_write_is_corrupt(line: bytes) -> None:
    with raises(CorruptFile, file="0/1"):
        relocate_log(b"v1\n" + line, "0/1", FolderMove(PurePosixPath("/old"), PurePosixPath("/new")))


@pytest.mark.parametrize(
    ("path", "old", "new", "then"),
    [
        ("/data/in", "/data/in", "/new", "/new"),
        ("/data/in", "/data", "/new/", "/new/in"),
        ("/data/in/*.parquet", "/data/in", "file:///new", "file:///new/*.parquet"),
        ("/data/in", "/data/i", "/new", None),
        ("/data", "/data/in", "/new", None),
        ("/data/in", "/", "/new", "/new/data/in"),
    ],
)
def test_a_description_follows_the_folder(path: str, old: str, new: str, then: str | None) -> None:
    moved = relocate_description(f"FileSource[csv:{path}]", old, new)
    assert moved == (then and f"FileSource[csv:{then}]")
    assert relocate_description(f"Other[{path}]", old, new) is None


def _log(*uris: str) -> bytes:
    lines = [
        json.dumps({"path": uri, "timestamp": 17, "batchId": n}, separators=(",", ":"), ensure_ascii=False)
        for n, uri in enumerate(uris)
    ]
    return "\n".join(["v1", *lines]).encode()


def test_a_file_is_recognized_by_its_time_where_the_old_one_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a"
    file.parent.mkdir()
    file.write_text("x")
    os.utime(file, ns=(17_000_999, 17_000_999))
    move = FolderMove(PurePosixPath(tmp_path / "old"), PurePosixPath(tmp_path / "new"))
    seen = logged_files(_log((tmp_path / "old" / "a").as_uri()), "0/1")
    assert check_files(seen, move, FileCheck.CONTENT) == {file}
    os.utime(file, ns=(18_000_000, 18_000_000))
    with raises(ConfigError, changed=1):
        check_files(seen, move, FileCheck.CONTENT)


def test_the_files_of_a_source_are_those_of_its_folder_or_pattern(tmp_path: Path) -> None:
    for name in ("in/a.json", "in/day=1/b.json", "in/_log/c.json", "in/.d.json", "other/e.json", "in/f.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def files(below: str) -> list[str]:
        found = files_of_source(f"FileSource[json:{tmp_path}/{below}]")
        return sorted(str(path.relative_to(tmp_path)) for path in found)

    assert files("in") == ["in/a.json", "in/day=1/b.json", "in/f.csv"]
    assert files("in/*.json") == ["in/a.json"]
    assert files("*/day=*") == ["in/day=1/b.json"]
    assert files("nowhere") == []
