"""A job that continues under other names after a restore, from the command line: plans, kills, new roots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.new_roots import NewRoot
from tests.support import folder_tables, root_files, stored_state
from tests.support.job_fixture import KILLED, AccountsJob, expected, multiset
from tests.support.restores import ask, everything, execute, go_back, kill_at_each_step, plan, plan_file

MAPS = (
    *("--map", "balances=turnovers", "--map", "turnovers=shops"),
    *("--map", "balances.account=turnovers.figures", "--map", "events=orders"),
)
"""From version 1 of the job to version 2; an operator gets the uid of another one."""


def _rename(job: AccountsJob) -> None:
    job.settings = {**job.settings, "job__version": 2}


def _check_results(job: AccountsJob) -> None:
    """Tables and state are those of a job that never had other names."""
    wanted = expected(job.delivered)
    assert multiset(job.rows("movements")) == multiset(wanted.movements)
    assert multiset(job.rows("totals")) == multiset(wanted.totals)
    balances = {("figures", *k[1:]) if k[0] == "account" else k: v for k, v in wanted.balances.items()}
    assert stored_state.read_state(job.root, "turnovers") == balances
    assert stored_state.read_state(job.root, "shops") == wanted.turnovers
    assert [source["uid"] for source in job.head.doc["sources"]] == ["orders"]
    job.check_clean()


@pytest.mark.slow(reason="starts a process for each kill")
def test_a_killed_restore_with_maps_is_completed_by_the_next_start(early: AccountsJob) -> None:
    _rename(early)
    before = everything(early)
    planned = plan(early, str(early.commit_at(50).seq), *MAPS)
    assert everything(early) == before
    moves = {(m["old"], m["old_state"], m["new"], m["new_state"]) for m in planned["graph"]["moves"]}
    assert {m for m in moves if m[0] == "balances"} == {
        ("balances", "account", "turnovers", "figures"),
        ("balances", "shops", "turnovers", "shops"),
    }
    assert [(s["uid"], s["old"], s["action"]) for s in planned["sources"]] == [("orders", "events", "kept")]
    early.replace_events(since=50)
    kill_at_each_step(early, planned)
    early.finish()
    _check_results(early)


def test_a_start_without_a_map_is_refused_and_changes_nothing(early: AccountsJob) -> None:
    _rename(early)
    before = everything(early)
    for refused in (early.run(), ask(early, "latest")):
        refused.check_error(2, "config")
        assert "uids=['balances']" in refused.err and "--map" in refused.err
    # Maps of a start are for a new job root.
    refused = early.command("run", early.job_file, *MAPS, with_job=True)
    refused.check_error(2, "config")
    assert "--from-savepoint" in refused.err and "stateflow restore" in refused.err
    assert everything(early) == before


@pytest.mark.slow(reason="runs jobs many times")
def test_a_savepoint_of_the_old_names_is_restored_again_after_the_change(early: AccountsJob) -> None:
    _rename(early)
    go_back(early, "latest", *MAPS)
    early.finish()
    early.settings = {**early.settings, "parallelism": 3}
    go_back(early, "early", *MAPS)
    early.replace_events(since=50)
    early.finish()
    _check_results(early)


@pytest.mark.slow(reason="runs jobs many times")
def test_a_new_root_begins_under_other_names_and_survives_a_kill(job: AccountsJob, tmp_path: Path) -> None:
    roots = NewRoot(job, tmp_path)
    _rename(roots.new)
    roots.new.deliver(120)
    before = root_files.digests(roots.savepoint)
    assert roots.run(*MAPS, failpoint="begin.imported").code == KILLED
    roots.run(*MAPS).check()
    wanted = expected(roots.new.delivered)
    assert multiset(folder_tables.rows(roots.tables / "movements")) == multiset(wanted.movements[50:])
    assert stored_state.read_state(roots.new.root, "shops") == wanted.turnovers
    assert root_files.digests(roots.savepoint) == before
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


def test_a_new_root_drops_the_position_of_a_removed_source_only_when_named(job: AccountsJob, tmp_path: Path) -> None:
    roots = NewRoot(job, tmp_path)
    _rename(roots.new)
    roots.new.deliver(60)
    refused = roots.run(*MAPS[:-2])
    refused.check_error(2, "config")
    assert "uids=['events']" in refused.err and "--drop" in refused.err and not roots.new.root.exists()
    roots.run(*MAPS[:-2], "--drop", "events").check()
    assert len(folder_tables.rows(roots.tables / "movements")) == 60


def test_an_edited_plan_is_refused(early: AccountsJob) -> None:
    _rename(early)
    planned = plan(early, "latest", *MAPS)
    before = everything(early)
    for change in _edits(planned):
        plan_file(early).write_text(json.dumps(change))
        ended = execute(early)
        assert ended.error is not None and ended.error.code in ("plan-outdated", "config"), str(ended)
    assert everything(early) == before


def _edits(planned: dict[str, Any]) -> list[dict[str, Any]]:
    """Plans that show something else than what their options lead to."""
    graph, (source,) = planned["graph"], planned["sources"]
    return [
        {**planned, "graph": {**graph, "maps": [m for m in graph["maps"] if "figures" not in m]}},
        {**planned, "graph": {**graph, "moves": []}},
        {**planned, "graph": {**graph, "sources": ["orders=earliest"]}},
        {**planned, "sources": [{**source, "then": '{"row": 1}'}]},
    ]
