"""A sink whose uid was changed on the same table: refused before it writes; a plan shows it where it has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from stateflow.checkpoint.proposal import SinkLeft, cautions
from stateflow.cli import main
from stateflow.errors import ConfigError
from stateflow.recovery import JobCode, plan_restore
from stateflow.runtime import stores
from stateflow.runtime.proposing import RestoreOptions
from tests.errors.kit import BUILD, Bench, contents

RENAMED = BUILD.replace('uid="totals"', 'uid="sums"')


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    stores.close_all()


def _check(bench: Bench) -> tuple[int, list[str]]:
    sets = [part for name, value in bench.settings.items() for part in ("--set", f"{name}={value}")]
    words = ["check", str(bench.job), "--against", bench.root, *sets, "--json"]
    shown = CliRunner().invoke(main, words)
    return shown.exit_code, [f"{p['message']}: {p['hint']}" for p in json.loads(shown.output)["problems"]]


def test_a_changed_uid_on_the_same_table_is_refused_and_changes_nothing(bench: Bench) -> None:
    bench.run()
    bench.write(RENAMED)
    before = contents(Path(bench.root))
    code, (problem,) = _check(bench)
    assert code == 20
    for fact in ("totals", "sums", str(bench.folder)):
        assert fact in problem
    with pytest.raises(ConfigError):
        bench.run()
    assert contents(Path(bench.root)) == before


def test_a_job_whose_states_fit_and_that_is_refused_is_not_called_incompatible(bench: Bench) -> None:
    bench.run()
    bench.write(RENAMED)
    sets = [part for name, value in bench.settings.items() for part in ("--set", f"{name}={value}")]
    shown = CliRunner().invoke(main, ["check", str(bench.job), "--against", bench.root, *sets])
    assert shown.output.splitlines()[0].endswith(": refused")


def test_a_new_sink_with_a_table_of_its_own_and_a_sink_that_is_gone_are_no_changed_uid(bench: Bench) -> None:
    bench.run()
    bench.write(RENAMED.replace("sink()", 'FolderSink(HERE / "other")'))
    assert _check(bench) == (0, [])
    bench.run()
    # Both have published now: either may go.
    bench.write(BUILD)
    assert _check(bench) == (0, [])


def test_a_plan_says_what_a_shared_table_goes_back_to(bench: Bench) -> None:
    bench.run()
    plan = plan_restore(bench.root, JobCode(bench.job, (dict(bench.settings),)), "latest", RestoreOptions())
    (sink,) = plan.sinks
    own = SinkLeft(uid="sums", table_id="another", checkpoint_id=9)
    shared = replace(own, table_id=sink.table_id)
    (alone,), (together,) = (
        [c for c in cautions(replace(plan, left=[left])) if c.about == "table of sums"]
        for left in (own, shared)
    )
    assert "keeps what came since" in alone.says
    assert "totals" in together.says and "keeps what came since" not in together.says
