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
from stateflow.checkpoint.log.checkpoint_log import Appended, is_ancestor
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import Manifest, PendingOutput, SourceFile, SourcePosition, SparkPosition
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_bytes, write_manifest
from stateflow.checkpoint.log.transitions import Commit, pending_of
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile
from stateflow.operations.relocation import (
    FileCheck,
    FolderMove,
    check_files,
    files_of_source,
    parse_logged_files,
    relocate_description,
    relocate_log,
)
from stateflow.runtime.spark.checkpoint_location import source_log
from stateflow.storage import PosixStorage
from stateflow.storage.paths import data_folder
from tests.support import restores
from tests.support.errors import raises
from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import KILLED, ON_REQUEST, AccountsJob, JobFixture
from tests.support.ledger_job import LedgerJob
from tests.support.processes import Ended

STEPS = [name for name in failpoints.NAMES if name in ON_REQUEST and name.startswith("relocate.")]
"""In the order in which a relocation reaches them."""
NEW = "moved %41ü (1)+'x~;=, é"


def _relocate(job: JobFixture, source: str, paths: tuple[Path, Path], *more: str, failpoint: str = "") -> Ended:
    """Moves a source from the first path to the second."""
    old, new = map(str, paths)
    move = ("source", "relocate", "--source", source, "--from", old, "--to", new, "--json")
    return job.command(*move, *more, failpoint=failpoint)


# -- on Spark ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow(reason="each run starts Spark")
def test_a_relocated_source_neither_repeats_nor_omits_a_row(flights: FlightsJob) -> None:
    """Over a compacted source log, kills at each step, and a name that is written in several ways."""
    flights.settings = {**flights.settings, "spark__conf__spark.sql.streaming.fileSource.log.compactInterval": 2}
    flights.run_to(3)
    old, new = flights.input, flights.folder / NEW
    _check_refusals(flights, old, new)
    shutil.rmtree(new)
    flights.place = Path(shutil.move(old, new))
    for step in STEPS:
        assert _relocate(flights, "flights", (old, new), failpoint=step).code == KILLED
        flights.command("verify").check()
    assert _relocate(flights, "flights", (old, new)).check().document["repeated"]
    assert flights.head.doc["sources"][0]["description"].endswith(f"{new}]")
    assert len(flights.records("relocate")) == 1
    flights.deliver(5)
    refused = flights.run()
    assert refused.code == 2, str(refused)
    flights.finish(job__flights=new)
    flights.check()


def _check_refusals(flights: FlightsJob, old: Path, new: Path) -> None:
    head = flights.head.seq

    def relocate(*more: str) -> Ended:
        return _relocate(flights, "flights", (old, new), *more)

    assert relocate().code == 2
    shutil.copytree(old, new)
    (new / "0001.parquet").rename(new / "late.parquet")
    missing = relocate()
    assert missing.error.facts["missing"] == 1 and "0001.parquet" in missing.err
    (new / "late.parquet").rename(new / "0001.parquet")
    shutil.copy(new / "0001.parquet", new / "late.parquet")
    (new / "_SUCCESS").touch()
    found = relocate("--dry-run", "--check", "content").check().document
    assert (found["seen_files"], found["unread_files"], found["dry_run"]) == (3, 1, True)
    shutil.copy(new / "0002.parquet", new / "0001.parquet")
    assert relocate("--dry-run").check().document["seen_files"] == 3
    changed = relocate("--check", "content")
    assert changed.error.facts["changed"] == 1 and "0001.parquet" in changed.err
    shutil.copy(old / "0001.parquet", new / "0001.parquet")
    for wrong in (("--source", "nothing"), ("--from", str(flights.folder / "other"))):
        assert relocate(*wrong).code == 2
    assert flights.head.seq == head


# -- the log ----------------------------------------------------------------------------------------------------------

_LOGS = {"a": "0/9.compact", "b": "1/9"}
"""Where Spark keeps the source log of each of two sources."""


