"""Several file sources on Spark in one job, and corrupt files: a run that fails with their name, or skips them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from stateflow import operations
from stateflow.checkpoint.history import read_records
from stateflow.storage import open_storage
from tests.spark.jobs import folders
from tests.spark.processes import ModuleJob
from tests.support import restores
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]


@pytest.fixture
def job(tmp_path: Path) -> ModuleJob:
    for folder in (folders.PARQUET, "json"):
        (tmp_path / folder).mkdir()
    return ModuleJob(tmp_path, folders)


def _parquet(path: Path, numbers: range) -> Path:
    parquet.write_table(pa.table({"name": ["p"] * len(numbers), "number": [*numbers]}), path)
    return path


def _json(path: Path, numbers: range, more: str = "") -> Path:
    path.write_text("".join(json.dumps({"name": "j", "number": n}) + "\n" for n in numbers) + more)
    return path


def _truncate(path: Path) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def _garble(path: Path) -> Path:
    """Keeps the footer: the damage is found only when the pages are read."""
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    return path


def _type(home: Path, begin: str, file: str) -> None:
    """Types a command of the runbook's steps for a corrupt file."""
    text = (ROOT / "docs" / "runbook.md").read_text().partition("## A corrupt input file")[2]
    blocks = map(textwrap.dedent, re.findall(r"^ *```\n(.*?)^ *```$", text, re.M | re.S))
    (block,) = [block for block in blocks if block.startswith(begin)]
    names = {"FOLDER": str(home / folders.PARQUET), "FILE": file}
    subprocess.run(["bash", "-euc", block], env={**os.environ, **names}, cwd=home, check=True)


def _expected(parquet: list[int], json: range) -> Counter[tuple[object, ...]]:
    return Counter([("p", n) for n in parquet] + [("j", n) for n in json])


def _check_sums(job: ModuleJob) -> None:
    sums: Counter[str] = Counter()
    for name, number in job.rows("out").elements():
        sums[name] += number
    found = job.rows("sums")
    assert {name: max(n for of, n in found if of == name) for name in sums} == sums


def test_a_corrupt_file_ends_the_run_once_with_its_name(job: ModuleJob, tmp_path: Path) -> None:
    _parquet(tmp_path / folders.PARQUET / "good.parquet", range(5))
    bad = _garble(_parquet(tmp_path / folders.PARQUET / "z bad.parquet", range(5, 9)))
    _json(tmp_path / "json" / "one.json", range(3))
    attempts: dict[str, Any] = {"restart__fixed_delay__attempts": 5, "restart__fixed_delay__delay": "1s"}
    ended = job.run(job__corrupt="fail", restart__strategy="fixed-delay", **attempts)
    error = ended.failure
    assert (ended.code, error["code"], error["retryable"]) == (4, "corrupt-input", False), str(ended)
    assert error["facts"]["file"] == str(bad)
    # The reason comes once and without a Java stack; Spark's own log is in a file, with times in UTC as the run's.
    lines = [line for line in ended.err.splitlines() if line and not line.startswith("[Stage")]
    assert len(lines) < 20 and "\tat " not in ended.err, ended.err
    (log,) = (job.local / "spark-logs").iterdir()
    assert "FAILED_READ_FILE" in log.read_text()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", log.read_text())
    steps = re.findall(r"Z INFO .*\b(Spark|tables)\b.*\b\d+ s\b", ended.err)
    assert {*steps} == {"Spark", "tables"}, "the seconds of each step before the first batch"
    # The batch has no output; with an intact file of the same name the next run reads all.
    assert not job.rows("out")
    _parquet(tmp_path / "repaired.json", range(5, 9))
    _type(tmp_path, 'mv repaired.json "$FOLDER/$FILE"', bad.name)
    job.finish(job__corrupt="fail")
    # Two sources read the JSON files.
    more = Counter({**_expected([], range(3)), ("listed", 0): 1, ("listed", 1): 1})
    assert job.rows("out") == _expected([*range(9)], range(3)) + more
    _check_sums(job)


