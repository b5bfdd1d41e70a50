"""The pages in Airflow's own API application: jobs of its DAGs, rights of its users, state of real local runs."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote
from uuid import uuid4

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunType
from flights_demo.polling import poll
from sqlalchemy.exc import OperationalError

from stateflow import operations
from stateflow.checkpoint.history import RUN_START
from stateflow.checkpoint.log.documents import ActionRecord
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError, StorageError
from stateflow.storage.paths import FORMAT
from stateflow.ui.app import ENDPOINTS
from stateflow.ui.dags import DAG_ENDPOINTS, DagRole, JobFamily
from stateflow.ui.jobs import JobList, JobState
from stateflow.ui.roots import Orchestration
from stateflow.ui.runs import RunPage, runs_of
from stateflow.ui.snapshots import Action, History, Snapshot
from stateflow.ui.timeline import TimelinePage
from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow.operators.approvals.command_approval import StateflowStopApprovalOperator
from stateflow_airflow.operators.run import StateflowRunOperator, run_id
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator
from stateflow_airflow.sensors import StateflowCheckpointSensor
from stateflow_airflow.services.pages import (
    DagCatalog,
    DagRoots,
    DagStates,
    job_of,
    questions_in,
    read_dag_states,
    read_dags,
    roots_in,
    to_index,
)
from tests.airflow import pages_airflow
from tests.airflow.conftest import REPOSITORY
from tests.airflow.pages_airflow import ONLY_DAGS, ROLES, SECRET, Api
from tests.support.json_outputs import check
from tests.ui.pages_job import FixedCatalog, Pages, PagesJob

# Airflow 3.2, with the SQLAlchemy of later ones.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

BASE, AIRFLOW, JSON = "/stateflow/api/v1", "/api/v2", "application/json"
VERSION = (uuid4(), "hash")
FAMILY = """
from stateflow_airflow.dags import StateflowJob, stateflow_dags

job = StateflowJob(name={name!r}, root={root!r})
globals().update({{dag.dag_id: dag for dag in stateflow_dags(job, "/jobs/job.py")}})
"""
TWO = """
from airflow.sdk import DAG
from stateflow_airflow.operators.approvals.command_approval import StateflowStopApprovalOperator
from stateflow_airflow.operators.run import StateflowRunOperator

with DAG("two", schedule=None) as dag:
    for name, root in {roots!r}.items():
        StateflowRunOperator(task_id=name, job="/jobs/job.py", job_root=root)
        StateflowStopApprovalOperator(task_id=f"stop_{{name}}", job_root=root, subject="Stop?")
"""
OTHER = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("other", schedule=None) as dag:
    EmptyOperator(task_id="nothing")
"""
HOSTILE = "<script>alert(1)</script> '\"& \u202e\U0001f600"
"""The last folder of a job root; Airflow allows letters, digits, dots, hyphens and underscores alone in ids of DAGs."""


def address_of(path: str, job: PagesJob, id: str, dag_id: str) -> str:
    """The address of an endpoint, with the parameters that it needs."""
    newest = job.root.head()
    given = {"id": id, "dag_id": dag_id, "checkpoint_id": newest.checkpoint_id, "generation": newest.entry.generation}
    needed = {"restore-plan": "?target=latest", "savepoint-diff": "?from=early&to=early"}
    return path.format(**given) + needed.get(path.rpartition("/")[2], "")


