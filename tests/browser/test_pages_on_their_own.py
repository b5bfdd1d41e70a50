"""The pages of `stateflow ui` in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

import httpx
import pytest

from stateflow.api.graph import JobFile
from stateflow.errors import UserCodeError
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.ui.catalog import RootCatalog, job_at
from tests.browser.flights_story import FlightsStory
from tests.support.browser import Look, needs_axe, needs_chromium, open_look, serving
from tests.support.local_jobs import Growing, plan_restore, prepared_job
from tests.ui.pages_job import PagesJob, Row, Sum

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

    from stateflow import StreamExecutionEnvironment

pytestmark = [needs_chromium, needs_axe]
_slow = pytest.mark.slow(reason="opens many pages in a browser")

SAVED = "before-upgrade"
MARKUP = "'\"><b><img src=x onerror=stolen=1>"
HOSTILE_NAME = f"{MARKUP}</script><script>stolen=1</script>javascript:stolen=1//{'w' * 200}"
HOSTILE = f"\u202e\x1b[31m{HOSTILE_NAME} & {{{{ 7*7 }}}}"
HIDDEN = "\u202e\x1b"
"""Characters that no page may show as they are: they change the text around them."""
PAGES = (
    "",
    "journal",
    "jobs/{id}",
    "jobs/{id}/timeline",
    "jobs/{id}/journal",
    "jobs/{id}/savepoints",
    "jobs/{id}/graph",
    "jobs/{id}/timeline?point={point}",
    "jobs/{id}/runs/{generation}",
    "jobs/{id}/restore",
    f"jobs/{{id}}/restore?to={SAVED}",
)
LOOKS: tuple[tuple[int, Literal["light", "dark"]], ...] = (
    (1280, "light"),
    (375, "dark"),
    (2560, "dark"),
    (375, "light"),
)
QUICK = {("jobs/{id}/timeline", 1280), ("jobs/{id}", 375), (f"jobs/{{id}}/restore?to={SAVED}", 2560)}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PagesJob:
    """A job with a savepoint, a restore, and checkpoints that it has undone."""
    job = PagesJob(tmp_path_factory.mktemp("job"))
    job.grow(8)
    job.save(SAVED, reason="before version 2")
    base = job.checkpoints[0]
    job.grow(8)
    job.go_back(base)
    job.grow(4)
    return job


@pytest.fixture(scope="module")
def url(job: PagesJob) -> Iterator[str]:
    with serving(RootCatalog([job.address])) as url:
        yield url


def address(url: str, page: str, job: PagesJob) -> str:
    newest = job.root.head()
    given = {"id": job_at(job.address).id, "point": newest.checkpoint_id, "generation": newest.entry.generation}
    return f"{url}/#/{page.format(**given)}"


def visit(look: Look, address: str) -> None:
    look.page.goto(address)
    look.page.locator("h1").first.wait_for()
    look.page.locator("[aria-busy=true]").first.wait_for(state="detached")


@pytest.mark.parametrize(
    ("page", "width", "colours"),
    [pytest.param(page, *look, marks=() if (page, look[0]) in QUICK else _slow) for page in PAGES for look in LOOKS],
)
def test_a_page_fits_its_window_and_all_readers(
    browser: Browser, url: str, job: PagesJob, page: str, width: int, colours: Literal["light", "dark"]
) -> None:
    with open_look(browser, width=width, colours=colours) as look:
        visit(look, address(url, page, job))
        assert look.overflow() <= 0
        assert look.violations() == []


@_slow
def test_numbers_and_times_are_written_as_the_reader_writes_them(
    browser: Browser, story: tuple[str, FlightsStory]
) -> None:
    url, flights = story
    found = httpx.get(f"{url}/api/v1/jobs/flights/checkpoints/46").json()["entry"]
    at = datetime.fromisoformat(found["ended_at"]).astimezone(ZoneInfo("Asia/Tokyo"))
    size = f"{found['full_bytes'] / 1000:.1f}".replace(".", ",")
    with open_look(browser, locale="de-DE", time_zone="Asia/Tokyo") as look:
        look.page.clock.set_fixed_time(flights.ended_at)
        visit(look, f"{url}/#/jobs/flights/timeline?point=46")
        details = look.page.get_by_role("dialog")
        details.get_by_text("running-delay").first.wait_for()
        text = details.inner_text()
        assert f"{at:%d.%m.%Y, %H:%M:%S}" in text
        assert re.search(rf"\b{size}\skB", text)
        assert details.get_by_title(re.compile(r"^vor \d+ ")).count() > 0
        assert not re.search(r"\d\.\d+\s(kB|MB|byte|sec|min)", text)


_PROBE = """
window.moved = [];
for (const name of ["transitionrun", "animationstart"]) addEventListener(name, event => window.moved.push(
    `${event.propertyName ?? event.animationName}: ${event.target.outerHTML.slice(0, 120)}`
), true);
"""


@_slow
@pytest.mark.parametrize(("motion", "moves"), [("reduce", False), ("no-preference", True)])
def test_nothing_moves_for_a_reader_who_wants_less_motion(
    browser: Browser, url: str, job: PagesJob, motion: Literal["reduce", "no-preference"], moves: bool
) -> None:
    held: list[Route] = []
    with open_look(browser, motion=motion) as look:
        page = look.page
        page.add_init_script(_PROBE)
        page.route("**/api/v1/jobs/*", lambda route: held.append(route), times=1)
        page.goto(address(url, "jobs/{id}", job))
        page.locator("[aria-busy=true]").first.wait_for()
        # A skeleton moves as long as it is there.
        assert page.evaluate("document.getAnimations().length > 0") == moves
        held[0].continue_()
        page.locator("[aria-busy=true]").first.wait_for(state="detached")
        for button in page.get_by_role("button").and_(page.locator(":enabled")).all()[:3]:
            button.hover()
        page.get_by_role("button", name="Dark").click()
        page.goto(address(url, "jobs/{id}/timeline?point={point}", job))
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        page.get_by_role("dialog").wait_for(state="detached")
        assert bool(page.evaluate("window.moved")) == moves, page.evaluate("window.moved")


def test_the_timeline_shows_a_restore_and_goes_to_the_point_that_was_selected(
    browser: Browser, url: str, job: PagesJob
) -> None:
    with open_look(browser) as look:
        visit(look, address(url, "", job))
        look.page.get_by_role("link", name="job", exact=True).click()
        look.page.get_by_role("link", name="Timeline", exact=True).click()
        look.page.get_by_role("button", name="restore").first.wait_for()
        mark = look.page.get_by_role("button", name="savepoint before-upgrade")
        mark.click()
        chosen = look.page.url
        assert "mark=" in chosen
        look.page.get_by_role("link", name="Journal", exact=True).click()
        look.page.go_back()
        look.page.reload()
        assert look.page.url == chosen
        selected = look.page.get_by_role("region", name="Selected point")
        selected.get_by_text(SAVED).first.wait_for()


def tab_to(page: Page, wanted: Locator) -> None:
    """Moves the focus to an element as a person without a mouse does."""
    for _ in range(_MOST_TABS):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{wanted} was not reached by {_MOST_TABS} tabs")


_MOST_TABS = 60


@_slow
def test_a_keyboard_alone_leads_from_the_jobs_to_a_restore(browser: Browser, url: str, job: PagesJob) -> None:
    oldest = job.checkpoints[0]
    with open_look(browser) as look:
        page = look.page
        visit(look, address(url, "", job))
        for name in ("job", "Timeline"):
            tab_to(page, page.get_by_role("link", name=name, exact=True))
            page.keyboard.press("Enter")
            page.locator("[aria-busy=true]").first.wait_for(state="detached")
        # One stop for all marks, among which arrows move.
        page.get_by_role("button", name=f"checkpoint {oldest}, retained").first.wait_for()
        tab_to(page, page.locator("svg [role=button][tabindex='0']").first)
        page.keyboard.press("Home")
        for _ in range(_MOST_TABS):
            if page.locator(":focus").and_(page.get_by_role("button", name=f"checkpoint {oldest}, retained")).count():
                break
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        tab_to(page, page.get_by_role("link", name=f"Restore to here: {oldest}").first)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name=f"to checkpoint {oldest}").wait_for()


@_slow
def test_the_details_of_a_checkpoint_take_the_focus_and_give_it_back(browser: Browser, url: str, job: PagesJob) -> None:
    with open_look(browser) as look:
        page = look.page
        visit(look, address(url, "jobs/{id}", job))
        link = page.get_by_role("table").get_by_role("link", name=str(job.root.head().checkpoint_id), exact=True).first
        link.focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        assert dialog.evaluate("element => element.contains(document.activeElement)")
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert link.evaluate("element => element === document.activeElement")


@pytest.mark.parametrize("error", ["console.error('broken')", "setTimeout(() => { throw new Error('broken') })"])
def test_an_error_in_a_page_fails_its_test(browser: Browser, error: str) -> None:
    with pytest.raises(AssertionError, match="broken"), open_look(browser) as look:
        look.page.evaluate(error)
        look.page.wait_for_function("true")
        look.page.evaluate("new Promise(done => setTimeout(done))")


@_slow
@pytest.mark.parametrize("page", ["", "journal", "jobs/none", "jobs/none/timeline", "nothing"])
@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (375, "dark")])
def test_a_page_without_anything_to_show_is_for_all_readers(
    browser: Browser, page: str, width: int, colours: Literal["light", "dark"]
) -> None:
    with serving(RootCatalog([])) as url, open_look(browser, width=width, colours=colours, expected=["404"]) as look:
        look.page.goto(f"{url}/#/{page}")
        look.page.locator("main [role=alert], main [role=status]:not([aria-busy])").first.wait_for()
        assert look.overflow() <= 0
        assert look.violations() == []


class HostileJob(PagesJob):
    """A job whose texts, and names of folders, are hostile. Its other names begin with the name of the savepoint."""

    def build(self, env: StreamExecutionEnvironment) -> None:
        rows = env.from_source(Growing([Row("a", at) for at in range(self.number)], Row), uid=f"{SAVED}-rows")
        summed = rows.key_by("key").process(Sum(), output=Row, uid=f"{SAVED}-sum")
        summed.sink_to(self.sink(f"{MARKUP}{HIDDEN}"), uid=f"{SAVED}-out")

    def play(self) -> None:
        """Plays a savepoint, a restore, another job file, and a run that fails."""
        self.file = JobFile(HOSTILE, HOSTILE.encode(), datetime.now(UTC))
        self.grow(8)
        self.save(SAVED, reason=HOSTILE, by=f"airflow-user:{HOSTILE}")
        self.grow(8)
        request = RestoreRequest("back", f"claim:{MARKUP}:{HOSTILE}", HOSTILE, f"airflow-user:{HOSTILE}", HOSTILE)
        plan = plan_restore(self, self.build, target=str(self.checkpoints[0]))
        execute_plan(prepared_job(self, self.build), plan, request)
        self.file = JobFile(HOSTILE, HOSTILE.encode() * 2, datetime.now(UTC))
        self.grow(4)
        run = self.prepare(self.build)
        run.start(HOSTILE)
        run.record_failure(UserCodeError(HOSTILE))
        run.abandon()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, HostileJob]]:
    """The address of the pages of a hostile job, and the job."""
    folder = tmp_path_factory.mktemp("hostile") / f"{MARKUP}{HIDDEN}{'w' * 100}"
    folder.mkdir()
    job = HostileJob(folder, name=f"{SAVED}-job")
    job.play()
    with serving(RootCatalog([job.address])) as url:
        yield url, job


def answer_with_hostile_names(route: Route) -> None:
    """A name can have letters and digits only, as far as it was checked where it was given: not by the pages."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace(SAVED, json.dumps(HOSTILE)[1:-1]))


