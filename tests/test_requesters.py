"""Who requested an action: what a user gives is never shown as what Airflow or the operating system says."""

from __future__ import annotations

import getpass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.requesters import (
    NameSource,
    Requester,
    airflow_dag,
    airflow_user,
    by_process,
    describe_requester,
    os_account,
    os_user,
)

HOSTILE = [
    "airflow-user:ana",
    "claim:root@host:ana",
    "os-user:root@host",
    "ana (Airflow)",
    "a:b:c",
    "airflow-user:ana\nairflow-user:bob",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_name_from_the_command_line_stays_a_claim_of_its_account(name: str) -> None:
    assert Requester.parse(os_user(name)) == Requester(name, NameSource.CLAIM, os_account())
    assert describe_requester(os_user(name)) == f"{name} (claimed, {os_account()})"


@given(st.text())
def test_every_source_is_read_back(name: str) -> None:
    for store, source in (
        (airflow_user, NameSource.AIRFLOW_USER),
        (airflow_dag, NameSource.AIRFLOW_DAG),
        (by_process, NameSource.PROCESS),
    ):
        assert Requester.parse(store(name)) == Requester(name, source)


def test_the_account_does_not_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os_account()
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.setenv(variable, "mallory")
    assert getpass.getuser() == "mallory", "Python's function believes the environment"
    assert os_account() == before and "mallory" not in before


def test_a_text_without_a_source_is_a_claim() -> None:
    for name in ("ana", "ana@laptop", "vm:4711", "airflow DAG flights"):
        assert Requester.parse(name) == Requester(name)
        assert describe_requester(name) == f"{name} (claimed)"
    assert describe_requester("") == ""
