"""The runbook in the pages of a real Airflow: from the timeline to the next run, with an approval on a phone.

It is played at the width of a desk and wholly at that of a phone.

With ``--renew-pictures`` this also makes the tour, pictures for the guides, and the table of tasks.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from flights_demo.polling import poll
from PIL import Image

from tests.airflow.jobs import ACCOUNTS, install_submit
from tests.airflow.system.live_airflow import PATIENCE, live_airflow
from tests.browser.airflow_site import USERS, Site
from tests.browser.golden_pictures import FOLDER, few_colours
from tests.browser.person_tasks import Tasks
from tests.browser.tour import Tour
from tests.support import root_files
from tests.support.browser import Look, needs_axe, needs_chromium
from tests.support.job_fixture import AccountsJob

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [
    pytest.mark.slow(reason="starts all of Airflow and a browser"),
    pytest.mark.airflow,
    needs_chromium,
    needs_axe,
]

RESTORED, REFUSED, OVERTAKEN, OPERATED = JOBS = ("accounts", "payments", "orders", "stock")
WAITING = "prices"
"""A job whose run waits for more input until it is stopped."""
PHONE = (375, 667)
"""Width and height of a phone's window."""
_PLACE = """element => {
    const {top, bottom, left, right} = element.getBoundingClientRect();
    const shown = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    return {top, bottom, left, right, is_free: element.contains(shown)};
}"""
"""Where an element is in the window, and whether nothing covers it there."""
DAG_FILE = """
from stateflow_airflow.dags import StateflowJob, stateflow_dags

for name in {names!r}:
    stateflow_dags(
        job=StateflowJob(
            name=name,
            root=f"{folder}/{{name}}/root",
            settings={{
                "name": name,
                "run.until": "stopped" if name == {waiting!r} else "input-ends",
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
class RunbookSite(Site):
    """An Airflow with jobs that have run twice."""

    def job(self, name: str) -> AccountsJob:
        return AccountsJob(self.folder / name)

    def newest_run(self, dag_id: str) -> str:
        runs = self.client.call("GET", f"dags/{dag_id}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
        return str(runs[0]["dag_run_id"])

    def deliver_and_run(self, rows: int, run_id: str, *names: str) -> None:
        """Runs jobs at the same time, as many as Airflow lets."""
        for name in names:
            self.job(name).deliver(rows)
            self.client.trigger(name, run_id)
        for name in names:
            self.client.wait_for_success(name, run_id)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[RunbookSite]:
    folder = tmp_path_factory.mktemp("runbook")
    (folder / "dags").mkdir()
    text = DAG_FILE.format(folder=folder, names=(*JOBS, WAITING), waiting=WAITING, application=ACCOUNTS)
    (folder / "dags" / "families.py").write_text(text)
    path = f"{install_submit(folder)}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # One of the tasks at a time is the run that waits.
    environment = {"PATH": path, "AIRFLOW__CORE__PARALLELISM": "3"}
    with live_airflow(folder, folder / "dags", environment, users=USERS) as client:
        client.wait_for_dags(*(f"{job}_recovery" for job in (*JOBS, WAITING)))
        site = RunbookSite(folder, client, browser, client.home.url)
        for job in (*JOBS, WAITING):
            for suffix in ("", "_savepoint", "_recovery", "_retention"):
                client.unpause(f"{job}{suffix}")
        site.deliver_and_run(50, "first", *JOBS)
        site.deliver_and_run(120, "second", *JOBS)
        site.job(WAITING).deliver(50)
        client.trigger(WAITING, "first")
        assert poll(lambda: (site.job(WAITING).root / "FORMAT").exists(), PATIENCE)
        yield site


@pytest.fixture(scope="module")
def tasks(renews_pictures: bool) -> Iterator[Tasks]:
    tasks = Tasks()
    yield tasks
    if renews_pictures:
        tasks.write()


@dataclass(frozen=True)
class Camera:
    """Takes pictures for the guides and the tour, if they are renewed."""

    tour: Tour

    def keep(self, page: Page, name: str) -> None:
        """Keeps a picture for the guides."""
        if self.tour.is_made:
            page.wait_for_load_state("networkidle")
            picture = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
            few_colours(picture).save(FOLDER / f"{name}.png", optimize=True)


@pytest.fixture(scope="module")
def camera(renews_pictures: bool) -> Camera:
    return Camera(Tour(renews_pictures))


def request_restore(look: Look, reason: str) -> None:
    """Requests the restore that the wizard shows."""
    page = look.page
    page.get_by_role("textbox", name="Why is this restore necessary?").fill(reason)
    page.get_by_role("button", name="Request the restore").and_(page.locator(":enabled")).click()
    page.get_by_role("button", name="Yes, request the restore").click()
    page.wait_for_url("**/recovery/*")


def choose_on_timeline(look: Look, site: RunbookSite, name: str) -> None:
    """Opens the wizard for the oldest point of a job's timeline."""
    point = root_files.kept_entries(site.job(name).root)[0].seq
    look.page.goto(site.address(name, "/timeline"))
    look.page.get_by_role("button", name=f"checkpoint {point}, retained").first.click()
    look.page.get_by_role("link", name=f"Restore to here: {point}").first.click()


