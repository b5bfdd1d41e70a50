"""``stateflow.replay_batch``: what a batch did is returned as data, for all keys or for one; and killed replays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import stateflow
from stateflow.checkpoint.log.job_root import LEASE, JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.errors import ConfigError
from stateflow.private_files import PREFIX
from stateflow.replay.replay_batch import key_texts
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.types.key_values import convert_key, parse_key
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents
from tests.support.errors import raises
from tests.support.job_fixture import KILLED
from tests.support.processes import Ended, Launch, spawn

FIRST, SECOND, THIRD = 2, 3, 4


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CliFixture]:
    job = CliFixture(tmp_path)
    job.settings["checkpoints.asynchronous"] = "no"
    yield job
    store_cache.close_all()


def test_a_batch_is_returned_as_rows_and_changes_of_state(job: CliFixture) -> None:
    job.run()
    settings = job.folder / "job.toml"
    settings.write_text("".join(f'{name} = "{value}"\n' for name, value in job.settings.items()))
    report = stateflow.replay_batch(job.job, job.root, SECOND, settings=settings)
    assert (report.batch, report.base, report.is_same, report.deviation) == (SECOND, FIRST, True, "")
    (emitted,) = report.emitted
    assert sorted((row["key"], row["total"]) for row in emitted.rows) == [("a", 9), ("b", 5), ("b", 12), ("c", 7)]
    changes = {change.key: (change.before, change.after) for change in report.state.changes}
    assert changes == {("a",): (3, 9), ("b",): (1, 12), ("c",): (2, 7)}
    assert report.keys == ()


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_one_key_has_no_entry_of_a_longer_key(job: CliFixture, backend: str) -> None:
    names = ["a", "a\0", "a\0b", "a\0\0"]
    head = JOB.replace('[Row("abc"[n % 3], n) for n in range(12)]', f"[Row({names}[n % 4], n) for n in range(12)]")
    head = head.replace("\n\nROWS", "\n    def on_timer(self, timestamp, ctx):\n        return ()\n\n\nROWS")
    timer = "ctx.timer_service().register_processing_time_timer(2**45)"
    job.write(BUILD, head.replace("        yield", f"        {timer}\n        yield"))
    job.settings |= {"state.backend": backend, "parallelism": "2"}
    job.run()
    for number, name in enumerate(names):
        report = stateflow.replay_batch(job.job, job.root, THIRD, settings=job.settings, key=[name])
        (key,) = report.keys
        assert report.is_same
        assert [(call.given["key"], call.given["number"]) for call in key.calls] == [(name, 8 + number)]
        assert len(key.state) == 2
        found = {change.state: (change.key, change.before, change.after) for change in key.state}
        assert found == {"total": ((name,), 4 + 2 * number, 12 + 3 * number), "_timers": ((name,), 2**45, 2**45)}


def test_what_cannot_be_replayed_is_an_error_with_what_can(job: CliFixture) -> None:
    job.run()
    with raises(ConfigError, batch=9, kept=[FIRST, SECOND, THIRD]):
        stateflow.replay_batch(job.job, job.root, 9, settings=job.settings)
    with raises(ConfigError, operator="other"):
        stateflow.replay_batch(job.job, job.root, THIRD, settings=job.settings, key=["a"], operator="other")


def test_a_value_of_a_key_may_have_the_type_of_its_column(job: CliFixture) -> None:
    text = JOB.replace("    key: str\n    number: int", "    key: bytes\n    number: int", 1)
    text = re.sub(r"Row\(\"abc\"\[n % 3\], n\)", 'Row(b"abc"[n % 3 : n % 3 + 1], n)', text)
    text = text.replace("yield Total(row.key,", "yield Total(row.key.decode(),")
    job.write(BUILD, text)
    job.run()
    (key,) = stateflow.replay_batch(job.job, job.root, SECOND, settings=job.settings, key=[b"b"]).keys
    assert [call.given["number"] for call in key.calls] == [4, 7]


@pytest.mark.parametrize(
    ("value", "spark_type"),
    [
        ("a", "string"),
        (None, "string"),
        (b"\0\xff", "binary"),
        (True, "boolean"),
        (-7, "bigint"),
        (1.5, "double"),
        (-math.inf, "double"),
        (Decimal("1.50"), "decimal(5,2)"),
        (date(2026, 1, 31), "date"),
        (datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC), "timestamp"),
        (timedelta(days=-1, microseconds=3), "interval day to second"),
    ],
)
def test_each_value_of_a_key_is_read_as_itself(value: object, spark_type: str) -> None:
    (found,) = parse_key(key_texts([value]), {"key": spark_type})
    assert found == convert_key([value], [spark_type])[0]


# -- replays that are killed ------------------------------------------------------------------------------------------

POINTS = {
    "read.pinned:1": 2, "read.pinned:2": 2, "task.processed": 2, "task.uploaded": 2, "task.sink-closed": 2,
    "batch.reported": 2, "read.finished:1": 2, "read.unpinned:1": 1, "read.unpinned:2": 0,
}  # fmt: skip
"""Failpoints of a replay, and the pins that exist then."""


def _replay(job: CliFixture, failpoint: str = "") -> Ended:
    arguments = ["replay", str(job.job), "--job-root", job.root, "--batch", "3", *job.command()[4:]]
    environment = {"STATEFLOW_FAILPOINT": failpoint, "TMPDIR": str(job.folder / "tmp")}
    return spawn(Launch(arguments, job.folder / "output", environment)).wait()


def _scratch(job: CliFixture) -> list[Path]:
    return list((job.folder / "tmp").glob(f"{PREFIX}*"))


def _lasting(job: CliFixture) -> dict[str, str]:
    """The files of the job, its tables and its working folder, apart from the log."""
    others = ("root/log/", "tmp/", "output", "code/")
    return {name: text for name, text in contents(job.folder).items() if not name.startswith(others)}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.slow(reason="starts a process for each kill")
def test_a_killed_replay_changes_nothing_of_the_job_and_the_next_one_removes_its_files(
    job: CliFixture, point: str
) -> None:
    job.run()
    (job.folder / "tmp").mkdir()
    before = _lasting(job)
    assert _replay(job, point).code == KILLED
    pins = POINTS[point]
    left = set(_scratch(job))
    assert len(left) == (1 if 1 < pins else 0) or point.startswith("read.")
    assert _lasting(job) == before
    _replay(job).check()
    assert not _scratch(job) and left.isdisjoint(_scratch(job))
    assert _lasting(job) == before
    later = ManualClock(start=SystemClock().now() + LEASE)
    root = JobRoot.open(open_storage(job.root), later, "later")
    assert len(root.head().entry.pinned) == pins
    root.admin.end_leases()
    assert root.head().entry.pinned == []
