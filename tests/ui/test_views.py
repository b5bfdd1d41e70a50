"""The health of a job in a word, and texts for programs that show tables."""

from __future__ import annotations

import csv
import io

import pytest

from stateflow.checkpoint.log.documents import ActionRecord
from stateflow.operations.checkpoints import ActionEntry
from stateflow.operations.health import HealthFacts, HealthWord, health_of
from stateflow.ui.journal import JournalEntry, to_csv
from stateflow.ui.requests import comparable_time
from stateflow.ui.snapshots import is_of_person

W = HealthWord


@pytest.mark.parametrize(
    ("facts", "word", "unknown"),
    [
        # What a job root tells.
        (HealthFacts(), W.IDLE, {W.WAITS_FOR_APPROVAL, W.LATE, W.CAUGHT_UP}),
        (HealthFacts(stopped=True), W.STOPPED, {W.WAITS_FOR_APPROVAL, W.LATE}),
        (HealthFacts(run_open=True), W.STARTING, {W.WAITS_FOR_APPROVAL}),
        (HealthFacts(run_open=True, committed=True), W.RUNNING, {W.WAITS_FOR_APPROVAL, W.LATE}),
        (HealthFacts(run_open=True, failed_before=True), W.RETRYING, {W.WAITS_FOR_APPROVAL}),
        (HealthFacts(run_open=True, failed_before=True, committed=True), W.RUNNING, {W.WAITS_FOR_APPROVAL, W.LATE}),
        (HealthFacts(run_open=True, failed=True), W.FAILING, {W.WAITS_FOR_APPROVAL}),
        # A start that failed before its claim, after a run that ended.
        (HealthFacts(failed=True), W.FAILING, {W.WAITS_FOR_APPROVAL}),
        (HealthFacts(failed=True, stopped=True), W.FAILING, {W.WAITS_FOR_APPROVAL}),
        (HealthFacts(restoring=True, run_open=True), W.RESTORING, {W.WAITS_FOR_APPROVAL}),
        (HealthFacts(restoring=True, failed=True), W.RESTORING, {W.WAITS_FOR_APPROVAL}),
        # What others may know as well.
        (HealthFacts(awaits_approval=True, failed=True), W.WAITS_FOR_APPROVAL, set()),
        (HealthFacts(late=True, run_open=True, committed=True, awaits_approval=False), W.LATE, set()),
        (HealthFacts(late=True, failed=True, awaits_approval=False), W.FAILING, set()),
        (HealthFacts(late=False, awaits_approval=False, input_waits=False), W.CAUGHT_UP, set()),
        (HealthFacts(late=False, awaits_approval=False, input_waits=True), W.IDLE, set()),
        (HealthFacts(late=False, awaits_approval=False, input_waits=False, stopped=True), W.STOPPED, set()),
    ],
)
def test_the_health_of_a_job_in_a_word(facts: HealthFacts, word: HealthWord, unknown: set[HealthWord]) -> None:
    found = health_of(facts)
    assert (found.word, set(found.unknown)) == (word, unknown)


@pytest.mark.parametrize(
    ("by", "requested_by", "wanted"),
    [
        ("airflow-user:uma", "", True),
        ("os-user:root@host", "", True),
        ("claim:root@host:oscar", "", True),
        ("someone", "", True),
        ("process:host:1", "", False),
        ("airflow-dag:hourly", "", False),
        ("process:host:1", "airflow-user:uma", True),
        ("", "", False),
    ],
)
def test_a_person_is_told_from_a_run_and_a_schedule(by: str, requested_by: str, wanted: bool) -> None:
    record = ActionRecord(seq=1, kind="savepoint", ended_at="", by=by, requested_by=requested_by)
    assert is_of_person(record) is wanted


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "plain", "a,b", 'a"b', "a\nb"])
def test_a_text_in_a_table_is_never_a_formula_and_stays_in_its_cell(text: str) -> None:
    record = ActionRecord(seq=1, kind="stop", ended_at="2026-01-01T00:00:00+00:00", by=f"airflow-user:{text}",
                          reason=text, note=text, size_bytes=-1)  # fmt: skip
    entry = JournalEntry(text, text, ActionEntry("stop", 1, 0, None, None, None, record))
    (row,) = csv.DictReader(io.StringIO(to_csv([entry]), newline=""))
    for name in ("id", "job", "by", "reason", "note"):
        assert row[name].removeprefix("'") == text and not row[name].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert (row["ended_at"], row["size_bytes"], row["integrity"]) == ("2026-01-01T00:00:00.000Z", "-1", "")


def test_times_compare_as_texts() -> None:
    stored = ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.001+00:00", "2026-01-01T00:00:00.001999", "2026-01-01"]
    assert sorted(map(comparable_time, stored)) == [
        comparable_time(each) for each in (stored[0], stored[3], *stored[1:3])
    ]
    assert comparable_time("now") == ""
