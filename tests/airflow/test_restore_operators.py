"""Going back as two tasks with a person between them; forks."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from airflow.sdk import DAG
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from structlog.testing import capture_logs
from syrupy.assertion import SnapshotAssertion

from stateflow import failpoints
from stateflow.checkpoint.restore.plan_document import RestorePlan, expected_plan_of
from stateflow.operations.job_savepoints import list_all
from stateflow.requesters import airflow_user
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.base import code_block, escape, quote
from stateflow_airflow.operators.recovery import (
    StateflowForkOperator,
    StateflowRestoreOperator,
    StateflowRestorePlanOperator,
    StateflowVerifyOperator,
)
from stateflow_airflow.operators.restore_plan import as_markdown, parse_plan
from tests.airflow.fakes import FakeDag, FakeRun, fails
from tests.airflow.jobs import ACCOUNTS, job_arguments, new_run, plan_restore
from tests.support import folder_tables, root_files
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.screens import normalized

ADA = {"id": "ada", "name": "ada"}
APPROVED = {"chosen_options": ["Approve"], "params_input": {"note": "seen"}, "responded_by_user": ADA}


@pytest.fixture
def early(idle_job: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 50th event that continued to the 120th."""
    assert idle_job.command("savepoint", "create", "--name", "early").code == 0
    idle_job.deliver(120)
    idle_job.finish()
    return idle_job


def approved(plan: Any) -> dict[str, Any]:
    return {**APPROVED, "plan_digest": parse_plan(plan).digest}


def restore(job: AccountsJob, run: FakeRun | None = None, **given: Any) -> dict[str, Any]:
    """Carries out a plan, which is approved unless the test gives another answer."""
    if "approval" not in given:
        given["approval"] = approved(given["plan"])
    operator = StateflowRestoreOperator(task_id="restore", **job_arguments(job), **given)
    return operator.execute((run or restoring()).next_try())


def restoring(date: str = "2026-01-01") -> FakeRun:
    return new_run(date, task_id="restore")


def everything(job: AccountsJob) -> dict[str, str]:
    return root_files.digests(job.root, job.folder / "tables")


def rows(job: AccountsJob) -> Any:
    return multiset(folder_tables.rows(job.table("movements")))


def restores(job: AccountsJob) -> list[dict[str, Any]]:
    return [record for record in root_files.history(job.root) if record.get("kind") == "restore"]


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_a_document_and_a_table_and_changes_nothing(early: AccountsJob, golden: SnapshotAssertion) -> None:
    before = everything(early)
    planned = plan_restore(early, "early")
    assert everything(early) == before
    document, (savepoint,) = planned["plan"], list_all(str(early.root))
    assert (document["target"], document["savepoint_path"]) == ("early", savepoint.path)
    (movements, _), (events,) = document["sinks"], document["sources"]
    assert (movements["uid"], movements["current_version"], movements["target_version"]) == ("movements", 12, 5)
    assert (movements["rows_removed"], movements["table"]) == (70, str(early.table("movements")))
    assert (events["current_offset"], events["target_offset"]) == ({"row": 120}, {"row": 50}) and events["available"]
    assert document["rows_again"] == 70
    assert document["job_file"] == ACCOUNTS and document["job_file_changed_at"]
    assert not document["run_open"] and planned["dag"] is None
    states = {s["uid"]: s for s in document["states"]}
    assert states["balances"]["action"] == "matched" and 0 < states["balances"]["current_bytes"]
    # The savepoint's own checkpoint is older than all checkpoints that are dropped.
    assert document["dropped_checkpoint_ids"] and document["saved"] == []
    assert normalized(planned["markdown"], folder=early.folder, job_file=ACCOUNTS) == golden


def test_a_plan_has_whether_the_dag_is_paused_and_runs(early: AccountsJob, golden: SnapshotAssertion) -> None:
    arguments = {"task_id": "plan", "target": "early", "run_dag": "job_of_accounts", **job_arguments(early)}
    for name, paused, active in (("paused", True, 0), ("active", False, 1)):
        context: Any = {**FakeRun().next_try(), "ti": FakeDag(paused, active)}
        planned: dict[str, Any] = StateflowRestorePlanOperator(**arguments).execute(context)
        assert planned["dag"] == {"paused": paused, "active_runs": active}
        notes = [line for line in planned["markdown"].splitlines() if "job_of_accounts" in line]
        assert normalized("\n".join(notes)) == golden(name=name)


