"""Every page in a real Airflow: for each role, in light and dark, on a phone, and behind a path prefix.

Nothing runs here but the API server and the processor of DAG files: the jobs have run before. Only at the beginning, a
scheduler runs until a restore waits for its approval.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, urlsplit

import pytest
from flights_demo.airflow_home import USER, free_port
from flights_demo.client import AirflowClient
from flights_demo.polling import poll

from tests.airflow.jobs import ACCOUNTS, install_submit
from tests.airflow.system.live_airflow import PATIENCE, Client, live_airflow
from tests.browser.airflow_site import USERS, Site
from tests.browser.flights_story import FlightsStory
from tests.browser.golden_pictures import Part, check_picture
from tests.support import root_files
from tests.support.browser import Look, needs_axe, needs_chromium, open_look
from tests.support.job_fixture import AccountsJob
from tests.ui.pages_job import PagesJob

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [
    pytest.mark.slow(reason="starts an API server of Airflow and a browser"),
    pytest.mark.airflow,
    needs_chromium,
    needs_axe,
]

HOSTILE = "<img src=x onerror=\"document.title='stolen'\">\u202e \x1b[31m & {{ 7*7 }}"
DAG_FILE = """
from stateflow_airflow.dags import StateflowJob, stateflow_dags

for name in {names!r}:
    settings = {{"name": name, "job.folder": f"{folder}/{{name}}", "local_dir": f"{folder}/{{name}}/local"}}
    stateflow_dags(
        job=StateflowJob(name=name, root=f"{folder}/{{name}}/root", settings=settings),
        application={application!r},
        savepoints=None,
    )
"""
ASKED, FLIGHTS, QUESTION = "asked", "flights", "manual__question"
"""A job, a job whose times are always the same, and a DAG run of the first whose question nobody answers."""
PAGES = {
    "jobs": "plugin/stateflow",
    "journal of all jobs": "plugin/stateflow/journal",
    "state": "plugin/stateflow/jobs/{id}",
    "timeline": "plugin/stateflow/jobs/{id}/timeline",
    "checkpoint": "plugin/stateflow/jobs/{id}/timeline?point={point}",
    "run": "plugin/stateflow/jobs/{id}/runs/{generation}",
    "journal": "plugin/stateflow/jobs/{id}/journal",
    "savepoints": "plugin/stateflow/jobs/{id}/savepoints?from=before&to=after",
    "graph": "plugin/stateflow/jobs/{id}/graph",
    "points": "plugin/stateflow/jobs/{id}/restore",
    "restore": "plugin/stateflow/jobs/{id}/restore?to=before",
    "approval": f"plugin/stateflow/jobs/{{asked}}/approval/{QUESTION}",
    "recovery": f"plugin/stateflow/jobs/{{asked}}/recovery/{QUESTION}",
    "unknown": "plugin/stateflow/jobs/{id}/nothing",
    "tab of a DAG": "dags/open/plugin/stateflow-state",
    "tab of another DAG": "dags/other/plugin/stateflow-state",
}
BEHIND_A_PREFIX = "api-server-behind-a-prefix"
OTHER = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("other", schedule=None) as dag:
    EmptyOperator(task_id="nothing")
"""