class Site:
    """An Airflow with the jobs of several DAGs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job, self.secret = PagesJob(folder / "open"), PagesJob(folder / SECRET)
        for job in (self.job, self.secret):
            job.grow()
            job.save("early", "before the upgrade")
            job.grow()
        hostile = folder / HOSTILE
        roots = {"known": self.job.address, "hostile": str(hostile)}
        outside = str(folder.parent / "outside")
        pages_airflow.store_dags(
            folder / "dags",
            {
                "open": FAMILY.format(name="open", root=self.job.address),
                "copy": FAMILY.format(name="copy.of-it", root=f"file://{self.job.address}/"),
                SECRET: FAMILY.format(name=SECRET, root=self.secret.address),
                f"{SECRET}_twin": FAMILY.format(name=f"{SECRET}_twin", root=self.job.address),
                "deleted": FAMILY.format(name="deleted", root=str(folder / "deleted")),
                "gone": FAMILY.format(name="gone", root=str(folder / "gone")),
                "outside": FAMILY.format(name="outside", root=outside),
                "templated": FAMILY.format(name="templated", root="/data/{{ var.value.root }}/" + HOSTILE),
                "relative": FAMILY.format(name="relative", root="jobs/flights"),
                "password": FAMILY.format(name="password", root="s3://key:hunter2@bucket/flights"),
                "two": TWO.format(roots=roots),
                "other": OTHER,
            },
        )
        self.api = Api()
        found = self.get("ada", "jobs", JobList)["jobs"]
        self.ids = {row["job_root"]: row["id"] for row in found}
        for id in self.ids.values():
            # A list shows what it knows after a quarter of a second; the state of a job waits for it.
            self.get("ada", f"jobs/{id}")

    @property
    def id(self) -> str:
        return str(self.ids[self.job.address])

    @property
    def secret_id(self) -> str:
        return str(self.ids[self.secret.address])

    def get(self, name: str, path: str, output: type | None = None) -> Any:
        answer = self.api.client(name).get(f"{BASE}/{path}")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        if output is not None:
            check(output, found)
        return found

    def addresses(self, id: str, dag_id: str) -> list[str]:
        """Returns an address of each endpoint that needs nothing but the id of a job or a DAG."""
        return [f"{BASE}/{address_of(each.path, self.job, id, dag_id)}" for each in (*ENDPOINTS, *DAG_ENDPOINTS)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("pages")
    with pages_airflow.airflow_of(folder):
        yield Site(folder)


# -- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(ROLES))
def test_every_role_reads_the_jobs_of_the_dags_that_it_may_read(site: Site, name: str) -> None:
    client = site.api.client(name)
    for address in site.addresses(site.id, "open"):
        assert client.get(address).status_code == 200, address
    for path in ("/stateflow/", "/stateflow/plugin.js", f"{BASE}/openapi.json"):
        assert client.get(path).status_code == 200, path
    secret = 200 if ROLES[name] == "admin" else 404
    for address in site.addresses(site.secret_id, f"{SECRET}_recovery"):
        if site.secret_id in address or SECRET in address:
            assert client.get(address).status_code == secret, address


@pytest.mark.matrix
def test_nobody_gets_anything_without_a_login(site: Site) -> None:
    client = site.api.client()
    everything = [*site.addresses(site.id, "open"), *site.addresses("none", "none")]
    everything += [f"{BASE}/openapi.json", f"{BASE}/none", f"{BASE}/", "/stateflow/", "/stateflow/none"]
    names = ("plugin.js", "standalone.js", "index.html", "licenses.txt", "docs", "redoc", "openapi.json", "..%2fapp.py")
    everything += [f"/stateflow/{name}" for name in names]
    everything += ["/stateflow/api%2Fv1/jobs", "/stateflow//api/v1/jobs", f"{BASE}/jobs%2F{site.id}", f"{BASE}/..%2f"]
    for path in everything:
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized"), path
        assert answer.headers["cache-control"] == "no-store"
        assert client.head(path).status_code == 401
    for method in ("post", "put", "patch", "delete", "options"):
        assert client.request(method, f"{BASE}/jobs").status_code in (401, 405)


@pytest.mark.matrix
def test_the_api_takes_the_credentials_that_airflows_own_api_takes(site: Site) -> None:
    client = site.api.client()
    for token, status in ((site.api.token("vera"), 200), ("no.valid.token", 401), ("", 401)):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        assert client.get(f"{BASE}/jobs", headers=headers).status_code == status, token
        assert (client.get("/api/v2/dags", headers=headers).status_code == 200) == (status == 200)
    client.cookies.set("_token", "no.valid.token")
    assert client.get(f"{BASE}/jobs").status_code == 401
    basic = {"authorization": "Basic dmVyYTp2ZXJh"}
    assert site.api.client().get(f"{BASE}/jobs", headers=basic).status_code == 401


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_of_another_site_changes_nothing(site: Site, kind: str) -> None:
    """A browser sends these types from any page, and might send the cookie of the session with them."""
    client, runs = site.api.client("ada"), f"{AIRFLOW}/dags/open/dagRuns"
    foreign = {"origin": "https://other.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    if kind:
        foreign["content-type"] = kind

    def number() -> int:
        return int(client.get(runs).json()["total_entries"])

    before = number()
    assert client.post(runs, content='{"logical_date": null}', headers=foreign).status_code == 422
    assert number() == before
    for address in site.addresses(site.id, "open"):
        assert client.post(address, content="{}", headers=foreign).status_code == 405, address
    # The same body as the pages send it.
    assert client.post(runs, content='{"logical_date": null}', headers={"content-type": JSON}).status_code == 200
    assert number() == before + 1


@pytest.mark.matrix
def test_no_other_site_may_send_what_the_pages_send(site: Site) -> None:
    """A browser asks first whether another site may send JSON, or any PATCH: an answer without the header refuses."""
    client = site.api.client("ada")
    asks = {"origin": "https://other.example", "access-control-request-headers": "content-type"}
    dag = f"{AIRFLOW}/dags/open"
    question = f"{dag}/dagRuns/none/taskInstances/approve/-1/hitlDetails"
    for method, path in (("POST", f"{dag}/dagRuns"), ("PATCH", dag), ("PATCH", question), ("GET", f"{BASE}/jobs")):
        answer = client.options(path, headers={**asks, "access-control-request-method": method})
        assert "access-control-allow-origin" not in answer.headers, path


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "acts", "looks_inside"),
    [(ONLY_DAGS, False, False), ("vera", False, True), ("uma", True, True), ("oscar", True, True), ("ada", True, True)],
)
def test_the_pages_know_the_rights_of_their_reader(site: Site, name: str, acts: bool, looks_inside: bool) -> None:
    family = site.get(name, f"jobs/{site.id}/family", JobFamily)
    rights = {(dag["may_trigger"], dag["may_pause"], dag["may_answer"]) for dag in family["dags"]}
    assert rights == {(acts, acts, acts)}
    run = site.get(name, f"jobs/{site.id}/runs/{site.job.root.head().entry.generation}", RunPage)
    assert run["may_read_code"] is family["may_read_state"] is looks_inside
    # Airflow's own answers to the requests that the page would send.
    client, none = site.api.client(name), "/api/v2/dags/none"
    note = {"chosen_options": ["Approve"], "params_input": {}}
    answers = [
        client.post(f"{none}/dagRuns", json={"logical_date": None}),
        client.patch(none, json={"is_paused": True}),
        client.patch(f"{none}/dagRuns/none/taskInstances/none/-1/hitlDetails", json=note),
    ]
    assert {answer.status_code for answer in answers} == {404 if acts else 403}


def test_a_user_without_a_role_sees_no_job(site: Site) -> None:
    client = site.api.client()
    client.headers["authorization"] = f"Bearer {site.api.token('nora')}"
    for address in site.addresses(site.id, "open"):
        answer = client.get(address)
        names_a_job = site.id in address or "/dags/" in address
        assert answer.status_code == (404 if names_a_job else 200), address
        assert names_a_job or not any(id in answer.text for id in site.ids.values()), address


def test_the_job_of_a_deleted_dag_is_gone_at_once(site: Site) -> None:
    root = str(site.folder / "deleted")
    id, dag_ids = site.ids[root], [f"deleted{suffix}" for suffix in ("", "_recovery", "_retention", "_savepoint")]
    addresses = [f"{BASE}/jobs/{id}", f"{BASE}/jobs/{id}/family", f"{BASE}/dags/deleted/jobs"]
    client = site.api.client("ada")
    assert [client.get(each).status_code for each in addresses] == [200] * 3
    for dag_id in dag_ids:
        # It is the job of the others, too.
        assert client.get(addresses[0]).status_code == 200
        assert client.delete(f"/api/v2/dags/{dag_id}").status_code == 204
    assert [client.get(each).status_code for each in addresses] == [404] * 3
    assert id not in {row["id"] for row in site.get("ada", "jobs")["jobs"]}
    pages_airflow.store_dags(site.folder / "dags", {"deleted": FAMILY.format(name="deleted", root=root)})


@pytest.mark.parametrize("path", ["jobs", "journal", "journal.csv", "openapi.json"])
def test_no_list_has_the_job_of_a_dag_that_may_not_be_read(site: Site, path: str) -> None:
    texts = {name: site.api.client(name).get(f"{BASE}/{path}").text for name in ("vera", "ada")}
    assert not any(each in texts["vera"] for each in (SECRET, site.secret_id))
    if path != "openapi.json":
        # The other user's answer shows that there is something to hide.
        assert site.secret_id in texts["ada"]


@pytest.mark.parametrize("path", [each.path for each in (*ENDPOINTS, *DAG_ENDPOINTS) if "{" in each.path])
def test_what_may_not_be_read_is_as_what_does_not_exist(site: Site, path: str) -> None:
    def ask(name: str, id: str, dag_id: str, tag: str = "") -> tuple[int, str, str]:
        address = address_of(path, site.secret, id, dag_id)
        answer = site.api.client(name).get(f"{BASE}/{address}", headers={"if-none-match": tag})
        text = answer.text.replace(id, "ID").replace(dag_id, "DAG")
        return answer.status_code, text, answer.headers.get("etag", "")

    status, _, tag = ask("ada", site.secret_id, SECRET)
    assert status == 200
    hidden, missing = ask("vera", site.secret_id, SECRET, tag), ask("vera", "none-1", "none", tag)
    assert hidden == missing and hidden[0] == 404


# -- jobs of DAGs -----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_dags_with_the_same_job_root_are_one_job(site: Site) -> None:
    rows = [row for row in site.get("ada", "jobs", JobList)["jobs"] if row["job"] == "job"]
    assert sorted(row["job_root"] for row in rows) == sorted([site.job.address, site.secret.address])
    suffixes = {"": "run", "_recovery": "recovery", "_retention": "retention", "_savepoint": "savepoint"}
    # With all DAGs of each role, so that the page can let its reader choose; nobody sees those of others.
    for reader, names in (("vera", ("open", "copy.of-it")), ("ada", ("open", "copy.of-it", f"{SECRET}_twin"))):
        family = site.get(reader, f"jobs/{site.id}/family", JobFamily)
        wanted = {f"{name}{suffix}": role for name in names for suffix, role in suffixes.items()}
        assert {dag["dag_id"]: dag["role"] for dag in family["dags"]} == {**wanted, "two": "run"}
        assert [dag["dag_id"] for dag in family["dags"]] == sorted(dag["dag_id"] for dag in family["dags"])


def test_a_family_has_the_dags_that_are_paused_now(site: Site) -> None:
    def paused() -> set[str]:
        return {d["dag_id"] for d in site.get("uma", f"jobs/{site.id}/family")["dags"] if d["is_paused"]}

    before = paused()
    client = site.api.client("uma")
    assert client.patch("/api/v2/dags/open", json={"is_paused": "open" not in before}).status_code == 200
    assert paused() ^ before == {"open"}


def test_the_tab_of_a_dag_has_its_jobs(site: Site) -> None:
    for dag_id in ("open", "open_recovery", "copy.of-it_savepoint"):
        (row,) = site.get("vera", f"dags/{dag_id}/jobs", JobList)["jobs"]
        assert (row["id"], row["checkpoint_id"]) == (site.id, site.job.checkpoints[-1])
    two = site.get("vera", "dags/two/jobs", JobList)
    assert {row["job_root"] for row in two["jobs"]} == {site.job.address, str(site.folder / HOSTILE)}
    assert site.get("vera", "dags/other/jobs", JobList) == {"jobs": [], "next_cursor": None, "searches": []}


@pytest.mark.parametrize(("dag_id", "fact"), [("templated", "job_root"), ("relative", "job_root"), ("password", "uri")])
def test_the_tab_of_a_dag_says_why_its_job_is_not_known(site: Site, dag_id: str, fact: str) -> None:
    found = site.get("vera", f"dags/{dag_id}/jobs", JobList)
    (search,) = found["searches"]
    assert found["jobs"] == [] and search["problem"]["code"] == "config" and fact in search["problem"]["facts"]
    assert "hunter2" not in json.dumps(found)
    roots = {row["job_root"] for row in site.get("vera", "jobs", JobList)["jobs"]}
    assert search["location"] not in roots and site.get("vera", "jobs")["searches"] == []


@pytest.mark.parametrize(("dag_id", "code"), [("gone", "unknown-job"), ("outside", "config")])
def test_a_job_root_that_cannot_be_read_is_shown_with_the_reason(site: Site, dag_id: str, code: str) -> None:
    (row,) = site.get("vera", f"dags/{dag_id}/jobs", JobList)["jobs"]
    assert (row["job"], row["health"], row["problem"]["code"]) == (None, None, code)
    state = site.get("vera", f"jobs/{row['id']}")
    assert state["problem"] == row["problem"]
    if dag_id == "outside":
        # The allowed locations are for administrators.
        assert row["problem"]["facts"] == {"job_root": str(site.folder.parent / "outside")}


def test_a_job_root_outside_of_the_locations_is_not_opened(site: Site) -> None:
    outside, link = site.folder.parent / "outside", site.folder / "link"
    job = PagesJob(outside)
    job.grow()
    link.symlink_to(job.address)
    locations = [str(site.folder)]
    ways = (job.address, link, f"{site.folder}/../outside", f"file://{site.folder}/%2e%2e/outside", f"{site.folder}2")
    for address in map(str, ways):
        with pytest.raises(ConfigError) as caught:
            job_of(address, locations).open_storage()
        assert caught.value.facts == {"job_root": address}
    for address in ("s3://bucket/jobs2", "s3://bucket2/jobs", "gs://bucket/jobs", "s3://bucket/jobs/../other"):
        with pytest.raises(ConfigError):
            job_of(address, ["s3://bucket/jobs"]).open_storage()
    assert job_of(site.job.address, locations).open_storage().size(FORMAT) is not None


def test_a_plan_opens_no_job_root_outside_of_the_locations(site: Site) -> None:
    # A DAG that all may read names a folder above this job root.
    outside = PagesJob(site.folder.parent / "outside")
    outside.grow()
    theirs = outside.save("theirs").path
    secret = operations.describe_contents(operations.find(site.secret.address, "early")).report.path
    answers = {
        (name, path): site.api.client(name).get(
            f"{BASE}/jobs/{site.id}/restore-plan", params={"target": path, "from_other_job": "true"}
        )
        for name in ("vera", "ada")
        for path in (theirs, theirs.removeprefix("file://"), secret)
    }
    allowed = answers.pop(("ada", secret))
    assert allowed.status_code == 200, allowed.text
    for answer in answers.values():
        error = answer.json()["error"]
        # The allowed locations, and job roots of others, are for administrators.
        assert (answer.status_code, error["code"], error["facts"].keys()) == (422, "config", {"location"}), answer.text


@pytest.mark.parametrize(
    "dag_id",
    ["none", "...", "%2e%2e", "open%00", "open%0d%0ax", "a" * 5000, "%3Cscript%3E", "op%C3%A9n", "open'--", "~"],
)
def test_ids_that_no_dag_has_are_not_found(site: Site, dag_id: str) -> None:
    answer = site.api.client("ada").get(f"{BASE}/dags/{dag_id}/jobs")
    assert answer.status_code == 404 and len(answer.content) < 2000
    assert answer.headers["content-type"].startswith("application/json")
    assert site.api.client("ada").get(f"{BASE}/jobs/{dag_id}/family").status_code == 404


def test_hostile_names_are_data(site: Site) -> None:
    root = str(site.folder / HOSTILE)
    row = next(row for row in site.get("vera", "jobs", JobList)["jobs"] if row["job_root"] == root)
    assert row["id"].isascii() and not set(row["id"]) & set("<>&'\"/ ")
    answer = site.api.client("vera").get(f"{BASE}/jobs/{row['id']}")
    assert answer.json()["job_root"] == root and answer.headers["content-type"] == "application/json"


def _tries(site: Site, dag_runs: Sequence[str], dag_ids: Collection[str]) -> list[int | None]:
    tasks = [
        SimpleNamespace(dag_id="flights", run_id=dag_run, task_id="all.run", map_index=index, try_number=3)
        for dag_run in dag_runs
        for index in (-1, 0)
    ]
    notes = [run_id(cast("Any", {"ti": task})) for task in tasks]
    starts = [ActionRecord(seq=n, kind=RUN_START, ended_at="", by="", reason=note) for n, note in enumerate(notes, 1)]
    history = History(actions=[Action(start, "") for start in starts])
    return [
        run.attempt.try_number if run.attempt else None
        for run in runs_of(Snapshot(site.job.root, history=history), dag_ids)
    ]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", list(DagRunType))
def test_a_run_of_each_type_of_dag_run_has_a_try(site: Site, kind: DagRunType) -> None:
    time = "2026-01-31T03:00:00+00:00"
    # The id of a DAG run that a user triggers has a suffix, too; its DAG may have been deleted.
    dag_runs = [kind.generate_run_id(suffix=suffix) for suffix in (time, f"{time}_a1b2c3d4")]
    assert _tries(site, dag_runs, ()) == [3] * 4


def test_the_run_of_a_dag_of_the_job_has_a_try_whatever_the_id_of_its_dag_run(site: Site) -> None:
    dag_runs = ["again", "after/the fix", "ünï\nline", "7", "2026-01-31"]
    assert _tries(site, dag_runs, ["flights"]) == [3] * 10
    # It may be the run of a command.
    assert _tries(site, dag_runs, ["flight", "flights_recovery"]) == [None] * 10


@pytest.mark.matrix
def test_the_history_outlives_a_clean_of_airflows_database(site: Site) -> None:
    dag_run = _trigger(site, "open")
    site.job.number += 4
    site.job.execute(site.job.prepare(site.job.build), f"open/{dag_run}/run/1")
    pages_airflow.end_run("open", DagRunState.SUCCESS, datetime.now(UTC))

    def shown() -> dict[str, Any]:
        paths = [address_of(each.path, site.job, site.id, "open") for each in ENDPOINTS if "{" in each.path]
        return {path: site.get("ada", path) for path in paths if path != f"jobs/{site.id}/journal.csv"}

    # What the pages know is at most ten seconds old.
    assert poll(lambda: number_of(site.get("ada", f"jobs/{site.id}")["runs"][0]) == 1, 60)
    before = shown()
    pages_airflow.clean_database(site.folder / "dags")
    assert site.api.client("ada").get(f"{AIRFLOW}/dags/open/dagRuns/{quote(dag_run)}").status_code == 404
    assert shown() == before


def number_of(run: dict[str, Any]) -> int | None:
    return run["attempt"]["try_number"] if run["attempt"] else None


def test_each_page_of_a_run_knows_the_dags_of_its_job(tmp_path: Path) -> None:
    job, notes = PagesJob(tmp_path / "job"), ("flights/again/run/1", "flights/again/run/2", "etl/again/run/1")
    for note in notes:
        job.number += 8
        job.execute(job.prepare(job.build), note)
    catalog = FixedCatalog(job=job.storage)
    catalog.orchestration["job"] = Orchestration(("flights",))
    pages = Pages(catalog)
    known = {1: [1, 2], 2: [1, 2], None: []}
    for run in pages.get("jobs/job", JobState)["runs"]:
        page = pages.get(f"jobs/job/runs/{run['generation']}", RunPage)
        assert page["run"] == run and [number_of(each) for each in page["tries"]] == known[number_of(run)]
    assert [number_of(run) for run in pages.get("jobs/job/timeline", TimelinePage)["runs"]] == [1, 2, None]


# -- the application within Airflow -----------------------------------------------------------------------------------


def test_only_the_pages_have_the_headers_of_the_pages(site: Site) -> None:
    client = site.api.client("vera")
    names = ("content-security-policy", "x-frame-options", "cross-origin-resource-policy")
    for path in ("/", "/api/v2/dags", "/stateflow", "/plugin/stateflow"):
        assert not any(name in client.get(path).headers for name in names), path
    for path, policy in ((f"{BASE}/jobs", "default-src 'none'; frame"), ("/stateflow/plugin.js", "script-src 'self'")):
        headers = client.get(path).headers
        assert policy in headers["content-security-policy"] and all(name in headers for name in names)


def test_an_answer_that_has_not_changed_is_not_sent_again(site: Site) -> None:
    client = site.api.client("vera")
    for path in (f"{BASE}/dags/open/jobs", f"{BASE}/jobs/{site.id}/family"):
        tag = client.get(path).headers["etag"]
        assert client.get(path, headers={"if-none-match": tag}).status_code == 304
        assert client.get(f"{path}?x=1").status_code == 422


def test_a_path_prefix_is_no_part_of_the_addresses(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.api_fastapi.app.API_ROOT_PATH", "/api/v1/airflow/")
    client = Api().client("vera", "/api/v1/airflow")
    rows = client.get(f"{BASE}/jobs").json()["jobs"]
    assert site.id in {row["id"] for row in rows}
    assert client.get("/stateflow/").status_code == 200
    assert "script-src 'self'" in client.get("/stateflow/plugin.js").headers["content-security-policy"]
    assert client.get(f"{BASE}/dags/{SECRET}/jobs").status_code == 404


@pytest.mark.matrix
def test_airflow_has_the_places_of_the_pages(site: Site) -> None:
    found = site.api.client("vera").get("/api/v2/plugins").json()["plugins"]
    (ours,) = [each for each in found if each["name"] == "stateflow"]
    assert [(each["url_prefix"], each["name"]) for each in ours["fastapi_apps"]] == [("/stateflow", "stateflow")]
    places = {each["destination"]: each for each in ours["react_apps"]}
    assert {where: each["name"] for where, each in places.items()} == {
        "nav": "Stateflow",
        "dag": "State",
        "dashboard": "Stateflow jobs",
    }
    assert len({each["url_route"] for each in places.values()}) == 3 and places["nav"]["url_route"] == "stateflow"
    # The globals that the bundle sets.
    bundle = site.api.client("vera").get("/stateflow/plugin.js").text
    for each in places.values():
        assert each["name"] in bundle and each["bundle_url"].endswith("stateflow/plugin.js")


LOAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
BROKEN = sys.argv[1:]
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in BROKEN:
            raise ImportError(f"there is no {name} here")
sys.meta_path.insert(0, Missing())
from airflow import plugins_manager
plugins_manager._get_plugins()
loaded = [name for name in ("stateflow", "stateflow_airflow.services.pages") if name in sys.modules]
apps, _ = plugins_manager.get_fastapi_plugins()
_, views = plugins_manager._get_ui_plugins()
own = [each for each in views if "stateflow" in each["bundle_url"]]
print(json.dumps({
    "loaded": loaded,
    "apps": [[each["url_prefix"], type(each["app"]).__name__] for each in apps],
    "places": [each["destination"] for each in own],
    "bundles": sorted({each["bundle_url"] for each in own}),
    "deadlines": len(plugins_manager.get_deadline_references_plugins()),
}))
"""