@pytest.mark.parametrize(
    ("name", "width", "height", "where"),
    # The rejection of another test changes nothing. Airflow's first page shows five jobs: each test needs those it has.
    [(RESTORED, 1280, 800, ""), (REFUSED, *PHONE, ", all at a phone's width")],
)
def test_a_restore_is_requested_approved_on_a_phone_and_followed_by_the_next_run(
    site: RunbookSite, tasks: Tasks, camera: Camera, *, name: str, width: int, height: int, where: str
) -> None:
    client, job = site.client, site.job(name)
    if name != RESTORED:
        # There is one tour.
        camera = Camera(Tour(is_made=False))
    before, point = root_files.head(job.root), root_files.kept_entries(job.root)[0].seq
    phone = dict(zip(("width", "height"), PHONE, strict=True))
    with site.as_user("uma", width=width, height=height) as uma, site.as_user("oscar", **phone) as oscar:
        pause(uma, site, name)
        tasks.watch(uma)
        tasks.watch(oscar)
        mark = go_to_timeline(uma, site, name, camera.tour, point)
        with tasks.measure(f"restore: plan, request, approve on a phone, verify{where}", "the timeline", most_clicks=5):
            mark.click()
            plan_and_request(uma, camera, point)
            run = site.newest_run(f"{name}_recovery")
            client.wait_for_question(f"{name}_recovery", run)
            uma.page.get_by_role("link", name="Answer the question").wait_for()
            camera.tour.show(uma.page, "The recovery DAG has planned with the job file, and waits for an approval.", 5)
            assert uma.overflow() <= 0 and uma.violations(".stateflow") == []
            with tasks.measure(f"of which approve on a phone{where}", "link in the alert", most_clicks=1):
                oscar.page.goto(site.address(name, f"/approval/{run}?dag={name}_recovery"))
                approve_on_phone(oscar, camera)
            client.wait_for_end(f"{name}_recovery", run)
            uma.page.get_by_role("heading", name="What comes next").wait_for()
        uma.page.get_by_role("listitem").filter(has_text="5. Run").get_by_text("skipped").wait_for()
        assert uma.overflow() <= 0 and uma.violations(".stateflow") == []
        (record,) = [r for r in root_files.history(job.root) if r.get("kind") == "restore"]
        found = (record["by"], record["requested_by"], record["note"])
        assert found == ("airflow-user:oscar", "airflow-user:uma", "seen")
        assert root_files.head(job.root).position < before.position
        camera.keep(uma.page, "airflow-restored")

        job.replace_events(since=root_files.head(job.root).position)
        run_again(uma, name, camera.tour)
        client.wait_for_success(name, site.newest_run(name))
        job.check_results()

        uma.page.goto(site.address(name, "/timeline"))
        uma.page.get_by_role("button", name="restore").first.wait_for()
        assert uma.overflow() <= 0
        camera.keep(uma.page, "airflow-timeline")
        camera.tour.show(uma.page, "The timeline afterwards: the restore as an arc, what it has undone in grey.", 8)
        camera.tour.write(still=-1)
        with tasks.measure(f"who went back, when and why{where}", "a page of the job", most_clicks=1):
            uma.page.get_by_role("link", name="Journal", exact=True).click()
            uma.page.get_by_text("the rows of today are wrong").first.wait_for()
        assert uma.overflow() <= 0


def pause(look: Look, site: RunbookSite, name: str) -> None:
    """Pauses the DAG that runs the job to restore."""
    look.page.goto(site.address(name))
    look.page.get_by_role("button", name="Pause", exact=True).click()
    look.page.get_by_role("button", name="Yes, pause").click()
    assert poll(lambda: site.client.call("GET", f"dags/{name}")["is_paused"], PATIENCE)