@dataclass(frozen=True)
class PagesSite(Site):
    """An Airflow with jobs that have run before.

    Attributes:
        flights_ended_at: a while after all that has happened to the job whose times are always the same.
    """

    flights_ended_at: datetime


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[PagesSite]:
    folder = tmp_path_factory.mktemp("pages")
    job = PagesJob(folder / "open")
    job.grow(8)
    job.save("before", reason=HOSTILE)
    base = job.checkpoints[0]
    job.grow(8)
    job.go_back(base, reason=HOSTILE)
    job.grow(4)
    job.save("after")
    shutil.copytree(folder / "open", folder / "gone")
    asked = AccountsJob(folder / ASKED)
    for rows in (50, 120):
        # Of checkpoints that are stored asynchronously, there is not always the same number.
        asked.run_to(rows, name=ASKED, checkpoints__retained=100, checkpoints__asynchronous="no")
    flights = FlightsStory(folder / FLIGHTS)
    flights.folder.mkdir()
    flights.play()
    names = ("open", "gone", ASKED, FLIGHTS)
    dags = folder / "dags"
    dags.mkdir()
    (dags / "families.py").write_text(DAG_FILE.format(names=names, folder=folder, application=ACCOUNTS))
    (dags / "other.py").write_text(OTHER)
    path = {"PATH": f"{install_submit(folder)}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with live_airflow(folder, dags, path, components=("api-server", "dag-processor"), users=USERS) as client:
        client.wait_for_dags(*(f"{name}_recovery" for name in names), "other")
        ask(client, asked)
        yield PagesSite(folder, client, browser, client.home.url, flights.ended_at)


def ask(client: Client, job: AccountsJob) -> None:
    """Lets Airflow's administrator ask for a restore."""
    target = str(job.commits[0].seq)
    client.home.start_component("scheduler")
    client.trigger(f"{ASKED}_recovery", QUESTION, {"target": target, "reason": HOSTILE})
    client.wait_for_question(f"{ASKED}_recovery", QUESTION)
    client.kill("scheduler")


def addresses(site: Site) -> dict[str, str]:
    """The addresses of all pages of the job, by name."""
    newest = root_files.kept_entries(site.folder / "open" / "root")[-1]
    given = {"id": site.id_of("open"), "point": newest.seq, "generation": newest.doc["generation"]}
    given["asked"] = site.id_of(ASKED)
    return {name: f"{site.url}/{page.format(**given)}" for name, page in PAGES.items()}


def visit(look: Look, address: str) -> None:
    look.page.goto(address)
    settle(look)


def settle(look: Look) -> None:
    """Waits until a page of ours shows its content."""
    look.page.locator(".stateflow").first.wait_for()
    look.page.locator(".stateflow [aria-busy=true]").first.wait_for(state="detached")
    # Parts of a page that have answers of their own, such as the plan of a question, come after it.
    look.page.wait_for_load_state("networkidle")


@pytest.mark.parametrize(
    ("user", "width", "colours"),
    [
        *(("vera", width, colours) for width in (1280, 375, 2560) for colours in ("light", "dark")),
        *((user, *look) for user in ("uma", USER) for look in ((1280, "light"), (375, "dark"), (2560, "light"))),
        *(("nils", *look) for look in ((1280, "dark"), (375, "light"))),
    ],
)
def test_every_role_reads_every_page(site: Site, user: str, width: int, colours: Literal["light", "dark"]) -> None:
    with site.as_user(user, width=width, colours=colours) as look:
        for name, address in addresses(site).items():
            visit(look, address)
            assert look.page.locator("html.dark").count() == (colours == "dark")
            assert look.overflow() <= 0, name
            assert look.violations(".stateflow") == [], name
            assert look.page.locator("img[src=x]").count() == 0 and "stolen" not in look.page.title(), name
            assert look.errors == [], name


@pytest.mark.parametrize(
    ("user", "may"), [("vera", (False, False)), ("nils", (True, True)), ("uma", (True, True)), (USER, (False, True))]
)
def test_who_may_not_answer_or_has_asked_cannot_approve(site: Site, user: str, may: tuple[bool, bool]) -> None:
    with site.as_user(user) as look:
        visit(look, addresses(site)["approval"])
        look.page.get_by_text("The plan is still valid").wait_for()
        found = [look.page.get_by_role("button", name=name, exact=True).is_enabled() for name in ("Approve", "Reject")]
        assert found == list(may)


@pytest.mark.parametrize("page", PAGES)
def test_a_person_who_is_not_logged_in_is_sent_to_the_login(site: Site, page: str) -> None:
    with open_look(site.browser, expected=["401"]) as look:
        look.page.goto(addresses(site)[page])
        look.page.wait_for_url("**/auth/login**")
        assert look.page.locator(".stateflow").count() == 0


def test_a_page_that_was_asked_for_before_the_login_is_shown_after_it(site: Site) -> None:
    with open_look(site.browser, expected=["401"]) as look:
        look.page.goto(site.address("open", "/timeline"))
        look.page.locator("input[name=username]").fill("vera")
        look.page.locator("input[name=password]").fill(site.client.home.password)
        look.page.get_by_role("button", name="Sign in").click()
        look.page.wait_for_url("**/timeline")
        look.page.get_by_role("button", name="restore").first.wait_for()


@pytest.mark.parametrize(("user", "may"), [("vera", False), ("nils", True), ("uma", True), (USER, True)])
def test_a_person_without_the_right_is_told_why_an_action_is_disabled(site: Site, user: str, may: bool) -> None:
    site.client.unpause("open")
    site.client.unpause("open_savepoint")
    with site.as_user(user) as look:
        visit(look, site.address("open"))
        for name in ("Run now", "Savepoint", "Stop with savepoint", "Pause"):
            button = look.page.get_by_role("button", name=name, exact=True)
            button.wait_for()
            assert button.is_enabled() == may, name
        assert look.page.get_by_text("You do not have the right").count() == (0 if may else 4)


def test_a_person_of_the_role_user_runs_a_job(site: Site) -> None:
    site.client.unpause("open")
    before = site.client.runs("open")
    with site.as_user("nils") as look:
        visit(look, site.address("open"))
        look.page.get_by_role("button", name="Run now").and_(look.page.locator(":enabled")).click()
        look.page.get_by_role("button", name="Yes, run now").click()
        look.page.get_by_text("open is triggered").wait_for()
    (run,) = site.client.runs("open").keys() - before.keys()
    address = f"dags/open/dagRuns/{quote(run)}"
    assert site.client.call("GET", address)["triggering_user_name"] == "nils"
    # Other tests are to find the job as it was.
    site.client.call("DELETE", address)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_a_form_of_another_site_starts_nothing(site: Site, kind: str) -> None:
    target, other = f"{site.url}/api/v2/dags/open/dagRuns", "http://other.example/"
    # As text, a form sends NAME=VALUE, here JSON.
    field = """<input name='{"logical_date": null, "note": "' value='"}'>"""
    form = f'<form method="post" enctype="{kind}" action="{target}">{field}</form>'
    before = site.client.runs("open")
    with site.as_user("uma", expected=["401", "422"]) as look:
        page = look.page
        page.route(other, lambda route: route.fulfill(content_type="text/html", body=form))
        page.goto(other)
        with page.expect_response(target) as sent:
            page.evaluate("document.forms[0].submit()")
        # Whether the browser sends the cookie of the session depends on the login: here it may for two minutes.
        assert sent.value.status in (401, 422)
        # With the cookie in any case.
        headers = {"content-type": kind, "origin": other.rstrip("/")}
        for address, status in ((target, 422), (f"{site.url}/stateflow/api/v1/jobs", 405)):
            answer = page.context.request.post(address, headers=headers, data='{"logical_date": null}')
            assert answer.status == status, address
    assert site.client.runs("open") == before


@dataclass(frozen=True)
class Sight:
    """A part of a page of Airflow of which there are pictures.

    Attributes:
        page: in `PAGES`, or the path.
        begin: selects the element with which the part begins.
        last: text of it that it shows last.
    """

    page: str
    last: str
    height: int
    user: str = "vera"
    begin: str = ".stateflow"


SIGHTS = {
    "airflow-state": Sight(f"dags/{FLIGHTS}/plugin/stateflow-state", FLIGHTS, 900),
    "airflow-card": Sight("", FLIGHTS, 115, begin="section[aria-label='Stateflow jobs']"),
    "approval": Sight("approval", "The plan is still valid", 1100, user="uma"),
    "recovery": Sight("recovery", "Answer the question", 620, user="uma"),
}
LOOKS: dict[str, tuple[int, Literal["light", "dark"]]] = {
    "light": (1280, "light"),
    "dark": (1280, "dark"),
    "phone": (375, "light"),
}


@pytest.mark.parametrize(
    ("name", "look"),
    [(name, look) for name in SIGHTS for look in LOOKS if look != "phone" or not name.startswith("airflow-")],
)
def test_a_part_of_airflows_page_looks_as_in_its_picture(
    site: PagesSite, renews_pictures: bool, name: str, look: str
) -> None:
    sight, (width, colours) = SIGHTS[name], LOOKS[look]
    with site.as_user(sight.user, width=width, height=1200, colours=colours) as opened:
        page = opened.page
        page.clock.set_fixed_time(site.flights_ended_at)
        page.route(re.compile("/api/v[12]/"), lambda route: steady_answer(site, route))
        page.goto(addresses(site).get(sight.page, f"{site.url}/{sight.page}"))
        element = page.locator(sight.begin).first
        element.get_by_text(sight.last).first.wait_for()
        page.locator("[aria-busy=true]").first.wait_for(state="detached")
        assert opened.moving(sight.begin) == []
        check_picture(page, f"{name}-{look}", renews=renews_pictures, part=Part(element, sight.height))


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d(:\d\d(?:\.\d+)?)?")


def steady_answer(site: PagesSite, route: Route) -> None:
    """Lets a page read an answer without what differs each time: the folder, other jobs of lists, and the times of the
    job whose question waits. Its hostile reason is not for pictures."""
    answer = route.fetch()
    text, path = answer.text().replace(str(site.folder), "/lake"), urlsplit(answer.url).path
    if answer.status == 200 and path.endswith("/stateflow/api/v1/jobs"):
        found = json.loads(text)
        text = json.dumps({**found, "jobs": [row for row in found["jobs"] if row["job"] == FLIGHTS]})
    if site.id_of(ASKED) in path or f"/dags/{ASKED}_" in path:
        for is_ascii in (True, False):
            text = text.replace(json.dumps(HOSTILE, ensure_ascii=is_ascii)[1:-1], "wrong totals since yesterday")
        at = site.flights_ended_at - timedelta(minutes=29)
        text = _MOMENT.sub(lambda found: f"{at:%Y-%m-%d}{found[1]}{at:%H:%M}{':00' if found[2] else ''}", text)
    route.fulfill(response=answer, body=text)


def test_a_reload_keeps_the_page_and_back_and_forward_lead_through_the_pages(site: Site) -> None:
    with site.as_user("uma") as look:
        page = look.page
        visit(look, site.address("open"))
        page.get_by_role("link", name="Timeline", exact=True).click()
        page.get_by_role("button", name="savepoint before").click()
        chosen = page.url
        assert "mark=" in chosen
        page.get_by_role("link", name="Restore to here").click()
        page.get_by_role("heading", name="to before").wait_for()
        page.reload()
        page.get_by_role("heading", name="to before").wait_for()
        page.go_back()
        page.wait_for_url(chosen)
        page.get_by_role("region", name="Selected point").get_by_text("before").first.wait_for()
        page.go_back()
        page.get_by_role("heading", name="Operators at the newest checkpoint").wait_for()
        page.go_forward()
        page.wait_for_url(chosen)


def test_pages_within_the_tab_of_a_dag_have_addresses_and_a_history(site: Site) -> None:
    tab = f"{site.url}/dags/open/plugin/stateflow-state"
    newest = str(root_files.kept_entries(site.folder / "open" / "root")[-1].seq)
    with site.as_user("vera") as look:
        page = look.page
        links = page.get_by_role("navigation", name="Pages of the job")
        steps = [
            (
                page.get_by_role("link", name="Restore to here").first,
                page.get_by_role("heading", name="Restore job to"),
            ),
            *(
                (links.get_by_role("link", name=name), content)
                for name, content in (
                    ("Timeline", page.get_by_role("button", name="savepoint before")),
                    ("Journal", page.get_by_role("region", name="Journal")),
                    ("Savepoints", page.get_by_role("article", name="Savepoint before")),
                    ("Graph", page.get_by_label("Checkpoint", exact=True)),
                    ("State", page.get_by_role("heading", name="Operators at the newest checkpoint")),
                )
            ),
            (page.get_by_role("link", name=newest, exact=True).first, page.get_by_role("dialog")),
        ]
        visit(look, tab)
        history = [(tab, steps[-2][1])]
        for link, content in steps:
            link.click()
            content.first.wait_for()
            history.append((page.url, content))
        assert len({url for url, _ in history}) == len(steps)
        for url, content in history[-2::-1]:
            page.go_back()
            page.wait_for_url(url)
            content.first.wait_for()
        for url, content in history[1:]:
            page.go_forward()
            page.wait_for_url(url)
            content.first.wait_for()
        for url, content in history:
            assert url.startswith(tab)
            visit(look, url)
            content.first.wait_for()
            assert page.url == url


@pytest.mark.parametrize("page", ["", "/timeline"])
def test_the_tab_of_a_dag_without_a_job_says_so(site: Site, page: str) -> None:
    with site.as_user("vera") as look:
        visit(look, f"{addresses(site)['tab of another DAG']}{page}")
        look.page.get_by_text("This is not a DAG of a stateflow job").wait_for()
        assert look.page.get_by_role("navigation", name="Pages of the job").count() == 0


def test_the_navigation_and_the_card_on_the_first_page_lead_to_a_job(site: Site) -> None:
    with site.as_user("uma") as look:
        page = look.page
        card = page.get_by_role("region", name="Stateflow jobs")
        card.locator(f"a[href*='{site.id_of('open')}']").first.click()
        settle(look)
        assert page.url == site.address("open")
        page.get_by_role("link", name="Stateflow", exact=True).click()
        page.wait_for_url("**/plugin/stateflow")
        settle(look)


def test_behind_a_path_prefix_deep_links_reloads_and_actions_work(site: Site) -> None:
    """A second API server of the same Airflow, as behind a proxy that shows it below a path."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/team/airflow"
    environment = {**site.client.home.environment, "AIRFLOW__API__BASE_URL": url}
    home = replace(site.client.home, port=port, environment=environment, components=("api-server",))
    home.start_component("api-server", BEHIND_A_PREFIX)
    try:
        assert poll(lambda: AirflowClient.is_healthy(url, home.components), PATIENCE)
        prefixed = replace(site, url=url)
        with prefixed.as_user("uma") as look:
            page = look.page
            for name, address in addresses(prefixed).items():
                visit(look, address)
                page.reload()
                settle(look)
                assert page.url.startswith(f"{url}/"), name
                assert look.errors == [], name
            visit(look, prefixed.address("open"))
            page.get_by_role("link", name="Timeline", exact=True).click()
            page.wait_for_url(f"{url}/plugin/stateflow/jobs/*/timeline")
            page.go_back()
            page.get_by_role("button", name="Pause", exact=True).click()
            page.get_by_role("button", name="Yes, pause").click()
            page.get_by_role("button", name="Unpause", exact=True).wait_for()
            assert site.client.call("GET", "dags/open")["is_paused"]
    finally:
        site.client.kill(BEHIND_A_PREFIX)


def test_a_job_whose_root_is_gone_shows_what_was_known(site: Site) -> None:
    root = site.folder / "gone" / "root"
    with site.as_user("vera") as look:
        visit(look, site.address("gone"))
        look.page.get_by_role("link", name="Restore to here").first.wait_for()
        root.rename(root.with_name("elsewhere"))
        try:
            look.page.get_by_text("The job root cannot be read now").first.wait_for()
            assert look.page.get_by_role("link", name="Restore to here").count() > 0
            assert look.violations(".stateflow") == []
            visit(look, f"{site.url}/plugin/stateflow")
            look.page.get_by_role("link", name="job", exact=True).first.wait_for()
        finally:
            root.with_name("elsewhere").rename(root)


def test_the_pages_outlive_a_restart_of_the_api_server(site: Site) -> None:
    with site.as_user("uma", expected=["ERR_CONNECTION_REFUSED", "Failed to load resource"]) as look:
        visit(look, site.address("open"))
        site.client.kill("api-server")
        look.page.get_by_text("This may be outdated").first.wait_for()
        assert look.page.get_by_role("heading", name="Operators at the newest checkpoint").is_visible()
        site.client.home.start_component("api-server")
        site.client.home.wait_until_healthy(PATIENCE)
        look.page.get_by_text("This may be outdated").first.wait_for(state="detached")