def _load(tmp_path: Path, *broken: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-c", LOAD, *broken]
    environment = {
        "PATH": "/usr/bin:/bin",
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "PYTHONPATH": str(REPOSITORY / "plugins"),
    }
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1])), done.stdout + done.stderr


@pytest.mark.matrix
@pytest.mark.slow(reason="starts Airflow in a process of its own")
def test_each_supported_airflow_mounts_the_pages_and_imports_them_only_for_this(tmp_path: Path) -> None:
    from airflow import __version__

    bundle = "../../stateflow/plugin.js" if __version__.startswith("3.2.") else "stateflow/plugin.js"
    found, _ = _load(tmp_path)
    assert found == {
        "loaded": [],
        "apps": [["/stateflow", "Starlette"]],
        "places": ["nav", "dag", "dashboard"],
        "bundles": [bundle],
        "deadlines": 1,
    }


@pytest.mark.slow(reason="starts Airflow in a process of its own")
@pytest.mark.parametrize("missing", ["stateflow.ui.app", "airflow.api_fastapi.core_api.security"])
def test_an_airflow_that_cannot_mount_the_pages_has_all_else(tmp_path: Path, missing: str) -> None:
    found, logged = _load(tmp_path, missing)
    assert found == {"loaded": [], "apps": [], "places": [], "bundles": [], "deadlines": 1}
    assert "not mounted" in logged and missing in logged


