"""``stateflow tables``: screens, and tables that can still be restored to each kept checkpoint and savepoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from deltalake import DeltaTable
from syrupy.assertion import SnapshotAssertion

from stateflow.connectors.table_folder import open_table_folder
from tests.support.cli_fixture import CliFixture, invoke
from tests.support.object_stores import bucket_of, serve_s3
from tests.support.screens import normalized

_BUILD = """
from stateflow.connectors import DeltaSink

def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(DeltaSink("TABLES/newest", mode="upsert", keys="key"), uid="newest")
    totals.sink_to(DeltaSink("TABLES/all", partition_by="key"), uid="all")
"""


_MORE_ROWS = '\nROWS += [Row("abc"[n % 3], n) for n in range(12, 24)]\n'


def _run_job(cli: CliFixture, tables: str, more: str = "") -> CliFixture:
    cli.write(more + _BUILD.replace("TABLES", tables))
    cli.run()
    return cli


@pytest.fixture
def job(cli: CliFixture) -> CliFixture:
    """A job with an upserted and an appended table, and four checkpoints, of which the newest three are retained."""
    return _run_job(cli, str(cli.folder))


@pytest.fixture(params=["disk", "bucket"])
def tables(cli: CliFixture, request: pytest.FixtureRequest) -> Iterator[str]:
    """The job has written six batches of four rows; yields where its tables are: on disk, and in a bucket of S3."""
    if request.param == "disk":
        yield str(_run_job(cli, str(cli.folder), _MORE_ROWS).folder)
        return
    with bucket_of(serve_s3, cli.folder / "s3") as bucket:
        _run_job(cli, f"{bucket}/tables", _MORE_ROWS)
        yield f"{bucket}/tables"


def _words(job: CliFixture, *words: str) -> list[str]:
    return [*words, str(job.job), "--job-root", job.root, *job.command()[4:]]


def _shown(job: CliFixture, *words: str) -> str:
    first, second, *options = words
    ended = invoke(*_words(job, first, second), *options)
    assert ended.exit_code == 0, ended.output
    return ended.output


def _json(job: CliFixture, *words: str) -> Any:
    return json.loads(_shown(job, *words, "--json"))


def _rows(table: str, version: int | None = None) -> list[tuple[str, int]]:
    """The rows of a version as delta-rs reads them, by key and total."""
    found = DeltaTable(table, version=version).to_pyarrow_table().to_pylist()
    return sorted((row["key"], row["total"]) for row in found)


def _stored_files(table: str) -> set[str]:
    """The data files that are there, whether a version has them or not."""
    return {file.key for file in open_table_folder(table).files("") if file.key.endswith(".parquet")}


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


def test_small_files_are_combined_and_deleted_without_a_change_of_rows(cli: CliFixture, tables: str) -> None:
    table = f"{tables}/all"
    before, written, version = _rows(table), _stored_files(table), DeltaTable(table).version()
    # Each batch has written a file for each key.
    assert (len(before), len(written)) == (24, 18)
    [planned] = _json(cli, "tables", "optimize", "--table", "all", "--dry-run")
    assert (planned["combined_files"], planned["new_files"], DeltaTable(table).version()) == (18, None, version)
    [report] = _json(cli, "tables", "optimize", "--table", "all")
    assert (report["table"], report["version"]) == (table, version + 1) == (table, DeltaTable(table).version())
    assert (report["combined_files"], report["new_files"], report["skipped_files"]) == (18, 3, 0)
    combined = _stored_files(table) - written
    assert len(combined) == len(DeltaTable(table).file_uris()) == 3 and _rows(table) == before
    # By default, files stay for seven days.
    assert _json(cli, "tables", "vacuum", "--table", "all")[0]["deleted_files"] == 0
    assert _stored_files(table) == written | combined
    [report] = _json(cli, "tables", "vacuum", "--table", "all", "--older-than", "0s")
    # A restore to one of them rewinds the table to its version; one to the newest changes nothing.
    held = [(each["version"], each["holders"], each["files"]) for each in report["held"]]
    assert held == [(4, ["checkpoint 5"], 12), (5, ["checkpoint 6"], 15)]
    kept = {uri.removeprefix(f"{table}/") for uri in DeltaTable(table, version=5).file_uris()}
    assert (report["deleted_files"], len(kept)) == (3, 15) and _stored_files(table) == kept | combined
    assert [len(_rows(table, version)) for version in (4, 5)] == [16, 20]
    assert _rows(table) == before


def test_a_vacuum_keeps_what_a_restore_of_each_kept_checkpoint_needs(cli: CliFixture, tables: str) -> None:
    kept = sorted(json.loads(invoke("status", "--job-root", cli.root, "--json").output)["retained_checkpoint_ids"])
    newest = f"{tables}/newest"
    before, files = _rows(newest), len(_stored_files(newest))
    _shown(cli, "tables", "optimize")
    [report] = _json(cli, "tables", "vacuum", "--table", "newest", "--older-than", "0s")
    assert report["deleted_files"] == files - len(_stored_files(newest)) > 0
    holders = [holder for held in report["held"] for holder in held["holders"]]
    assert [f"checkpoint {checkpoint}" for checkpoint in kept[:-1]] == holders
    plan = str(cli.folder / "plan.json")
    for words in (("--plan", str(kept[0]), "--out", plan), ("--execute", plan, "--by", "anna", "--reason", "wrong")):
        ended = invoke(*_words(cli, "restore"), *words)
        assert ended.exit_code == 0, ended.output
    assert _rows(newest) != before
    cli.run()
    assert _rows(newest) == before


def test_a_sink_without_a_delta_table_and_a_wrong_duration_are_refused(job: CliFixture) -> None:
    for words in (("optimize", "--table", "none"), ("vacuum", "--table", "none"), ("vacuum", "--older-than", "soon")):
        ended = invoke(*_words(job, "tables", words[0]), *words[1:])
        assert ended.exit_code == 2 and "error [config]" in ended.output