def _root_with_two_sources(root: Path, files: Path) -> JobRoot:
    """A job whose newest checkpoint has read many files of one folder and three of another, and has pending output."""
    made = JobRoot.create_or_open(PosixStorage(root), SystemClock(), NewJob("job", 128, {}), "test")
    head = made.claim()
    folder = data_folder(head.entry.generation, 1, "driver")
    logs = []
    for uid, count in zip(_LOGS, (400, 3), strict=True):
        (files / uid).mkdir(parents=True)
        paths = [files / uid / f"{n:05d}" for n in range(count)]
        for path in paths:
            path.touch()
        logs.append(_log(*(path.as_uri() for path in paths)))
    large = write_bytes(made.storage, f"{folder}sources-0-9.compact", logs[0])
    spark = SparkPosition(
        batch_id=9, offsets=b"v1\n{}\n{}\n{}", previous_offsets=None, commit=b"",
        source_files=[SourceFile(path=_LOGS["a"], handle=large), SourceFile(path=_LOGS["b"], content=logs[1])],
    )  # fmt: skip
    sources = [SourcePosition(uid=u, description=f"FileSource[csv:{files / u}]", offset="{}") for u in _LOGS]
    manifest = Manifest(
        job_uuid=made.job.job_uuid, generation=head.entry.generation, ordinal=1, operators=[], sources=sources,
        spark=spark,
    )  # fmt: skip
    output = [PendingOutput(checkpoint_id=0, sink="out", committables=[])]
    commit = Commit(1, write_manifest(made.storage, folder, manifest), sources, output)
    assert isinstance(made.commit(head, commit, RetentionLimits(3)), Appended)
    return made


@pytest.mark.parametrize(("step", "uid"), [*zip(STEPS, ["a", "b", "a"], strict=True)])
def test_a_relocation_that_was_killed_is_done_once(job: AccountsJob, tmp_path: Path, step: str, uid: str) -> None:
    files, others = tmp_path / "files", tmp_path / "other"
    root = _root_with_two_sources(job.root, files)
    before = root.head()
    shutil.copytree(files, others)
    assert _relocate(job, uid, (files, others), failpoint=step).code == KILLED
    report = _relocate(job, uid, (files, others), "--check", "content").check().document
    # The files of the other source, in the folder next to this one, do not count.
    assert (report["repeated"], report["unread_files"]) == (step == "relocate.adopted", 0)
    head = root.head()
    manifest = root.checkpoints.manifest_at(head)
    assert manifest is not None and manifest.spark is not None
    logs = {f.path: parse_logged_files(source_log(root.storage, f), f.path) for f in manifest.spark.source_files}
    folders = {path: {file.path.parent for file in log} for path, log in logs.items()}
    wanted = {u: (others if u == uid else files) / u for u in _LOGS}
    assert folders == {log: {PurePosixPath(wanted[u])} for u, log in _LOGS.items()}
    descriptions = {p.uid: p.description for p in head.entry.sources}
    assert descriptions == {u: f"FileSource[csv:{folder}]" for u, folder in wanted.items()}
    # The checkpoint, its pending output and the positions of its savepoints are all kept.
    assert [(p.checkpoint_id, p.sink) for p in pending_of(head)] == [(before.checkpoint_id, "out")]
    assert [ref.id for ref in head.entry.retained] == [before.checkpoint_id]
    assert is_ancestor(head, before.checkpoint_id, {ref.id for ref in root.checkpoints.restorable(head)})
    job.collect()
    check_hashes(root.storage, files_of(manifest))
    assert len(job.records("relocate")) == 1


# -- paths ------------------------------------------------------------------------------------------------------------

_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda n: n not in (".", "..")
)
_FOLDERS = st.lists(_NAMES, min_size=1, max_size=3).map(lambda names: PurePosixPath("/", *names))
_MOVE = FolderMove(PurePosixPath("/old"), PurePosixPath("/new"))