# -- serialized DAGs --------------------------------------------------------------------------------------------------


def _serialized(dag: DAG) -> Any:
    return json.loads(json.dumps(DagSerialization.to_dict(dag)))


@pytest.mark.matrix
def test_each_dag_of_a_family_has_its_role() -> None:
    dags = stateflow_dags(StateflowJob(name="flights", root="s3://bucket/flights"), "/jobs/flights.py")
    roles = {dag.dag_id.removeprefix("flights"): roots_in(_serialized(dag)) for dag in dags}
    assert roles == {
        "": {"s3://bucket/flights": DagRole.RUN},
        "_savepoint": {"s3://bucket/flights": DagRole.SAVEPOINT},
        "_retention": {"s3://bucket/flights": DagRole.RETENTION},
        "_recovery": {"s3://bucket/flights": DagRole.RECOVERY},
    }
    asking = {dag.dag_id.removeprefix("flights"): questions_in(_serialized(dag)) for dag in dags}
    assert asking.pop("") == {}
    approve = {"s3://bucket/flights": {"approve"}}
    assert asking == {"_savepoint": approve, "_retention": approve, "_recovery": approve}


class Extended(StateflowRunOperator):
    """An operator of a user."""


class ExtendedQuestion(StateflowStopApprovalOperator):
    """A question of a user."""


