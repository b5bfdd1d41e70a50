"""The records of runs' starts in the history, with the job files and graphs of the runs."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stateflow.checkpoint import history
from stateflow.checkpoint.history import RUN_START, read_history, read_run_file, record_run, trim_history
from stateflow.checkpoint.log.documents import ActionRecord
from stateflow.operations.checkpoints import verify_history
from stateflow.storage import MemoryStorage, open_storage
from stateflow.storage.paths import RUN_FILES
from tests.support.cli_fixture import BUILD, CliFixture


@pytest.fixture
def cli(tmp_path: Path) -> CliFixture:
    return CliFixture(tmp_path)


def starts(root: str) -> list[ActionRecord]:
    return [r for r in read_history(open_storage(root)) if isinstance(r, ActionRecord) and r.kind == RUN_START]


def test_each_run_has_a_record_and_each_job_file_and_graph_is_stored_once(cli: CliFixture) -> None:
    texts, results = [], []
    for step in ("", "", ".filter(repr)"):
        cli.write(BUILD.replace(".key_by", f"{step}.key_by"))
        os.utime(cli.job, (1_000_000, 1_000_000))
        texts.append(cli.job.read_bytes())
        results.append(cli.run())
    found, storage = starts(cli.root), open_storage(cli.root)
    assert [record.seq for record in found] == [result.generation for result in results]
    assert [record.facts["run"] for record in found] == [1, 2, 3]
    assert [record.facts["checkpoint_id"] or 0 for record in found] == [r.start_checkpoint_id for r in results]
    assert [read_run_file(storage, record.text("job_file_sha256")) for record in found] == texts
    assert {record.facts["job_file_modified_at"] for record in found} == {"1970-01-12T13:46:40.000Z"}
    assert all(0 < (record.duration_ms or 0) < 60_000 for record in found)
    graphs = [json.loads(read_run_file(storage, record.text("graph_sha256")) or b"") for record in found]
    chains = [chain for graph in graphs for level in graph["levels"] for chain in level["chains"]]
    assert [(chain["uid"], chain["states"]) for chain in chains] == [("sum", None)] * 3
    rows = {"key": ["key string"], "from_uids": ["rows"], "order_by": [], "broadcast": False}
    ways = ["rows", "rows", "rows > filter repr"]
    assert [chain["inputs"] for chain in chains] == [[{**rows, "rows": way}] for way in ways]
    assert [[(sink["uid"], sink["from_uids"]) for sink in chain["sinks"]] for chain in chains] == [
        [("totals", ["sum"])]
    ] * 3
    assert len(storage.list(RUN_FILES)) == 4
    verify_history(cli.root)


def start(number: int) -> ActionRecord:
    return ActionRecord(seq=number, kind=RUN_START, ended_at=datetime.now(UTC).isoformat(), by="a")


def test_a_file_is_deleted_with_the_last_record_of_a_run_that_had_it() -> None:
    storage = MemoryStorage()
    for number, text in enumerate((b"a", b"b", b"a"), 1):
        record_run(storage, start(number), text, b"{}")

    def stored(data: bytes) -> bool:
        return read_run_file(storage, hashlib.sha256(data).hexdigest()) == data

    trim_history(storage, keep=2)
    assert [stored(data) for data in (b"a", b"b", b"{}")] == [True, True, True]
    trim_history(storage, keep=1)
    assert [stored(data) for data in (b"a", b"b", b"{}")] == [True, False, True]
    trim_history(storage, keep=0)
    assert storage.list("") == []


def test_a_large_job_file_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LARGEST_JOB_FILE", 3)
    storage = MemoryStorage()
    record_run(storage, start(1), b"1234", b'{"levels": []}')
    (record,) = read_history(storage)
    assert isinstance(record, ActionRecord)
    assert read_run_file(storage, record.text("job_file_sha256")) is None
    assert read_run_file(storage, record.text("graph_sha256")) == b'{"levels": []}'


def test_a_changed_file_is_not_read() -> None:
    storage, name = MemoryStorage(), hashlib.sha256(b"a").hexdigest()
    storage.put_new(f"{RUN_FILES}{name}", b"b")
    assert read_run_file(storage, name) is None
