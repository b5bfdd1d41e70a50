"""The runbook in the pages of a real Airflow: from the timeline to the next run, with an approval on a phone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flights_demo.polling import poll

from tests.airflow.jobs import ACCOUNTS, install_submit
from tests.airflow.system.live_airflow import PATIENCE, Client, live_airflow
from tests.support import root_files
from tests.support.browser import Look, log_in, needs_axe, needs_chromium, open_browser, open_look
from tests.support.job_fixture import AccountsJob

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.slow(reason="starts all of Airflow and a browser"),
    pytest.mark.airflow,
    needs_chromium,
    needs_axe,
]

USERS = {"uma": "op", "oscar": "op", "vera": "viewer"}
JOBS = ("restored", "refused", "overtaken")
DAG_FILE = """
from stateflow_airflow.dags import StateflowJob, stateflow_dags

for name in {names!r}:
    stateflow_dags(
        job=StateflowJob(
            name=name,
            root=f"{folder}/{{name}}/root",
            settings={{
                "job.folder": f"{folder}/{{name}}",
                "local_dir": f"{folder}/{{name}}/local",
                "requests.interval": "20ms",
                "checkpoints.retained": 100,
            }},
            run={{"retries": 0}},
        ),
        application={application!r},
        savepoints=None,
    )