@pytest.mark.matrix
def test_job_roots_are_those_of_tasks_that_work_on_a_job() -> None:
    with DAG("mixed", schedule=None) as dag:
        StateflowRunOperator.partial(task_id="jobs", job="/j.py").expand(job_root=["/a", "/b"])
        StateflowRunOperator.partial(task_id="files", job_root="/c").expand(job=["/a.py", "/b.py"])
        output: Any = StateflowRunOperator(task_id="first", job="/j.py", job_root="/d").output
        Extended(task_id="own", job="/j.py", job_root="/e")
        StateflowSavepointOperator(task_id="save", job_root="/d")
        StateflowSavepointOperator(task_id="other", job_root=output["root"])
        StateflowCheckpointSensor(task_id="wait", job_root="/others", max_age="1h")
    found = roots_in(_serialized(dag))
    unknown = [root for root in found if "{{" in root]
    assert len(unknown) == 1 and found.pop(unknown[0]) is DagRole.SAVEPOINT
    assert found == dict.fromkeys(("/a", "/b", "/c", "/d", "/e"), DagRole.RUN)


@pytest.mark.matrix
def test_questions_about_a_job_are_those_of_tasks_with_its_job_root() -> None:
    with DAG("asking", schedule=None) as dag:
        ExtendedQuestion(task_id="own", job_root="/a", subject="Stop?")
        StateflowStopApprovalOperator.partial(task_id="each", subject="Stop?").expand(job_root=["/a", "/b"])
        ApprovalOperator(task_id="lunch", subject="Pizza?")
    assert questions_in(_serialized(dag)) == {"/a": {"own", "each"}, "/b": {"each"}}