@pytest.mark.parametrize("page", [pytest.param(page, marks=() if "restore" in page else _slow) for page in PAGES])
def test_texts_of_users_are_shown_as_text(browser: Browser, hostile: tuple[str, HostileJob], page: str) -> None:
    url, job = hostile
    with open_look(browser, width=375) as look:
        look.page.route("**/api/v1/**", answer_with_hostile_names)
        visit(look, address(url, page, job))
        look.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        look.page.wait_for_load_state("networkidle")
        text = look.page.locator("body").inner_text()
        named = look.page.evaluate("[...document.querySelectorAll('*')].map(each => `${each.title}${each.ariaLabel}`)")
        assert HOSTILE_NAME in text
        assert not set(HIDDEN) & set("".join([text, look.page.title(), *named]))
        assert look.page.evaluate("window.stolen") is None
        assert look.page.locator("b, img, script:not([src]), [href^=javascript i]").count() == 0
        assert look.overflow() <= 0


@_slow
def test_a_page_survives_a_restart_of_its_server(browser: Browser, job: PagesJob) -> None:
    with open_look(browser, expected=["ERR_CONNECTION_REFUSED"]) as look:
        with serving(RootCatalog([job.address])) as url:
            look.page.clock.install()
            visit(look, address(url, "jobs/{id}", job))
        look.page.clock.fast_forward(11_000)
        look.page.get_by_text("This may be outdated").first.wait_for()
        with serving(RootCatalog([job.address]), port=int(url.rpartition(":")[2])):
            look.page.clock.fast_forward(11_000)
            look.page.get_by_text("This may be outdated").first.wait_for(state="detached")