WRONG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"sinks": "some"}, {"sinks": "some"}),
    ({"from_other_job": "perhaps"}, {"from_other_job": "perhaps"}),
    ({"drop": "a, b"}, {"uids": ["a", "b"]}),
    ({"target": "nothing"}, {"target": "nothing"}),
    ({"maps": "balances"}, {"map": "balances"}),
    ({"sources": "events"}, {"source": "events"}),
    ({"claim_mode": "both"}, {"claim_mode": "both"}),
]


def test_a_wrong_restore_request_is_refused_and_changes_nothing(early: AccountsJob) -> None:
    before = everything(early)
    for wish, facts in WRONG:
        with fails(PermanentFailure, "config", **facts) as caught:
            plan_restore(early, **{"target": "early", **wish})
        if "target" in wish:
            # The hint has the targets that there are.
            assert "early" in caught.value.hint and str(root_files.head(early.root).checkpoint) in caught.value.hint
    assert everything(early) == before


@pytest.mark.slow(reason="runs a DAG of Airflow in its database")
def test_the_tables_the_names_and_the_positions_of_a_plan_are_those_of_the_task(early: AccountsJob) -> None:
    before = early.settings
    early.settings = {**before, "job__parts": "movements"}
    with fails(PermanentFailure, "config", sinks=["totals"]):
        plan_restore(early, "early", drop="turnovers")
    planned = plan_restore(early, "early", drop="turnovers", keep_tables="totals")
    assert [left["uid"] for left in planned["plan"]["left"]] == ["totals"]
    early.settings = {**before, "job__version": 2}
    maps = "balances=turnovers, turnovers=shops, balances.account=turnovers.figures, events=orders"
    planned = plan_restore(early, "latest", maps=maps, sources='orders={"row": 100}\n')
    assert {"row": 100} in [source["target_offset"] for source in planned["plan"]["sources"]]


def test_the_markdown_of_a_plan_matches_the_golden_file(golden: SnapshotAssertion) -> None:
    plan = msgspec.json.decode((Path(__file__).parent / "data" / "plan.json").read_bytes(), type=RestorePlan)
    assert as_markdown(plan) == golden


def test_the_question_says_which_parts_are_not_those_of_the_plan_that_was_shown() -> None:
    plan = msgspec.json.decode((Path(__file__).parent / "data" / "plan.json").read_bytes(), type=RestorePlan)
    expected = expected_plan_of(plan)
    assert as_markdown(plan, (), expected) == as_markdown(plan)
    later = msgspec.structs.replace(plan, checkpoint_id=77, states=[])
    shown = as_markdown(later, (), expected)
    differing = [line for line in shown.removesuffix(as_markdown(later)).splitlines() if line.startswith("- ")]
    assert [line.partition(":")[0] for line in differing] == ["- **newest checkpoint**", "- **state**"]
    assert "checkpoint 77" in differing[0]
    assert shown.endswith(as_markdown(later))


def test_the_question_has_the_difference_of_the_job_file_as_code() -> None:
    plan = msgspec.json.decode((Path(__file__).parent / "data" / "plan.json").read_bytes(), type=RestorePlan)
    difference = "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+```` <script>alert(1)</script> \u202e\n+# **bold**"
    rendered = _rendered(as_markdown(msgspec.structs.replace(plan, job_file_difference=difference)))
    _, _, code = rendered.partition("<pre>")
    assert _plain(code).strip().splitlines() == difference.replace("\u202e", " ").splitlines()
    assert "<script" not in rendered and "<strong>bold" not in rendered


def test_a_plan_with_an_expected_plan_of_a_form_is_compared_with_it(early: AccountsJob) -> None:
    expected = expected_plan_of(parse_plan(plan_restore(early, "early")))
    assert plan_restore(early, "early", expected_plan=expected)["markdown"] == plan_restore(early, "early")["markdown"]
    other = plan_restore(early, "latest", expected_plan=expected)["markdown"]
    assert "**target**" in other and "**newest checkpoint**" not in other
    with fails(PermanentFailure, "config", expected_plan="anything"):
        plan_restore(early, "early", expected_plan="anything")


# -- restores ---------------------------------------------------------------------------------------------------------


def test_a_restore_returns_to_its_target_and_the_log_has_who_approved_and_why(early: AccountsJob) -> None:
    run = restoring()
    run.user = "bob"
    done = restore(early, run, plan=plan_restore(early, "early"), reason="wrong version")
    assert done["offsets"] == {"events": {"row": 50}} and set(done["tables"]) == {"movements", "totals"}
    (record,) = restores(early)
    assert (record["by"], record["requested_by"]) == (airflow_user("ada"), airflow_user("bob"))
    assert (record["reason"], record["note"]) == ("wrong version", "seen")
    notes = [e.doc["note"] for e in root_files.entries(early.root)]
    assert any("ada" in note and record["reason"] in note for note in notes)
    assert rows(early) == multiset(expected(early.delivered[:50]).movements)
    verify = StateflowVerifyOperator(task_id="verify", job_root=str(early.root))
    read: dict[str, Any] = verify.execute(run.next_try())
    assert (read["offsets"], read["files"] > 0) == ({"events": {"row": 50}}, True)
    early.replace_events(since=50)
    early.finish()
    early.check_results()
    early.check_clean()