@pytest.mark.parametrize(
    "data", [None, "text", [], {}, {"dag": None}, {"dag": {"tasks": {}}}, {"dag": {"tasks": [None, 1, {"__var": []}]}}]
)
def test_a_serialized_dag_of_another_form_has_no_jobs(data: object) -> None:
    assert (roots_in(data), questions_in(data)) == ({}, {})


# -- how current it is ------------------------------------------------------------------------------------------------


def test_only_dags_that_have_changed_are_read_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []

    def count(data: object) -> dict[str, DagRole]:
        read.append(data)
        return {}

    monkeypatch.setattr("stateflow_airflow.services.pages.roots_in", count)
    known = read_dags({})
    assert len(read) == len(known) == 10 * 4 + 2
    assert read_dags(known) == known and len(read) == len(known)
    text = FAMILY.format(name="open", root=str(site.folder / "moved"))
    pages_airflow.store_dags(site.folder / "dags", {"open": text.replace("/jobs/job.py", "/jobs/new.py")})
    again = read_dags(known)
    assert len(read) - len(known) == 4 and {d for d in again if again[d] != known[d]} == {
        f"open{suffix}" for suffix in ("", "_recovery", "_retention", "_savepoint")
    }
    pages_airflow.store_dags(site.folder / "dags", {"open": FAMILY.format(name="open", root=site.job.address)})