@given(old=_FOLDERS, new=_FOLDERS, names=st.lists(_NAMES, max_size=3))
def test_the_relocation_of_a_source_log_can_be_reversed(
    old: PurePosixPath, new: PurePosixPath, names: list[str]
) -> None:
    log = _log(*(FolderMove(PurePosixPath("/x"), old / name).uri("file:///x") for name in names))
    moved = relocate_log(log, "0/1", FolderMove(old, new))
    assert [f.path for f in parse_logged_files(moved, "0/1")] == [new / name for name in names]
    assert relocate_log(moved, "0/1", FolderMove(new, old)) == log


@pytest.mark.parametrize("uri", ["file:///other/a", "file:///older/a", "s3a://bucket/old/a", "/old/a"])
def test_a_source_log_with_files_in_other_folders_is_refused(uri: str) -> None:
    with raises(ConfigError, file=uri, folder="/old"):
        relocate_log(_log(uri), "0/1", _MOVE)


@pytest.mark.parametrize(
    "line", [b"{", b"{}", b'{"path": 3, "timestamp": 1, "batchId": 0}', b'{"path": "file:///a", "timestamp": 1}']
)
def test_a_source_log_that_spark_cannot_have_written_is_corrupt(line: bytes) -> None:
    with raises(CorruptFile, file="0/1"):
        relocate_log(b"v1\n" + line, "0/1", _MOVE)


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
    lines: list[dict[str, Any]] = [{"path": uri, "timestamp": 17, "batchId": n} for n, uri in enumerate(uris)]
    return "\n".join(["v1", *(json.dumps(x, separators=(",", ":"), ensure_ascii=False) for x in lines)]).encode()


def test_a_file_is_recognized_by_its_time_where_the_old_one_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a"
    file.parent.mkdir()
    file.write_text("x")
    os.utime(file, ns=(17_000_999, 17_000_999))
    move = FolderMove(PurePosixPath(tmp_path / "old"), PurePosixPath(tmp_path / "new"))
    seen = parse_logged_files(_log((tmp_path / "old" / "a").as_uri()), "0/1")
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


# -- a partitioned source: killed at each step, and set to earlier positions ------------------------------------------


@pytest.fixture
def partitioned_job(tmp_path: Path) -> Iterator[LedgerJob]:
    (tmp_path / "in").mkdir()
    job = LedgerJob(tmp_path, spark=False, source__max_rows_per_batch=4, checkpoints__retained=100)
    yield job
    job.close()


def _positions(job: LedgerJob) -> dict[str, int]:
    [source] = job.manifest["sources"]
    found: dict[str, int] = json.loads(source["offset"])
    return found


@pytest.mark.slow(reason="runs and restores a job of several processes")
def test_a_restore_returns_to_the_positions_of_a_savepoint_or_is_refused_without_its_rows(
    partitioned_job: LedgerJob,
) -> None:
    partitioned_job.send("a", 9)
    partitioned_job.send("b", 5)
    partitioned_job.finish()
    before = _positions(partitioned_job)
    partitioned_job.create_savepoint("early")
    partitioned_job.send("b", 6)
    partitioned_job.send("c", 2)
    partitioned_job.finish()
    planned = restores.plan(partitioned_job, "early")
    assert [source["available"] for source in planned["sources"]] == [True]
    restores.execute(partitioned_job).check()
    assert _positions(partitioned_job) == before == {"a": 9, "b": 5}
    partitioned_job.finish()
    partitioned_job.check_rows()
    # Retention removes rows after the position of the savepoint.
    (partitioned_job.folder / "in" / "b.first").write_text("6")
    planned = restores.go_back(partitioned_job, "early")
    assert [source["available"] for source in planned["sources"]] == [False]
    ended = partitioned_job.run()
    ended.check_error(4, "input-lost", source=f"Ledgers[{partitioned_job.folder / 'in'}]")
    assert "b: offsets [5, 6)" in ended.err
    restores.go_back(partitioned_job, "early", "--source", 'entries={"a":9,"b":6}')
    partitioned_job.finish()
    assert _positions(partitioned_job) == {"a": 9, "b": 11, "c": 2}
