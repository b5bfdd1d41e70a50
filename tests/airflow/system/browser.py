"""Airflow's web interface in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

# Milliseconds; a page takes ten seconds and more on a busy machine.
_PATIENCE = 180_000.0
# Nothing of the browser may ask a server on the internet; everything that is looked at is on this machine.
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


def chromium() -> str | None:
    """Path of Debian's Chromium; None where `make setup` could not install it."""
    return shutil.which("chromium")


@contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """A page of a new browser, whose files go to a new folder."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium(), args=_ARGUMENTS, viewport={"width": 1400, "height": 1400}
        )
        context.set_default_timeout(_PATIENCE)
        try:
            yield context.pages[0]
        finally:
            context.close()


class AirflowPages:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url

    def log_in(self, user: str, password: str) -> None:
        self.page.goto(f"{self._url}/auth/login")
        self.page.locator("input[name=username]").fill(user)
        self.page.locator("input[name=password]").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self._url}/")

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
        self._field(name).fill(value)

    def can_send(self) -> bool:
        return self.dialog.get_by_role("button", name="Trigger").is_enabled()

    def asks_to_unpause(self) -> bool:
        return self.dialog.get_by_text("Unpause").count() > 0

    def leave_paused(self) -> None:
        self.dialog.get_by_text("Unpause").click()

    def send(self) -> None:
        from playwright.sync_api import expect

        button = self.dialog.get_by_role("button", name="Trigger")
        expect(button).to_be_enabled(timeout=_PATIENCE)
        # By the keyboard: the notification of the run before can cover the button, and stays while the mouse is on it.
        button.press("Enter")
        self.dialog.wait_for(state="detached")

    def _field(self, name: str) -> Locator:
        return self.dialog.locator(f"[name=element_{name}]")