def test_the_jobs_are_at_most_half_a_minute_old(tmp_path: Path) -> None:
    clock, roots = ManualClock(), ["/a"]

    def read(known: Mapping[str, DagRoots]) -> dict[str, DagRoots]:
        if not roots:
            raise OperationalError("SELECT secret", {}, Exception("password"))
        return {root: DagRoots(VERSION, {root: DagRole.RUN}) for root in roots}

    catalog = DagCatalog(read, clock, states=DagStates, late=frozenset)

    def current() -> list[str]:
        asyncio.run(catalog.current())
        return [job.job_root for job in catalog.jobs().values()]

    assert current() == ["/a"]
    roots.append("/b")
    clock.sleep(timedelta(seconds=29))
    assert current() == ["/a"]
    clock.sleep(timedelta(seconds=1))
    assert current() == ["/a", "/b"]
    roots.clear()
    clock.sleep(timedelta(seconds=30))
    # A database that does not answer is a reason, and no text of its driver.
    assert current() == ["/a", "/b"]
    (search,) = catalog.searches()
    assert search.problem is not None and search.problem.code == "storage" and "secret" not in repr(search)
    with pytest.raises(StorageError):
        asyncio.run(DagCatalog(read, clock, states=DagStates, late=frozenset).current())


def test_late_dags_are_read_every_half_a_minute_and_other_states_more_often() -> None:
    clock, calls = ManualClock(), Counter[str]()

    def states() -> DagStates:
        calls["states"] += 1
        return DagStates()

    def late() -> frozenset[str]:
        calls["late"] += 1
        return frozenset({"flights"})

    catalog = DagCatalog(lambda _: {"flights": DagRoots(VERSION, {"/a": DagRole.RUN})}, clock, (), states, late)
    for _ in range(6):
        asyncio.run(catalog.current())
        clock.sleep(timedelta(seconds=5))
    assert calls == {"states": 6, "late": 1}
    (id,) = catalog.jobs()
    assert catalog.orchestration_of(id).late is True
    asyncio.run(catalog.current())
    assert calls == {"states": 7, "late": 2}


class OnlyAsked(Mapping[str, datetime]):
    """Times of runs of so many DAGs that nobody may look at all of them."""

    def __init__(self, times: dict[str, datetime]) -> None:
        self._times = times

    def __getitem__(self, dag_id: str) -> datetime:
        return self._times[dag_id]

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all runs are looked at")


def test_the_next_run_is_the_earliest_one_whatever_the_texts_of_times_say() -> None:
    """It is found by the DAGs of the job: others are not looked at, however many there are."""
    east = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    west = datetime(2030, 1, 1, 4, tzinfo=UTC)
    assert east < west and east.isoformat() > west.isoformat()

    roots = {dag: DagRoots(VERSION, {"/a": DagRole.RUN}) for dag in ("east", "west", "idle")}
    starts = OnlyAsked({"east": east, "west": west, "other": datetime(2029, 1, 1, tzinfo=UTC)})
    catalog = DagCatalog(lambda _: roots, ManualClock(), (), lambda: DagStates(next_runs=starts), frozenset)
    asyncio.run(catalog.current())
    (id,) = catalog.jobs()
    assert catalog.orchestration_of(id).next_run_at == east.isoformat()


@pytest.mark.matrix
def test_a_job_waits_for_approval_while_a_task_asks_about_it(site: Site) -> None:
    def words() -> list[bool | None]:
        catalog = DagCatalog(locations=[str(site.folder)])
        asyncio.run(catalog.current())
        hostile = site.ids[str(site.folder / HOSTILE)]
        return [catalog.orchestration_of(id).awaits_approval for id in (site.id, hostile, site.secret_id, "none")]

    _trigger(site, "copy.of-it_recovery")
    assert read_dag_states().asking == frozenset()
    pages_airflow.ask("copy.of-it_recovery", "approve")
    assert read_dag_states().asking == {("copy.of-it_recovery", "approve")}
    assert words() == [True, False, False, None]
    # A task that has failed waits for nobody, although nobody has answered.
    pages_airflow.end_tasks("copy.of-it_recovery", TaskInstanceState.FAILED)
    assert words() == [False, False, False, None]
    # The same DAG works on two jobs; and a task that is not about a job may ask anything.
    _trigger(site, "two")
    pages_airflow.ask("two", "hostile")
    assert words() == [False, False, False, None]
    pages_airflow.ask("two", "stop_hostile")
    assert words() == [False, True, False, None]
    pages_airflow.end_tasks("two", TaskInstanceState.FAILED)


