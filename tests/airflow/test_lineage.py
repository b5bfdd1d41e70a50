"""The lineage of tasks, by Airflow's provider for OpenLineage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.providers.openlineage.plugins import macros
from openlineage.client.serde import Serde

from stateflow_airflow.lineage import lineage_variables
from tests.airflow.fakes import FakeRun, FakeTaskInstance
from tests.airflow.jobs import run_task, use_submit
from tests.airflow.test_continuous_tasks import connected_yarn
from tests.servers.lineage import LineageServer, facets_of, lineage_server
from tests.support.job_fixture import SLICE, AccountsJob

_TRANSPORT = "AIRFLOW__OPENLINEAGE__TRANSPORT"


@dataclass
class _TaskInstance(FakeTaskInstance):
    """With as much as the provider looks at."""

    dag_run: Any = field(
        default_factory=lambda: SimpleNamespace(logical_date=datetime(2026, 1, 1, tzinfo=UTC), conf={}, clear_number=0)
    )

    def get_template_context(self) -> dict[str, Any]:
        return {"dag_run": self.dag_run}


@pytest.fixture(autouse=True)
def _configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The provider keeps what it has read."""

    def forget() -> None:
        for read in vars(conf).values():
            getattr(read, "cache_clear", lambda: None)()

    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "https://airflow/prod")
    forget()
    yield
    forget()


@pytest.fixture
def server() -> Iterator[LineageServer]:
    with lineage_server() as server:
        yield server


def _run() -> FakeRun:
    run = FakeRun()
    run.ti = _TaskInstance()
    return run


@pytest.mark.parametrize("in_cluster", [False, True], ids=["client-mode", "cluster-mode"])
def test_the_run_of_a_driver_belongs_to_its_task_which_has_the_same_datasets(
    job: AccountsJob, server: LineageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    use_submit(tmp_path, monkeypatch)
    monkeypatch.setenv(_TRANSPORT, json.dumps({"type": "http", "url": server.address}))
    job.settings = {**job.settings, "storage__shared": "yes"}
    job.deliver(2 * SLICE)
    operator, context = run_task(job), _run().next_try()
    before = DefaultExtractor(operator).extract()
    assert before is not None and not before.outputs
    with connected_yarn(tmp_path / "yarn", monkeypatch) if in_cluster else nullcontext():
        operator.execute(context)
    start, complete = server.take()
    task = context["ti"]
    for event in (start, complete):
        parent = facets_of(event, "parent")
        named = f"{parent['job']['namespace']}/{parent['job']['name']}/{parent['run']['runId']}"
        assert named == macros.lineage_parent_id(task)
        assert (parent["job"]["name"], parent["root"]["job"]["name"]) == (f"{task.dag_id}.{task.task_id}", task.dag_id)
        assert event["job"] == event["job"] | {"namespace": "https://airflow/prod", "name": "accounts"}
    found = DefaultExtractor(operator).extract_on_complete(task)
    assert found is not None
    outputs = [Serde.to_dict(each) for each in found.outputs]
    assert [(each["namespace"], each["name"], each["facets"]) for each in outputs] == [
        (each["namespace"], each["name"], each["facets"]) for each in complete["outputs"]
    ]
    # Consumers would add the rows of both runs.
    assert not any(each["outputFacets"] for each in outputs)
    assert Serde.to_dict(found.run_facets["stateflow_checkpoint"]) == facets_of(complete, "stateflow_checkpoint")


def test_without_a_receiver_in_airflow_s_configuration_a_task_reports_nothing(
    job: AccountsJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_submit(tmp_path, monkeypatch)
    job.deliver(SLICE)
    operator, context = run_task(job), _run().next_try()
    assert lineage_variables(context["ti"]) == {}
    operator.execute(context)
    found = DefaultExtractor(operator).extract_on_complete(context["ti"])
    assert found is not None and (found.inputs, found.outputs, found.run_facets) == ([], [], {})


def test_a_provider_that_fails_does_not_fail_a_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(_TRANSPORT, "[]")
    assert lineage_variables(_run().next_try()["ti"]) == {}
    assert "will not name this task" in caplog.text
