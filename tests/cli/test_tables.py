"""``stateflow tables``: screens, and tables that can still be restored to each kept checkpoint and savepoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from syrupy.assertion import SnapshotAssertion

from tests.support.cli_fixture import CliFixture, invoke
from tests.support.screens import normalized

_BUILD = """
from stateflow.connectors import DeltaSink

def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(DeltaSink(HERE.parent / "newest", mode="upsert", keys="key"), uid="newest")
    totals.sink_to(DeltaSink(HERE.parent / "all", partition_by="key"), uid="all")
"""


@pytest.fixture
def job(cli: CliFixture) -> CliFixture:
    """A job with an upserted and an appended table, and four checkpoints, of which the newest three are retained."""
    cli.write(_BUILD)
    cli.run()
    return cli


def _words(job: CliFixture, *words: str) -> list[str]:
    return [*words, str(job.job), "--job-root", job.root, *job.command()[4:]]


def _shown(job: CliFixture, *words: str) -> str:
    first, second, *options = words
    ended = invoke(*_words(job, first, second), *options)
    assert ended.exit_code == 0, ended.output
    return ended.output


def _json(job: CliFixture, *words: str) -> Any:
    return json.loads(_shown(job, *words, "--json"))


def _totals(table: Path) -> dict[str, int]:
    rows = [
        row for uri in DeltaTable(str(table)).file_uris() for row in pq.read_table(uri, partitioning=None).to_pylist()
    ]
    return {row["key"]: row["total"] for row in rows}


def test_the_screens_match_the_golden_files(job: CliFixture, golden: SnapshotAssertion) -> None:
    assert invoke("savepoint", "create", "--job-root", job.root, "--name", "before", "--from-head").exit_code == 0
    steps = [
        ("tables", "optimize", "--dry-run"),
        ("tables", "optimize", "--table", "all"),
        ("tables", "vacuum", "--older-than", "0s", "--dry-run"),
        ("tables", "vacuum"),
    ]
    shown = "".join(f"$ {' '.join(words)}\n{_shown(job, *words)}" for words in steps)
    assert normalized(shown, folder=job.folder) == golden


def test_a_vacuum_keeps_what_a_restore_of_each_kept_checkpoint_needs(job: CliFixture) -> None:
    kept = sorted(json.loads(invoke("status", "--job-root", job.root, "--json").output)["retained_checkpoint_ids"])
    newest = job.folder / "newest"
    before = _totals(newest)
    files = len(list(newest.glob("*.parquet")))
    _shown(job, "tables", "optimize")
    [report] = _json(job, "tables", "vacuum", "--table", "newest", "--older-than", "0s")
    assert report["deleted_files"] == files - len(list(newest.glob("*.parquet")))
    holders = [holder for held in report["held"] for holder in held["holders"]]
    assert [f"checkpoint {checkpoint}" for checkpoint in kept[:-1]] == holders
    plan = str(job.folder / "plan.json")
    for words in (("--plan", str(kept[0]), "--out", plan), ("--execute", plan, "--by", "anna", "--reason", "wrong")):
        ended = invoke(*_words(job, "restore"), *words)
        assert ended.exit_code == 0, ended.output
    assert _totals(newest) != before
    job.run()
    assert _totals(newest) == before


def test_a_sink_without_a_delta_table_and_a_wrong_duration_are_refused(job: CliFixture) -> None:
    for words in (("optimize", "--table", "none"), ("vacuum", "--table", "none"), ("vacuum", "--older-than", "soon")):
        ended = invoke(*_words(job, "tables", words[0]), *words[1:])
        assert ended.exit_code == 2 and "error [config]" in ended.output