def go_to_timeline(look: Look, site: RunbookSite, name: str, tour: Tour, point: int) -> Locator:
    """Goes from Airflow's first page to the timeline of the job to restore; returns the mark of a point there."""
    page = look.page
    page.goto(f"{site.url}/")
    card = page.get_by_role("region", name="Stateflow jobs").locator(f"a[href*='{site.id_of(name)}']").first
    tour.show(page, f"03:02. The rows of {name} are wrong. Airflow's first page shows the job.", 4, card)
    card.click()
    link = page.get_by_role("link", name="Timeline", exact=True)
    tour.show(page, "The state of the job: newest checkpoint, size, operators, points.", 5, link)
    link.click()
    mark = page.get_by_role("button", name=f"checkpoint {point}, retained").first
    tour.show(page, "The timeline: runs and checkpoints. Choose the last good point.", 5, mark)
    mark.wait_for()
    assert look.overflow() <= 0
    return mark


def plan_and_request(look: Look, camera: Camera, point: int) -> None:
    """Looks at the plan for the point that is selected on the timeline, and requests its restore."""
    page, tour = look.page, camera.tour
    link = page.get_by_role("link", name=f"Restore to here: {point}").first
    tour.show(page, "What is known of this point, and the way back to it.", 4, link)
    link.click()
    page.get_by_text("files of the target are stored").first.wait_for()
    assert look.overflow() <= 0
    camera.keep(page, "airflow-restore")
    tour.show(page, "The plan, before anything runs: what is lost, and what is read again.", 7)
    page.get_by_role("textbox", name="Why is this restore necessary?").fill("the rows of today are wrong")
    button = page.get_by_role("button", name="Request the restore").and_(page.locator(":enabled"))
    button.wait_for()
    tour.show(page, "A reason is required. Another person has to approve.", 4, button)
    button.click()
    button = page.get_by_role("button", name="Yes, request the restore")
    tour.show(page, "Each action asks once. This one triggers the recovery DAG.", 3, button)
    button.click()
    page.wait_for_url("**/recovery/*")


def approve_on_phone(look: Look, camera: Camera) -> None:
    """Approves the plan whose question is open."""
    phone = look.page
    phone.get_by_text("the rows of today are wrong").first.wait_for()
    phone.get_by_text("The plan is still valid").wait_for()
    assert look.overflow() <= 0 and look.violations(".stateflow") == []
    check_the_buttons_follow_the_losses(phone)
    phone.get_by_role("textbox", name="Note").fill("seen")
    camera.keep(phone, "airflow-approval-phone")
    button = phone.get_by_role("button", name="Approve")
    camera.tour.show(phone, "The other person approves on a phone.", 6, button)
    button.click()
    phone.get_by_text("Approved").first.wait_for()


def check_the_buttons_follow_the_losses(phone: Page) -> None:
    """A person who has just opened the question has all losses before the buttons, and reaches these by scrolling."""
    answer, losses = phone.get_by_role("region", name="Answer"), phone.get_by_role("region", name="What is lost")
    sentences = phone.get_by_role("alert").filter(has_text="Lost for ever").get_by_role("listitem").all()
    assert sentences
    top = answer.evaluate(_PLACE)["top"]
    assert all(each.evaluate(_PLACE)["bottom"] <= top for each in (losses, *sentences))
    answer.scroll_into_view_if_needed()
    places = [answer.get_by_role("button", name=name).evaluate(_PLACE) for name in ("Approve", "Reject")]
    assert all(each["is_free"] and each["bottom"] - each["top"] >= 44 for each in places), places
    # They fill a row, which leaves the page its margins.
    left, right = min(each["left"] for each in places), max(each["right"] for each in places)
    row, whole = answer.evaluate(_PLACE), phone.locator(".stateflow").evaluate(_PLACE)
    assert (left, right) == (row["left"], row["right"])
    assert max(left - whole["left"], whole["right"] - right) <= 16, (places, whole)


def run_again(look: Look, name: str, tour: Tour) -> None:
    """Unpauses and runs the job on the page of its recovery."""
    page = look.page
    button = page.get_by_role("button", name="Unpause", exact=True)
    tour.show(page, "Restored and verified: state, input positions and tables. Next: unpause.", 5, button)
    button.click()
    page.get_by_role("button", name="Yes, unpause").click()
    button = page.get_by_role("button", name="Run now").and_(page.locator(":enabled"))
    button.wait_for()
    tour.show(page, "… and run now, over the corrected input.", 4, button)
    button.click()
    page.get_by_role("button", name="Yes, run now").click()
    page.get_by_text(f"{name} is triggered").wait_for()