def test_neither_a_retry_nor_a_clear_repeats_a_restore(early: AccountsJob) -> None:
    run, planned = restoring(), plan_restore(early, "early")
    done = restore(early, run, plan=planned)
    assert not done["repeated"]
    assert restore(early, run, plan=planned) == {**done, "repeated": True}
    early.finish()
    newest, before = root_files.head(early.root), rows(early)
    run.clear()
    with capture_logs() as logged:
        again = restore(early, run, plan=planned)
    warnings = [str(line) for line in logged if line["log_level"] == "warning"]
    assert again["repeated"] and any(again["label"] in line for line in warnings), logged
    assert again["offsets"] == {"events": {"row": 120}}, (
        "the current position of the job, not the one that the plan restored"
    )
    assert (root_files.head(early.root).seq, rows(early)) == (newest.seq, before)


def test_an_outdated_plan_is_a_permanent_failure_and_changes_nothing(early: AccountsJob) -> None:
    planned = plan_restore(early, "early")
    early.settings = {**early.settings, "parallelism": 3}
    before = everything(early)
    with fails(PermanentFailure, "plan-outdated") as caught:
        restore(early, plan=planned)
    (differs,) = cast("list[str]", caught.value.facts["differs"])
    assert "parallelism" in differs and everything(early) == before


NO_APPROVALS: list[Any] = [
    {"chosen_options": ["Reject"], "params_input": {}, "responded_by_user": ADA},
    {**APPROVED, "responded_by_user": None},
    {**APPROVED, "chosen_options": []},
    {},
    "",
]


def test_a_restore_without_an_approval_is_refused_and_changes_nothing(early: AccountsJob) -> None:
    planned, before = plan_restore(early, "early"), everything(early)
    for approval in NO_APPROVALS:
        with fails(PermanentFailure, "not-approved"):
            restore(early, plan=planned, approval=approval)
    # The task that asks was cleared, or marked as a success by hand: its XCom is None.
    with DAG("a_dag"):
        asks = StateflowVerifyOperator(task_id="approve", job_root=str(early.root))
        operator = StateflowRestoreOperator(
            task_id="restore", plan=planned, approval=asks.output, **job_arguments(early)
        )
    operator.approval = None
    with fails(PermanentFailure, "not-approved"):
        operator.execute(restoring().next_try())
    assert everything(early) == before


def test_an_approval_counts_for_its_plan_only(early: AccountsJob) -> None:
    planned, other = plan_restore(early, "early"), plan_restore(early, "early", sinks="keep")
    before, digest = everything(early), parse_plan(planned).digest
    for approval in ({**APPROVED}, {**APPROVED, "plan_digest": ""}, approved(other)):
        with fails(PermanentFailure, "not-approved", plan=digest):
            restore(early, plan=planned, approval=approval)
    assert everything(early) == before


@pytest.mark.slow(reason="runs a DAG of Airflow in its database")
def test_the_requester_of_a_restore_cannot_approve_the_plan_unless_permitted(early: AccountsJob) -> None:
    planned, before = plan_restore(early, "early"), everything(early)
    for user in ({"id": "7", "name": "ada"}, {"id": "ada", "name": "Ada L."}):
        run = restoring()
        run.user = "ada"
        with fails(PermanentFailure, "not-approved", by="ada"):
            restore(early, run, plan=planned, approval={**approved(planned), "responded_by_user": user})
    assert everything(early) == before
    restore(early, run, plan=planned, self_approval=True)
    assert restores(early)[0]["by"] == airflow_user("ada")