def _trigger(site: Site, dag_id: str) -> str:
    conf = {"target": "latest", "reason": "to see it"}
    answer = site.api.client("ada").post(f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": conf})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["dag_run_id"])


@pytest.mark.matrix
def test_a_family_has_the_questions_about_its_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str, id: str) -> list[tuple[str, str]]:
        found = site.get(name, f"jobs/{id}/family", JobFamily)["questions"]
        assert all(datetime.fromisoformat(each["asked_at"]) <= datetime.now(UTC) for each in found)
        assert {each["subject"] for each in found} <= {"Restore?"}
        return [(each["dag_id"], each["dag_run_id"]) for each in found]

    dag_ids = ("open_recovery", "copy.of-it_recovery", f"{SECRET}_twin_recovery", f"{SECRET}_recovery")
    of_open, of_copy, of_twin, of_secret = runs = [(dag_id, _trigger(site, dag_id)) for dag_id in dag_ids]
    assert asked("ada", site.id) == []
    for dag_id, _ in runs:
        pages_airflow.ask(dag_id, "approve")
    # The newest first; each reader sees those of the DAGs whose questions Airflow shows.
    assert asked("ada", site.id) == [of_twin, of_copy, of_open]
    assert asked("vera", site.id) == [of_copy, of_open]
    assert asked(ONLY_DAGS, site.id) == []
    assert asked("ada", site.secret_id) == [of_secret]
    # However many newer questions others have asked.
    monkeypatch.setattr("stateflow_airflow.services.pages._MOST_QUESTIONS", 1)
    assert asked("vera", site.id) == [of_copy]
    for dag_id in dag_ids:
        pages_airflow.end_tasks(dag_id, TaskInstanceState.FAILED)
    assert asked("ada", site.id) == []


@pytest.mark.matrix
def test_a_job_is_late_after_a_missed_deadline_until_a_later_run_succeeds(site: Site) -> None:
    dag, missed, minute = "copy.of-it", datetime.now(UTC), timedelta(minutes=1)

    def known(id: str = "") -> Orchestration:
        catalog = DagCatalog(locations=[str(site.folder)])
        asyncio.run(catalog.current())
        return catalog.orchestration_of(id or site.id)

    def run() -> None:
        answer = site.api.client("uma").post(f"/api/v2/dags/{dag}/dagRuns", json={"logical_date": None})
        assert answer.status_code == 200, answer.text

    run()
    assert known().late is False
    pages_airflow.miss_deadline(dag, missed)
    assert (known().late, known(site.secret_id).late, known("none").late) == (True, False, None)
    # It has succeeded too late, and yet it has: Airflow keeps its missed deadline.
    for state, at, late in (
        (DagRunState.FAILED, missed + minute, True),
        (DagRunState.SUCCESS, missed - minute, True),
        (DagRunState.SUCCESS, missed + minute, False),
    ):
        pages_airflow.end_run(dag, state, at)
        assert known().late is late
    run()
    pages_airflow.miss_deadline(dag, missed + 2 * minute)
    assert known().late is True
    pages_airflow.end_run(dag, DagRunState.SUCCESS, missed + 3 * minute)
    assert known().late is False


def test_the_next_run_of_a_job_is_the_first_one_of_its_dags_that_run_it_and_are_not_paused(site: Site) -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)

    def next_run() -> str:
        catalog = DagCatalog(locations=[str(site.folder)])
        asyncio.run(catalog.current())
        return catalog.orchestration_of(site.id).next_run_at

    assert next_run() == ""
    for name, hours, is_paused in (("open", 2, False), ("copy.of-it", 1, False), ("two", 0, True), ("other", 0, False)):
        pages_airflow.schedule(name, noon + timedelta(hours=hours), is_paused=is_paused)
    pages_airflow.schedule("open_savepoint", noon, is_paused=False)
    assert datetime.fromisoformat(next_run()) == noon + timedelta(hours=1)
    for name in ("open", "copy.of-it", "two", "other", "open_savepoint"):
        pages_airflow.schedule(name, None, is_paused=True)
    assert next_run() == ""


def test_ids_are_the_same_in_each_process() -> None:
    dags = {name: DagRoots(VERSION, {"s3://b/jobs/flights": DagRole.RUN}) for name in ("x", "y")}
    index = to_index(dags, lambda root: job_of(root, ()))
    # By coreutils: printf %s s3://b/jobs/flights | sha256sum
    assert {id: each.roles for id, each in index.jobs.items()} == {
        "flights-fd72b5258744efe0": {"x": DagRole.RUN, "y": DagRole.RUN}
    }


def test_questions_about_a_job_are_those_of_all_dags_that_name_its_root_in_any_way() -> None:
    dags = {
        "flights": DagRoots(VERSION, {"s3://b/jobs/flights": DagRole.RUN}),
        "audit": DagRoots(VERSION, {}, {"s3://b/jobs/flights/": {"ask"}, "s3://b/jobs/others": {"ask"}}),
    }
    (found,) = to_index(dags, lambda root: job_of(root, ())).jobs.values()
    # A DAG that only asks does not become one of the job.
    assert (set(found.questions), set(found.roles)) == ({("audit", "ask")}, {"flights"})


def test_an_error_of_the_database_is_not_a_login(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object, **given: object) -> None:
        raise OperationalError("SELECT secret", {}, Exception("password"))

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(pages_airflow.RightsPerDag, "get_authorized_dag_ids", fail)
        answer = site.api.client("vera").get(f"{BASE}/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage")
    assert "secret" not in answer.text