def test_a_rejected_plan_changes_nothing(site: RunbookSite) -> None:
    client, job = site.client, site.job(REFUSED)
    with site.as_user("uma") as uma, site.as_user("oscar") as oscar:
        choose_on_timeline(uma, site, REFUSED)
        request_restore(uma, "to see it")
        run = site.newest_run(f"{REFUSED}_recovery")
        client.wait_for_question(f"{REFUSED}_recovery", run)
        # Who has asked cannot approve.
        uma.page.get_by_role("link", name="Answer the question").click()
        uma.page.get_by_text("another person has to approve it").wait_for()
        assert uma.page.get_by_role("button", name="Approve").is_disabled()
        uma.page.go_back()

        before = root_files.head(job.root)
        oscar.page.goto(site.address(REFUSED))
        oscar.page.get_by_text("A question waits for an answer").first.wait_for()
        oscar.page.locator("a[href*='/approval/']").first.click()
        oscar.page.get_by_role("textbox", name="Note").fill("not now")
        oscar.page.get_by_role("button", name="Reject").click()
        oscar.page.get_by_text("Rejected").first.wait_for()
        client.wait_for_end(f"{REFUSED}_recovery", run)
        assert root_files.head(job.root) == before
        uma.page.get_by_text("The job was not restored by this DAG run").wait_for()
        uma.page.get_by_text("not now").first.wait_for()


def test_a_plan_that_becomes_outdated_while_it_is_read_says_so(site: RunbookSite, tasks: Tasks) -> None:
    client, point = site.client, root_files.kept_entries(site.job(OVERTAKEN).root)[-2].seq
    with site.as_user("uma") as uma, site.as_user("oscar") as oscar:
        tasks.watch(uma)
        uma.page.goto(f"{site.url}/")
        card = uma.page.get_by_role("region", name="Stateflow jobs")
        row = card.locator(f"a[href*='{site.id_of(OVERTAKEN)}']").first
        row.wait_for()
        # With the approval, 5.
        with tasks.measure("request a restore", "Airflow's first page", most_clicks=4):
            with tasks.measure("of which choose the point", "Airflow's first page", most_clicks=2):
                row.click()
                uma.page.get_by_role("link", name=f"Restore to here: {point}").first.click()
                uma.page.get_by_text("files of the target are stored").first.wait_for()
            request_restore(uma, "wrong rows")
        run = site.newest_run(f"{OVERTAKEN}_recovery")
        client.wait_for_question(f"{OVERTAKEN}_recovery", run)
        oscar.page.goto(site.address(OVERTAKEN, f"/approval/{run}?dag={OVERTAKEN}_recovery"))
        oscar.page.get_by_text("The plan is still valid").wait_for()
        site.deliver_and_run(150, "third", OVERTAKEN)
        oscar.page.get_by_text("outdated by run").first.wait_for()
        assert oscar.page.get_by_role("button", name="Approve").is_disabled()


def test_the_state_of_a_job_is_one_click_away(site: RunbookSite, tasks: Tasks) -> None:
    with site.as_user("vera") as vera:
        tasks.watch(vera)
        page, job = vera.page, site.job(OPERATED)
        newest = str(root_files.kept_entries(job.root)[-1].seq)
        page.goto(f"{site.url}/")
        row = (
            page.get_by_role("region", name="Stateflow jobs")
            .get_by_role("row")
            .filter(has=page.locator(f"a[href*='{site.id_of(OPERATED)}']"))
        )
        with tasks.measure("id of the newest checkpoint", "Airflow's first page", most_clicks=0):
            row.get_by_role("cell").filter(has_text=re.compile(f"^{newest}")).first.wait_for()
        with tasks.measure("state of a job at a glance", "Airflow's first page", most_clicks=1, most_seconds=5):
            row.get_by_role("link").first.click()
            page.get_by_role("heading", name="Operators at the newest checkpoint").wait_for()
            # Size and its trend, input that waits, savepoint: without scrolling.
            for name in ("Newest checkpoint", "State", "Input waiting", "Last savepoint"):
                box = page.get_by_role("region", name=name, exact=True).bounding_box()
                assert box is not None and box["y"] + box["height"] <= 900, name
            assert page.get_by_role("region", name="State", exact=True).locator("svg").is_visible()
        page.goto(f"{site.url}/plugin/stateflow")
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        with tasks.measure("journal of all jobs", "the page Jobs", most_clicks=1):
            page.get_by_role("link", name="Journal of all jobs").click()
            page.get_by_role("heading", name="Journal", exact=True).wait_for()
            page.locator(".stateflow [aria-busy=true]").first.wait_for(state="detached")


