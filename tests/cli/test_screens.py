"""What a person sees of each command: one golden file per screen, and the same as data where there is ``--json``."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from stateflow import operations
from stateflow.checkpoint.history import write_records
from stateflow.checkpoint.log.documents import ABORTED, CheckpointRecord, Spread
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.storage import open_storage
from tests.support.cli_fixture import CliFixture, contents, invoke
from tests.support.screens import normalized

WHO = ("--by", "anna", "--reason", "wrong rows")
LEFT_BEHIND = "data/00000000000000000001/0000000002-l9/sum-1-000099.sst"
STORY = dict(line.split(": ", 1) for line in (Path(__file__).parent / "data" / "story.txt").read_text().splitlines())
"""Screens in the order in which the commands run. Each may also change the job that the next ones see."""
CODES = {"status-without-a-job": 2, "can-delete-no": 6, "checkpoints-trigger-without-a-run": 2}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Paths by the names that they have in the golden files."""
    folder = tmp_path_factory.mktemp("story")
    job = CliFixture(folder)
    job.settings["checkpoints.asynchronous"] = "no"
    job.run()
    (folder / "root" / "data" / "notes.txt").write_text("mine")
    left_behind = folder / "root" / LEFT_BEHIND
    left_behind.parent.mkdir()
    left_behind.write_text("of a run that was killed")
    _pin(job.root)
    names = ("root", "scratch", "plan", "fork", "shadow", "into")
    return {"job": str(job.job), "folder": str(folder), **{name: str(folder / name) for name in names}}


def _pin(uri: str) -> None:
    root = JobRoot.open(open_storage(uri), SystemClock())
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    root.admin.pin(checkpoint, "anna", "looking at it")


@pytest.fixture(scope="module")
def story(places: dict[str, Any]) -> dict[str, str]:
    """What each command of the story printed."""
    shown = {}
    for name, command in STORY.items():
        ended = invoke(*(_with_places(word, places) for word in shlex.split(command)))
        assert ended.exit_code == CODES.get(name, 0), (name, ended.output)
        shown[name] = normalized(ended.output, **places)
    return shown


def _with_places(word: str, places: dict[str, str]) -> str:
    for name, path in places.items():
        word = word.replace(f"<{name}>", path)
    return word


@pytest.mark.parametrize("name", STORY)
def test_the_output_of_each_command_matches_the_golden_file(
    story: dict[str, str], name: str, golden: SnapshotAssertion
) -> None:
    assert story[name] == golden


def _data(*words: str) -> Any:
    return json.loads(invoke(*words, "--json").output)


def test_the_json_output_has_the_facts_of_each_command(story: dict[str, str], places: dict[str, str]) -> None:
    root = ("--job-root", places["root"])
    records = [json.loads(line) for line in invoke("history", *root, "--json").output.splitlines()]
    kinds = Counter(record["kind"] for record in records)
    assert kinds == {"checkpoint": 5, "savepoint": 5, "restore": 1, "fork": 2, "run": 2, "dispose": 2}
    (restore,) = [r for r in records if r["kind"] == "restore"]
    assert (restore["by"]["name"], restore["by"]["source"], restore["reason"]) == ("anna", "claim", "wrong rows")
    assert restore["facts"]["target_label"].endswith("2") and restore["restored_checkpoint_id"] == 2

    stopped, periodic = _data("savepoint", "list", *root)
    newest = _data("status", *root)["checkpoint_id"]
    assert (stopped["origin"], stopped["checkpoint_id"]) == ("stop", newest)
    assert (periodic["name"], periodic["origin"], periodic["checkpoint_id"]) == ("nightly", "periodic", newest)
    (apart,) = _data("savepoint", "list", "--in", places["into"])
    shown = _data("savepoint", "show", apart["path"])
    assert (shown["name"], shown["by"]["name"], shown["reason"]) == ("apart", "anna", "wrong rows")
    assert (shown["job"], shown["max_parallelism"], shown["checkpoint_id"]) == ("job", 128, 4)
    found = [(v["checkpoint_id"], v["entries"]) for v in _data("verify", *root, "--deep")]
    assert found == [(kept, 3) for kept in sorted(_data("status", *root)["retained_checkpoint_ids"])]


# -- figures of checkpoints ---------------------------------------------------------------------------------------


