"""``stateflow replay``: what a batch did is shown again, nothing else changes, and what prevents it is reported."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.errors import ConfigError, IncompatibleState, InputLost, StateflowError
from stateflow.replay.run import ReplayRequest, replay
from tests.support import root_files
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents, invoke
from tests.support.errors import raises
from tests.support.screens import normalized

FIRST, SECOND, THIRD = 2, 3, 4
"""The checkpoints of the job's three batches."""


@pytest.fixture
def job(cli: CliFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliFixture:
    """A job with three checkpoints of four rows each."""
    cli.run()
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return cli


def _request(job: CliFixture, batch: int) -> ReplayRequest:
    return ReplayRequest(job.job, job.root, batch, (dict(job.settings),))


def _shown(job: CliFixture, *words: str) -> str:
    ended = invoke("replay", str(job.job), "--job-root", job.root, *job.command()[4:], *words)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def _json(job: CliFixture, *words: str) -> Any:
    return json.loads(_shown(job, *words, "--json"))


def test_a_replay_shows_positions_rows_and_changes_of_state(job: CliFixture) -> None:
    found = _json(job, "--batch", str(SECOND))
    assert (found["batch"], found["base"], found["same"], found["deviation"]) == (SECOND, FIRST, True, "")
    (batch,) = found["batches"]
    assert (batch["rows_in"], batch["start"], batch["end"]) == (4, {"rows": '{"row": 4}'}, {"rows": '{"row": 8}'})
    (emitted,) = found["emitted"]
    # Rows 4 to 7 are b, c, a, b; before them, a had 0 and 3, b had 1, c had 2.
    assert emitted["count"] == 4
    assert sorted((row["key"], row["total"]) for row in emitted["rows"]) == [("a", 9), ("b", 5), ("b", 12), ("c", 7)]
    changes = {change["key"][0]: (change["before"], change["after"]) for change in found["state"]["changes"]}
    assert changes == {"a": (3, 9), "b": (1, 12), "c": (2, 7)}


def test_the_first_batch_starts_without_state(job: CliFixture) -> None:
    found = _json(job, "--batch", str(FIRST))
    assert (found["base"], found["same"]) == (0, True)
    assert {change["kind"] for change in found["state"]["changes"]} == {"added"}


def test_rows_beyond_the_limit_are_counted(job: CliFixture) -> None:
    found = _json(job, "--batch", str(SECOND), "--rows", "1")
    assert [(e["count"], len(e["rows"])) for e in found["emitted"]] == [(4, 1)]
    assert sum(each["count"] for each in found["state"]["counts"]) == 3
    assert len(found["state"]["changes"]) == 1


def test_the_screen_matches_the_golden_file(job: CliFixture, golden: SnapshotAssertion) -> None:
    assert normalized(_shown(job, "--batch", str(SECOND)), folder=job.folder) == golden


def test_a_replay_changes_nothing_but_the_log_and_leaves_no_pin_and_no_scratch_file(
    job: CliFixture, tmp_path: Path
) -> None:
    def outside_of_the_log() -> dict[str, str]:
        return {name: text for name, text in contents(tmp_path).items() if not name.startswith("root/log/")}

    before, head = outside_of_the_log(), root_files.head(Path(job.root))
    _shown(job, "--batch", str(THIRD))
    assert outside_of_the_log() == before
    newest = root_files.head(Path(job.root))
    assert (newest.doc["generation"], newest.checkpoint, newest.doc["pinned"]) == (head.doc["generation"], THIRD, [])


def test_code_that_has_changed_leads_to_a_difference_that_is_shown(job: CliFixture) -> None:
    job.write(BUILD, JOB.replace("+ row.number", "+ 2 * row.number"))
    found = _json(job, "--batch", str(SECOND))
    assert found["same"] is False
    assert sorted(change["key"][0] for change in found["difference"]["changes"]) == ["a", "b", "c"]


def test_a_failing_row_fails_the_replay_as_a_run_would_fail(job: CliFixture) -> None:
    job.write(BUILD, JOB.replace("yield Total", "assert row.number != 6\n        yield Total"))
    with pytest.raises(StateflowError) as caught:
        replay(_request(job, SECOND))
    assert caught.value.code == "user-code"
    assert replay(_request(job, THIRD)).is_same


@pytest.mark.parametrize("batch", [1, 5, 99])
def test_an_unknown_batch_is_refused_with_those_that_can_run_again(job: CliFixture, batch: int) -> None:
    with raises(ConfigError, batch=batch, kept=[FIRST, SECOND, THIRD]):
        replay(_request(job, batch))


def test_a_batch_whose_start_is_no_longer_retained_is_refused(cli: CliFixture) -> None:
    cli.settings["checkpoints.retained"] = "2"
    cli.run()
    with raises(ConfigError, batch=SECOND, before=FIRST, kept=[THIRD]):
        replay(_request(cli, SECOND))


def test_a_source_without_the_rows_is_reported(job: CliFixture) -> None:
    job.write(BUILD, JOB.replace("range(12)", "range(6)"))
    with raises(InputLost, source="rows"):
        replay(_request(job, SECOND))


def test_a_job_without_the_operator_or_with_another_type_is_refused(job: CliFixture) -> None:
    job.write(BUILD.replace('uid="sum"', 'uid="other"'))
    with raises(ConfigError, uids=["sum"]):
        replay(_request(job, SECOND))
    job.write(BUILD, JOB.replace('"total", int', '"total", str'))
    with raises(IncompatibleState):
        replay(_request(job, SECOND))


def test_batches_between_two_checkpoints_run_one_after_another(cli: CliFixture) -> None:
    cli.settings["checkpoints.interval_batches"] = "2"
    cli.run()
    report = replay(_request(cli, FIRST))
    assert [batch.rows_in for batch in report.batches] == [4, 4]
    assert report.is_same and not report.deviation
