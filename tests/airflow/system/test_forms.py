"""The trigger form of every DAG, in a real browser: it can be filled in and sent, what was entered arrives, and wrong
values do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flights_demo.airflow_home import USER

from tests.airflow.conftest import REPOSITORY
from tests.airflow.system.live_airflow import Client, live_airflow
from tests.support.browser import ARGUMENTS, CHROMIUM, PATIENCE_MS, log_in, needs_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow(reason="starts Airflow and a browser"), pytest.mark.airflow, needs_chromium]

DAGS = [
    f"{name}{suffix}"
    for name in ("flights", "fleet", "aircraft")
    for suffix in ("", "_savepoint", "_retention", "_recovery")
]
WRONG = {
    "flights": ("failpoint", "batch.reported:x"),
    "flights_savepoint": ("name", "before v2"),
    "flights_retention": ("retain", "0"),
    "flights_recovery": ("new_names", "old"),
}
"""A wrong value for a field of each form."""
DEFAULTS, ENTRIES = json.loads((Path(__file__).parents[1] / "data" / "forms.json").read_text()).values()
"""Conf of a DAG run whose form was sent as it was, of the families' DAGs under their suffix; and what is entered."""


@contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """A page of a new browser, whose files go to a new folder."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=ARGUMENTS, viewport={"width": 1400, "height": 1400}
        )
        context.set_default_timeout(PATIENCE_MS)
        try:
            yield context.pages[0]
        finally:
            context.close()


class AirflowPages:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url

    def open_form(self, dag_id: str) -> TriggerForm:
        # By the menu: to load the whole interface again takes seconds.
        self.page.locator("a[href='/dags']").first.click()
        link = self.page.locator(f"a[data-testid=dag-id][href='/dags/{dag_id}']")
        card = link.locator("xpath=ancestor::*[.//button[@data-testid='trigger-dag-button']][1]")
        card.get_by_test_id("trigger-dag-button").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Trigger").wait_for()
        return TriggerForm(dialog)


class TriggerForm:
    def __init__(self, dialog: Locator) -> None:
        self.dialog = dialog

    def fields(self, wanted: Iterable[str]) -> set[str]:
        """Names of the params that it asks for, as soon as those that are wanted are among them."""
        for name in wanted:
            self._field(name).wait_for(state="attached")
        names = self.dialog.locator("[name^=element_]").evaluate_all("all => all.map(e => e.name)")
        return {name.removeprefix("element_") for name in names}

    def fill(self, name: str, value: str) -> None:
        self._show(name)
        self._field(name).fill(value)

    def shown(self) -> set[str]:
        """Names of the params in sections that are not folded."""
        names = self.fields(())
        return {name for name in names if self._section(name).get_attribute("aria-expanded") == "true"}

    def _show(self, name: str) -> None:
        """Opens the section of a param; Airflow then folds the others."""
        section = self._section(name)
        if section.get_attribute("aria-expanded") != "true":
            section.click()

    def _section(self, name: str) -> Locator:
        item = "ancestor::*[@data-scope='accordion'][@data-part='item'][1]"
        return self._field(name).locator(f"xpath={item}//*[@data-part='item-trigger']")

    def can_send(self) -> bool:
        return self.dialog.get_by_role("button", name="Trigger").is_enabled()

    def asks_to_unpause(self) -> bool:
        return self._unpause().count() > 0

    def leave_paused(self) -> None:
        self._unpause().click()

    def _unpause(self) -> Locator:
        # Descriptions of fields speak of unpausing, too.
        return self.dialog.get_by_text(re.compile("^Unpause"))

    def send(self) -> None:
        self._press()
        self.dialog.wait_for(state="detached")

    def error(self) -> str:
        """Sends the form; returns the error that the form then shows."""
        self._press()
        message = self.dialog.get_by_text("Invalid input for param")
        message.wait_for()
        return message.inner_text()

    def _press(self) -> None:
        from playwright.sync_api import expect

        button = self.dialog.get_by_role("button", name="Trigger")
        expect(button).to_be_enabled(timeout=PATIENCE_MS)
        # By the keyboard: the notification of the run before can cover the button, and stays while the mouse is on it.
        button.press("Enter")

    def close(self) -> None:
        self.dialog.press("Escape")
        self.dialog.wait_for(state="detached")

    def _field(self, name: str) -> Locator:
        return self.dialog.locator(f"[name=element_{name}]")


@dataclass(frozen=True)
class Web:
    """Airflow with the DAGs of this repository, and a browser; no DAG run begins."""

    client: Client
    pages: AirflowPages

    def runs(self, dag_id: str) -> int:
        return int(self.client.call("GET", f"dags/{dag_id}/dagRuns")["total_entries"])

    def newest_conf(self, dag_id: str) -> dict[str, Any]:
        runs = self.client.call("GET", f"dags/{dag_id}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
        return dict(runs[0]["conf"])


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("forms")
    environment = {"STATEFLOW_HOME": str(folder), "STATEFLOW_RETENTION_SCHEDULE": ""}
    with (
        live_airflow(folder, REPOSITORY / "dags", environment, ("api-server", "dag-processor")) as client,
        open_page(folder / "chromium") as page,
    ):
        client.wait_for_dags(*DAGS)
        pages = AirflowPages(page, client.home.url)
        log_in(page, client.home.url, USER, client.home.password)
        yield Web(client, pages)


@pytest.mark.parametrize("dag_id", DAGS)
def test_a_form_can_be_sent_and_what_was_entered_arrives(web: Web, dag_id: str) -> None:
    name, _, suffix = dag_id.partition("_")
    wanted = DEFAULTS[suffix or name] | ENTRIES.get(dag_id, {})
    form = web.pages.open_form(dag_id)
    assert form.fields(wanted) == set(wanted)
    # Only what a recovery goes back to, and why, has to be entered.
    assert form.can_send() is (suffix != "recovery")
    for entry, value in ENTRIES.get(dag_id, {}).items():
        form.fill(entry, value)
    assert form.can_send()
    # What has no schedule is not paused: a trigger of a fresh Airflow starts it.
    if suffix in ("", "retention"):
        form.leave_paused()
    else:
        assert not form.asks_to_unpause()
    form.send()
    assert web.newest_conf(dag_id) == wanted


@pytest.mark.parametrize("dag_id", WRONG)
def test_a_wrong_value_is_refused_in_the_form_and_makes_no_dag_run(web: Web, dag_id: str) -> None:
    before = web.runs(dag_id)
    form = web.pages.open_form(dag_id)
    for entry, value in ENTRIES.get(dag_id, {}).items():
        form.fill(entry, value)
    name, value = WRONG[dag_id]
    form.fill(name, value)
    error = form.error().partition("\n")[0]
    assert f"param {name}:" in error and error.endswith("was expected")
    assert web.runs(dag_id) == before
    form.close()


def test_fields_that_are_seldom_needed_are_folded(web: Web) -> None:
    form = web.pages.open_form("flights_recovery")
    form.fields(["target"])
    assert form.shown() == {"target", "reason", "sinks", "run"}
    form.close()


def test_every_pool_that_a_task_needs_exists(web: Web) -> None:
    pools = {pool["name"] for pool in web.client.call("GET", "pools")["pools"]}
    needed = {task["pool"] for dag in DAGS for task in web.client.call("GET", f"dags/{dag}/tasks")["tasks"]}
    assert needed and needed <= pools
