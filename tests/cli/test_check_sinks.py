"""A sink whose uid was changed on the same table: refused before it writes; a plan shows it where it has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateflow.checkpoint.restore.plan_document import SinkLeft, cautions
from stateflow.errors import ConfigError
from stateflow.operations.job_root import JobCode
from stateflow.operations.restores import plan_restore
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.runtime.task import store_cache
from tests.support.cli_fixture import BUILD, CliFixture, contents
from tests.support.commands import invoke
from tests.support.errors import ReportedError, raises, reported_error

RENAMED = BUILD.replace('uid="totals"', 'uid="sums"')


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CliFixture]:
    found = CliFixture(tmp_path)
    yield found
    store_cache.close_all()


def _check(bench: CliFixture) -> tuple[int, list[ReportedError]]:
    sets = [part for name, value in bench.settings.items() for part in ("--set", f"{name}={value}")]
    shown = invoke("check", str(bench.job), "--against", bench.root, *sets, "--json")
    problems = json.loads(shown.output)["problems"]
    return shown.exit_code, [reported_error(f"error [{p['code']}]: {p['message']}") for p in problems]


def test_a_changed_uid_on_the_same_table_is_refused_and_changes_nothing(bench: CliFixture) -> None:
    bench.run()
    bench.write(RENAMED)
    before = contents(Path(bench.root))
    facts = {"sink": "sums", "before": "totals", "table": str(bench.folder / "table")}
    assert _check(bench) == (20, [ReportedError("config", facts)])
    with raises(ConfigError, **facts):
        bench.run()
    assert contents(Path(bench.root)) == before


def test_a_new_sink_with_a_table_of_its_own_and_a_sink_that_is_gone_are_no_changed_uid(bench: CliFixture) -> None:
    bench.run()
    bench.write(RENAMED.replace("sink()", 'FolderSink(HERE / "other")'))
    assert _check(bench) == (0, [])
    bench.run()
    # Both have published now: either may go.
    bench.write(BUILD)
    assert _check(bench) == (0, [])


def test_a_plan_shows_what_a_shared_table_goes_back_to(bench: CliFixture) -> None:
    bench.run()
    plan = plan_restore(bench.root, JobCode(bench.job, (dict(bench.settings),)), "latest", RestoreOptions())
    (sink,) = plan.sinks
    own = SinkLeft(uid="sums", table_id="another", checkpoint_id=9)
    shared = replace(own, table_id=sink.table_id)
    (alone,), (together,) = (
        [c for c in cautions(replace(plan, left=[left])) if "sums" in c.about] for left in (own, shared)
    )
    # The sink that has the table now, and decides what becomes of it.
    assert ["totals" in caution.text for caution in (alone, together)] == [False, True]