def test_a_value_that_cannot_be_is_refused_before_a_dag_run_exists(site: RunbookSite, tasks: Tasks) -> None:
    # The browser reports each answer with an error as one of its own.
    with site.as_user("uma", expected=["422"]) as uma:
        tasks.watch(uma)
        page = uma.page
        runs = site.client.runs(f"{OPERATED}_recovery")
        page.goto(site.address(OPERATED, "/restore"))
        page.get_by_role("textbox", name="Another point").wait_for()
        with tasks.measure("see why a value was refused", "the list of points", most_clicks=1):
            page.get_by_role("textbox", name="Another point").fill("before:yesterday")
            page.get_by_role("button", name="Use this point").click()
            page.get_by_text("There is no plan with these values").wait_for()
        assert uma.violations(".stateflow") == []
        assert page.get_by_role("button", name="Request the restore").is_disabled()
        assert site.client.runs(f"{OPERATED}_recovery") == runs


def test_a_savepoint_is_taken_and_its_path_is_seen(site: RunbookSite, tasks: Tasks) -> None:
    with site.as_user("uma") as uma:
        tasks.watch(uma)
        page = uma.page
        page.goto(site.address(OPERATED))
        button = page.get_by_role("button", name="Savepoint", exact=True).and_(page.locator(":enabled"))
        button.wait_for()
        with tasks.measure("savepoint, until its path is seen", "the page State", most_clicks=3):
            button.click()
            page.get_by_role("textbox", name="Name of the savepoint").fill("monday")
            page.get_by_role("textbox", name="Reason for the savepoint").fill("before the upgrade")
            page.get_by_role("button", name="Yes, savepoint").click()
            page.get_by_role("link", name="The savepoint appears on the page Savepoints").click()
            page.get_by_text("savepoints/monday").first.wait_for()


def test_a_retention_is_applied_after_an_approval(site: RunbookSite, tasks: Tasks) -> None:
    client, job = site.client, site.job(OPERATED)
    with site.as_user("uma") as uma, site.as_user("oscar") as oscar:
        tasks.watch(uma)
        tasks.watch(oscar)
        uma.page.goto(site.address(OPERATED, "/savepoints"))
        slider = uma.page.get_by_role("slider", name="Checkpoints to keep")
        slider.wait_for()
        kept = len(root_files.kept_entries(job.root))
        with tasks.measure("retention with an approval", "the page Savepoints", most_clicks=3):
            slider.focus()
            slider.press("ArrowLeft")
            uma.page.get_by_text("This deletes 1 checkpoint").wait_for()
            uma.page.get_by_role("button", name="Apply this retention").and_(uma.page.locator(":enabled")).click()
            uma.page.get_by_role("button", name="Yes, apply this retention").click()
            uma.page.get_by_text(f"{OPERATED}_retention is triggered").wait_for()
            run = site.newest_run(f"{OPERATED}_retention")
            client.wait_for_question(f"{OPERATED}_retention", run)
            oscar.page.goto(site.address(OPERATED, f"/approval/{run}?dag={OPERATED}_retention"))
            oscar.page.get_by_role("button", name="Approve").and_(oscar.page.locator(":enabled")).click()
            oscar.page.get_by_text("Approved").first.wait_for()
            client.wait_for_success(f"{OPERATED}_retention", run)
        assert len(root_files.kept_entries(job.root)) == kept - 1


def test_a_run_is_stopped_with_a_savepoint_after_an_approval(site: RunbookSite, tasks: Tasks) -> None:
    client, job = site.client, site.job(WAITING)
    with site.as_user("uma") as uma, site.as_user("oscar") as oscar:
        tasks.watch(uma)
        tasks.watch(oscar)
        uma.page.goto(site.address(WAITING))
        uma.page.get_by_text("running", exact=True).first.wait_for()
        with tasks.measure("stop with a savepoint", "the page State", most_clicks=3):
            uma.page.get_by_role("button", name="Stop with savepoint").and_(uma.page.locator(":enabled")).click()
            uma.page.get_by_role("textbox", name="Name of the savepoint").fill("stopped")
            uma.page.get_by_role("button", name="Yes, stop with savepoint").click()
            uma.page.get_by_text(f"{WAITING}_savepoint is triggered").wait_for()
            run = site.newest_run(f"{WAITING}_savepoint")
            client.wait_for_question(f"{WAITING}_savepoint", run)
            oscar.page.goto(site.address(WAITING, f"/approval/{run}?dag={WAITING}_savepoint"))
            oscar.page.get_by_role("button", name="Approve").and_(oscar.page.locator(":enabled")).click()
            oscar.page.get_by_text("Approved").first.wait_for()
            client.wait_for_success(f"{WAITING}_savepoint", run)
            client.wait_for_success(WAITING, "first")
        assert "stopped" in root_files.savepoints(job.root)