def test_the_backlog_is_measured_without_spark_after_a_run(job: ModuleJob, tmp_path: Path) -> None:
    home = tmp_path / folders.PARQUET
    _parquet(home / "read.parquet", range(5))
    _json(tmp_path / "json" / "one.json", range(3))
    assert job.finish().result["backlog"]["rows"] == 0
    waiting = [_parquet(home / f"{number}.parquet", range(number)) for number in (4, 6)]
    shown = job.command("status", "--job", job.job_file, "--json", with_job=True)
    found = {each["uid"]: each for each in shown.check().document["backlog"]["sources"]}
    (parquet,) = [each for each in found.values() if each["rows"]]
    assert (parquet["rows"], parquet["files"], parquet["exact"]) == (10, 2, True)
    assert parquet["size_bytes"] == sum(file.stat().st_size for file in waiting)

    # And the history has what the operator and the sinks have done, as the tables have it.
    (record,) = read_records(open_storage(str(job.root)))
    sums, rows, out = record.operators["sum"], job.rows("out").total(), job.rows("sums").total()
    assert (sums.rows_in, sums.rows_out) == (rows, out) and rows == record.rows_in == 8
    assert (record.sinks["out"].rows, record.sinks["sums"].rows) == (rows, out)
    assert sums.function_ms > 0 and sums.store_ms > 0 and 0 < sums.cpu_ms < record.cpu_ms
    assert sums.state_entries == pytest.approx(len({name for name, _ in job.rows("out")}), abs=1)
    assert record.storage_requests > 0 and record.storage_written_bytes > record.full_bytes


def test_corrupt_files_are_skipped_as_a_whole_and_recorded_once(job: ModuleJob, tmp_path: Path) -> None:
    home, root = tmp_path / folders.PARQUET, str(job.root)
    _parquet(home / "good.parquet", range(5))
    # Its first rows are read before the damage is found: none of them may stay.
    bad = [_truncate(_parquet(home / "a truncated.parquet", range(50, 60)))]
    bad.append(_garble(_parquet(home / "garbled.parquet", range(60, 70))))
    _json(tmp_path / "json" / "one.json", range(3))
    bad.insert(0, _json(tmp_path / "json" / "bad.json", range(70, 75), more='{"name": "x", "numb'))
    # The first attempt is killed after its decision and before its commit; the next one decides the same.
    job.reach("batch.reported:1", -9)
    ended = job.finish()
    assert job.rows("out") == _expected([*range(5)], range(3))
    assert ended.result["quarantined_count"] == 3
    assert sorted(q["file"] for q in ended.result["quarantined"]) == sorted(map(str, bad))
    # A worker whose connection Spark has closed logs nothing either.
    assert "Traceback" not in ended.err and "BrokenPipe" not in ended.err, ended.err
    first = operations.describe(root).checkpoint_id
    # A later batch does not read them, keeps the records, and adds its own, whatever the order of the sources.
    _parquet(home / "later.parquet", range(5, 7))
    bad.append(_truncate(_parquet(home / "later bad.parquet", range(80, 90))))
    job.finish(job__swapped="yes")
    assert job.rows("out") == _expected([*range(7)], range(3))
    found = operations.describe(root)
    assert found.quarantined_count == 4
    assert Counter(q.file for q in found.quarantined) == Counter(map(str, bad))
    assert {q.source for q in found.quarantined} == {"parquet", "json"} and all(q.error for q in found.quarantined)
    # As in the runbook: a repaired file is read under a new name, and not under its own.
    _parquet(bad[2], range(60, 70))
    _parquet(tmp_path / "repaired.json", range(80, 90))
    _type(tmp_path, 'mv repaired.json "$FOLDER/repaired-', bad[-1].name)
    job.finish()
    expected = _expected([*range(7), *range(80, 90)], range(3))
    assert job.rows("out") == expected
    # A restore to an earlier checkpoint reads both again.
    restores.go_back(job, str(first))
    job.finish()
    assert job.rows("out") == expected
    assert operations.describe(root).quarantined_count == 4
    _check_sums(job)