@_slow
def test_a_job_whose_root_is_gone_says_so(browser: Browser, tmp_path: object, job: PagesJob) -> None:
    folder = job.folder.parent / "gone"
    shutil.copytree(job.address, folder)
    with serving(RootCatalog([str(folder)])) as url, open_look(browser) as look:
        id = job_at(str(folder)).id
        look.page.clock.install()
        visit(look, f"{url}/#/jobs/{id}")
        shutil.rmtree(folder)
        look.page.clock.fast_forward(11_000)
        look.page.get_by_text("The job root cannot be read now").first.wait_for()
        assert look.page.get_by_text(SAVED).count() > 0


@_slow
def test_without_the_token_a_page_asks_for_it(browser: Browser, job: PagesJob) -> None:
    catalog = RootCatalog([job.address])
    with serving(catalog, token="s3cret-of-the-pages") as url, open_look(browser, expected=["401"]) as look:
        look.page.goto(address(url, "jobs/{id}", job))
        field = look.page.get_by_label("Token of the server").first
        field.fill("wrong")
        field.press("Enter")
        look.page.get_by_text("This is not the token of the server").first.wait_for()
        assert look.page.get_by_text(SAVED).count() == 0
        look.page.get_by_label("Token of the server").first.fill(" s3cret-of-the-pages ")
        look.page.get_by_label("Token of the server").first.press("Enter")
        look.page.get_by_text(SAVED).first.wait_for()