"""


@dataclass(frozen=True)
class Site:
    """An Airflow with three jobs that have run twice, and the browsers of its users."""

    folder: Path
    client: Client
    browser: Browser

    @property
    def url(self) -> str:
        return self.client.home.url

    def job(self, name: str) -> AccountsJob:
        return AccountsJob(self.folder / name)

    def id_of(self, name: str) -> str:
        from stateflow.ui.catalog import job_at

        return job_at(str(self.job(name).root)).id

    def address(self, name: str, page: str = "") -> str:
        return f"{self.url}/plugin/stateflow/jobs/{self.id_of(name)}{page}"

    @contextmanager
    def as_user(self, user: str, **options: Any) -> Iterator[Look]:
        with open_look(self.browser, **options) as look:
            log_in(look.page, self.url, user, self.client.home.password)
            yield look

    def newest_run(self, dag_id: str) -> str:
        runs = self.client.call("GET", f"dags/{dag_id}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
        return str(runs[0]["dag_run_id"])

    def deliver_and_run(self, name: str, rows: int, run_id: str) -> None:
        self.job(name).deliver(rows)
        self.client.trigger(name, run_id)
        self.client.wait_for_success(name, run_id)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("runbook")
    (folder / "dags").mkdir()
    text = DAG_FILE.format(folder=folder, names=JOBS, application=ACCOUNTS)
    (folder / "dags" / "families.py").write_text(text)
    environment = {"PATH": f"{install_submit(folder)}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with live_airflow(folder, folder / "dags", environment, users=USERS) as client, open_browser() as browser:
        client.wait_for_dags(f"{JOBS[-1]}_recovery")
        site = Site(folder, client, browser)
        for job in JOBS:
            client.unpause(job)
            for suffix in ("_savepoint", "_recovery", "_retention"):
                client.unpause(f"{job}{suffix}")
            site.deliver_and_run(job, 50, "first")
            site.deliver_and_run(job, 120, "second")
        yield site


def clicks_to_request(look: Look, site: Site, name: str, point: int, reason: str) -> int:
    """Requests a restore from the timeline on; returns how many clicks that took."""
    page, clicks = look.page, 0

    def click(role: Any, label: str) -> None:
        nonlocal clicks
        page.get_by_role(role, name=label).first.click()
        clicks += 1

    page.goto(site.address(name, "/timeline"))
    click("button", f"checkpoint {point}, retained")
    click("link", f"Restore to here: {point}")
    page.get_by_role("textbox", name="Why is this restore necessary?").fill(reason)
    page.get_by_role("button", name="Request the restore").and_(page.locator(":enabled")).wait_for()
    click("button", "Request the restore")
    click("button", "Yes, request the restore")
    page.wait_for_url("**/recovery/*")
    return clicks


def oldest_point(job: AccountsJob) -> int:
    return root_files.kept_entries(job.root)[0].seq


def test_a_restore_is_requested_approved_on_a_phone_and_followed_by_the_next_run(site: Site) -> None:
    client, job = site.client, site.job("restored")
    point, before = oldest_point(job), root_files.head(job.root)
    with site.as_user("uma") as uma, site.as_user("oscar", width=375) as oscar:
        uma.page.goto(site.address("restored"))
        uma.page.get_by_role("button", name="Pause").first.click()
        uma.page.get_by_role("button", name="Yes, pause").click()
        assert poll(lambda: client.call("GET", "dags/restored")["is_paused"], PATIENCE)

        assert clicks_to_request(uma, site, "restored", point, "the rows of today are wrong") <= 5
        run = site.newest_run("restored_recovery")
        client.wait_for_question("restored_recovery", run)
        assert uma.violations(".stateflow") == []

        # Who has asked cannot approve.
        uma.page.get_by_role("link", name="Answer the question").click()
        uma.page.get_by_text("another person has to approve it").wait_for()
        assert uma.page.get_by_role("button", name="Approve").is_disabled()
        uma.page.go_back()

        oscar.page.goto(site.address("restored", f"/approval/{run}?dag=restored_recovery"))
        oscar.page.get_by_text("the rows of today are wrong").first.wait_for()
        oscar.page.get_by_text("The plan is still valid").wait_for()
        assert oscar.overflow() <= 0 and oscar.violations(".stateflow") == []
        oscar.page.get_by_role("textbox", name="Note").fill("seen")
        oscar.page.get_by_role("button", name="Approve").click()
        oscar.page.get_by_text("Approved").first.wait_for()

        uma.page.get_by_role("heading", name="What comes next").wait_for()
        client.wait_for_end("restored_recovery", run)
        (record,) = [r for r in root_files.history(job.root) if r.get("kind") == "restore"]
        assert (record["by"], record["requested_by"], record["note"]) == (
            "airflow-user:oscar",
            "airflow-user:uma",
            "seen",
        )
        assert root_files.head(job.root).position < before.position

        job.replace_events(since=root_files.head(job.root).position)
        uma.page.get_by_role("button", name="Unpause").click()
        uma.page.get_by_role("button", name="Yes, unpause").click()
        uma.page.get_by_role("button", name="Run now").and_(uma.page.locator(":enabled")).click()
        uma.page.get_by_role("button", name="Yes, run now").click()
        uma.page.get_by_text("restored is triggered").wait_for()
        client.wait_for_success("restored", site.newest_run("restored"))
        job.check_results()

        uma.page.goto(site.address("restored", "/timeline"))
        uma.page.get_by_role("button", name="restore").first.wait_for()
        uma.page.get_by_role("link", name="Journal", exact=True).click()
        uma.page.get_by_text("the rows of today are wrong").first.wait_for()


def test_a_rejected_plan_changes_nothing(site: Site) -> None:
    client, job = site.client, site.job("refused")
    with site.as_user("uma") as uma, site.as_user("oscar") as oscar:
        clicks_to_request(uma, site, "refused", oldest_point(job), "to see it")
        run = site.newest_run("refused_recovery")
        client.wait_for_question("refused_recovery", run)
        before = root_files.head(job.root)
        oscar.page.goto(site.address("refused"))
        oscar.page.get_by_role("link", name="Answer").first.click()
        oscar.page.get_by_role("textbox", name="Note").fill("not now")
        oscar.page.get_by_role("button", name="Reject").click()
        oscar.page.get_by_text("Rejected").first.wait_for()
        uma.page.get_by_text("not now").first.wait_for()
        client.wait_for_end("refused_recovery", run)
        assert root_files.head(job.root) == before
        uma.page.get_by_text("The job was not restored by this DAG run").wait_for()


def test_a_plan_that_becomes_outdated_while_it_is_read_says_so(site: Site) -> None:
    client, job = site.client, site.job("overtaken")
    with site.as_user("uma") as uma, site.as_user("oscar") as oscar:
        clicks_to_request(uma, site, "overtaken", oldest_point(job), "wrong rows")
        run = site.newest_run("overtaken_recovery")
        client.wait_for_question("overtaken_recovery", run)
        oscar.page.goto(site.address("overtaken", f"/approval/{run}?dag=overtaken_recovery"))
        oscar.page.get_by_text("The plan is still valid").wait_for()
        site.deliver_and_run("overtaken", 150, "third")
        oscar.page.get_by_text("outdated by run").first.wait_for()
        assert oscar.page.get_by_role("button", name="Approve").is_disabled()


def test_a_viewer_reads_everything_and_acts_on_nothing(site: Site) -> None:
    with site.as_user("vera") as vera:
        vera.page.goto(site.address("refused"))
        run_now = vera.page.get_by_role("button", name="Run now").first
        run_now.wait_for()
        assert run_now.is_disabled()
        vera.page.get_by_text("You do not have the right").first.wait_for()
        assert vera.violations(".stateflow") == []


def test_the_tab_of_a_dag_the_navigation_and_the_card_lead_to_the_job(site: Site) -> None:
    with site.as_user("uma") as uma:
        page = uma.page
        page.goto(f"{site.url}/dags/refused_recovery/plugin/stateflow-state")
        page.get_by_role("heading", name="accounts").first.wait_for()
        page.goto(site.url)
        page.get_by_role("region", name="Jobs of stateflow").locator(f"a[href*='{site.id_of('refused')}']").click()
        page.get_by_role("heading", name="accounts").first.wait_for()
        assert "/plugin/stateflow/jobs/" in page.url
        page.reload()
        page.get_by_role("link", name="Timeline", exact=True).click()
        page.wait_for_url("**/timeline")
        page.go_back()
        page.get_by_role("heading", name="accounts").first.wait_for()


def test_the_pages_outlive_a_restart_of_the_api_server(site: Site) -> None:
    with site.as_user("uma", expected=["ERR_CONNECTION_REFUSED", "Failed to load resource"]) as uma:
        uma.page.goto(site.address("refused"))
        uma.page.get_by_role("heading", name="accounts").first.wait_for()
        site.client.kill("api-server")
        uma.page.get_by_text("This may be outdated").first.wait_for()
        site.client.home.start_component("api-server")
        site.client.home.wait_until_healthy(PATIENCE)
        uma.page.get_by_text("This may be outdated").first.wait_for(state="detached")