def test_a_savepoint_of_another_job_is_not_restored_without_an_approval(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other", settings=early.settings, variables=early.variables)
    other.run_to(10)
    (path,) = map(str, (early.root / "savepoints").iterdir())
    asked = {"from_other_job": True, "locations": [str(early.root)]}
    planned, before = plan_restore(other, path, **asked), everything(other)
    with fails(PermanentFailure, "not-approved"):
        restore(other, plan=planned, approval=None, locations=[str(early.root)])
    with fails(PermanentFailure, "config"):
        restore(other, plan=planned)
    assert everything(other) == before
    restore(other, plan=planned, locations=[str(early.root)])
    assert root_files.head(other.root).position == 50


@pytest.mark.slow(reason="renders and runs an operator for each value")
def test_a_restore_refuses_a_value_that_is_no_plan(early: AccountsJob) -> None:
    for bad in (None, "", "{}", {"plan": 1}, "no json"):
        with fails(PermanentFailure, "config", plan=repr(bad)):
            restore(early, plan=bad, approval=None)


def _die_in_restore(job: AccountsJob, run: FakeRun, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    def die(name: str) -> None:
        if name == "rewind.table":
            raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(failpoints, "hit", die)
        restore(job, run, plan=planned)


@pytest.mark.slow(reason="runs an operator in each try of a task")
def test_the_try_that_completes_a_restore_records_the_restore_in_the_history_once(
    early: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, run = plan_restore(early, "early"), restoring()
    _die_in_restore(early, run, planned, monkeypatch)
    intent = root_files.head(early.root).doc["rewind"]["seq"]
    for _ in range(2):
        restore(early, run, plan=planned)
    (record,) = restores(early)
    base = planned["plan"]["target_checkpoint_id"]
    assert (record["seq"], record["by"], record["facts"]["restored_checkpoint_id"]) == (
        intent,
        airflow_user("ada"),
        base,
    )


# -- forks ------------------------------------------------------------------------------------------------------------


def test_a_fork_is_made_once(early: AccountsJob, tmp_path: Path) -> None:
    run = new_run("2026-01-01", task_id="fork")
    forked = AccountsJob(early.folder, early.settings)
    forked.root_folder = tmp_path / "fork"

    def fork() -> dict[str, Any]:
        given = {"job_root": str(early.root), "target": "early", "into": str(forked.root), "shadow": "True"}
        allowed = [str(tmp_path)]
        return StateflowForkOperator(task_id="fork", reason="a try", locations=allowed, **given).execute(run.next_try())

    made = fork()
    assert (made["shadow"], made["job"]) == (True, "accounts") and made["size_bytes"] > 0
    assert fork() == made
    forked.settings = {**early.settings, "local_dir": tmp_path / "local"}
    forked.finish()
    shadow = multiset(folder_tables.rows(early.folder / "tables" / "movements_shadow"))
    assert shadow == multiset(expected(early.delivered).movements[50:])
    early.check_results()
    with fails(PermanentFailure, "config", root=forked.root.as_uri()):
        fork()


# -- texts of others in the Markdown that an approver reads: what an independent renderer makes of them ---------------


ATTACKS = (Path(__file__).parent / "data" / "attacks.txt").read_text().splitlines()
ATTACKS.append("\u202egnorw \x1b[2J \u200b")
ADDRESS = re.compile(r"(https?://|www(?=\.))[-.\w]+|[-.\w+]+@[-\w]+(\.[-\w]+)+", re.IGNORECASE)
"""What GitHub's Markdown makes a link of, in texts from which escapes have been removed: the expressions of
mdast-util-gfm-autolink-literal, which Airflow's pages use."""

_RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _rendered(text: str) -> str:
    return str(_RENDERER.render(text))


def _plain(rendered: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", rendered))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_text_of_others_has_no_format_in_markdown(attack: str) -> None:
    shown = _rendered(f"The reason: {escape(attack)}")
    assert re.findall(r"<\w+", shown) == ["<p"]
    assert re.findall(r"<\w+", _rendered(quote(attack))) == ["<blockquote", "<p"]
    cells = _rendered(f"| a |\n|---|\n| {escape(attack)} |")
    assert cells.count("<td") == 1 and not re.search(r"<(a|img|script|strong|em|code)\b", cells)
    assert not ADDRESS.search(_plain(shown))
    block = _rendered(f"Before.\n\n{code_block(attack)}\n\nAfter.")
    assert re.findall(r"<\w+", block) == ["<p", "<pre", "<code", "<p"]
    below = _rendered(quote(f"The reason\n{attack}"))
    assert re.findall(r"<\w+", below) == ["<blockquote", "<p", "<br"]


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=60))
def test_an_escaped_text_is_shown_unchanged(text: str) -> None:
    assert _plain(_rendered(f"x {escape(text)} x")).replace("\u200b", "").split() == ["x", *text.split(), "x"]


def test_a_quotation_keeps_its_lines_and_ends_nothing() -> None:
    shown = _rendered(quote("wrong rows\n\n---\n**Approve**: safe") + "\n\nAfter.")
    assert shown.count("<blockquote") == 1 and shown.rstrip().endswith("<p>After.</p>")
    assert "<strong" not in shown and "<hr" not in shown
    assert quote(" ") == "> \\-  "