def _made_up(record: CheckpointRecord, n: int) -> CheckpointRecord:
    """The record with figures that are the same in each run, no two of them alike."""
    return replace(
        record,
        ended_at=f"2026-01-31T23:5{n}:59.999+00:00",
        rows_in=1234 * n,
        duration_ms=1000.4 * n,
        trigger_ms=n + 0.1,
        start_delay_ms=n + 0.2,
        alignment_ms=10.3 * n,
        sync_ms=20.4 * n,
        async_ms=30.5 * n,
        commit_ms=40.6 * n,
        publish_ms=50.7 * n,
        increment_bytes=600 * n,
        compaction_bytes=7_100 * n,
        full_bytes=800_000 * n,
        manifest_bytes=999_000_000 * n,
        files=10 * n,
        new_files=2 * n,
        subtasks={"sync_ms": Spread(min=1.5, avg=20.25, max=300), "full_bytes": Spread(min=1, avg=2_000, max=3e6)},
    )


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[CheckpointRecord]]]:
    """A root whose job was restored to its second checkpoint, and the records of its checkpoints."""
    job = CliFixture(tmp_path_factory.mktemp("figures"))
    job.settings["checkpoints.asynchronous"] = "no"
    job.run()
    records = [_made_up(record, n) for n, record in enumerate(operations.history(job.root), 1)]
    late = "2026-01-31T23:59:59+00:00"
    records.append(replace(records[-1], status=ABORTED, failure="the storage is full", ordinal=9, ended_at=late))
    for path in Path(job.root).glob("history/*"):
        path.unlink()
    write_records(open_storage(job.root), records, "0" * 8)
    plan = str(job.folder / "plan.json")
    words = ("restore", str(job.job), *job.command()[2:])
    assert invoke(*words, "--plan", "3", "--out", plan).exit_code == 0
    assert invoke(*words, "--execute", plan, *WHO).exit_code == 0
    before = contents(job.folder)
    yield job.root, records
    assert contents(job.folder) == before


@pytest.mark.parametrize(
    "words",
    ["status", "checkpoints list", "checkpoints show 3", "checkpoints history"],
    ids=lambda words: words.replace(" ", "-"),
)
def test_the_figures_of_checkpoints_match_the_golden_file(
    figures: tuple[str, list[CheckpointRecord]], words: str, golden: SnapshotAssertion
) -> None:
    shown = invoke(*words.split(), "--job-root", figures[0])
    assert shown.exit_code == 0, shown.output
    # The checkpoint that the restore itself has made has its own time and duration.
    output = re.sub(r"^( *= .*?)[\d-]{10} [\d:]{8} +\d+ +", r"\1<time> ", shown.output, flags=re.MULTILINE)
    # What is stored has the name of this machine in it: only its size is not always the same.
    assert normalized(output, exact="show" not in words) == golden


def test_the_json_output_has_the_recorded_figures_of_checkpoints(figures: tuple[str, list[CheckpointRecord]]) -> None:
    root, records = figures
    where = ("--job-root", root)
    found = _data("status", *where)
    points = found["points"]
    assert [(p["kind"], p["checkpoint_id"], p["undone"], p["retained"]) for p in points] == [
        ("checkpoint", 2, False, True),
        ("checkpoint", 3, False, True),
        ("checkpoint", 4, True, False),
        ("checkpoint", None, None, False),
        ("restore", 3, False, True),
    ]
    for point, record in zip(points, records, strict=False):
        figures_of = to_builtins(record).items()
        # Of the first checkpoint and branch, null.
        numbers = {n: v or None if n.startswith("b") else v for n, v in figures_of if isinstance(v, int | float)}
        assert {**point, "checkpoint_id": record.checkpoint_id}.items() >= numbers.items()
        assert datetime.fromisoformat(point["ended_at"]) == datetime.fromisoformat(record.ended_at)
    aborted, restore = points[3:]
    assert (aborted["previous_checkpoint_id"], aborted["failure"]) == (4, "the storage is full")
    assert (restore["restored_checkpoint_id"], restore["by"]["name"]) == (3, "anna")
    assert (found["checkpoint_id"], found["retained_checkpoint_ids"]) == (3, [2, 3])
    assert (found["restored_checkpoint_id"], found["offsets"]) == (None, {"rows": {"row": 8}})
    stored = JobRoot.open(open_storage(root), SystemClock())
    entry = stored.head().entry
    assert (found["job"], found["job_uuid"]) == ("job", stored.job.job_uuid)
    assert (found["generation"], found["head_seq"]) == (entry.generation, entry.seq)
    assert _data("checkpoints", "list", *where) == points
    assert _data("checkpoints", "list", *where, "--newest", "2") == points[-2:]
    found = _data("checkpoints", "history", *where)
    assert (found["checkpoints"], found["aborted"]) == (3, 1)
    tail = dict.fromkeys(("p90", "p95", "p99", "p99_9", "max"), 3702)
    assert found["rows_in"] == {"min": 1234, "avg": 2468, "p50": 2468, **tail}
    shown = _data("checkpoints", "show", "3", *where)
    assert (shown["checkpoint_id"], shown["ordinal"], shown["offsets"]) == (3, 2, {"rows": {"row": 8}})
    (operator,) = shown["operators"]
    assert (operator["uid"], operator["states"], operator["files"]) == ("sum", ["total"], 2)
