"""A real browser, whose pages must have no errors and no violation of the rules for readers with disabilities."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from stateflow.ui.catalog import RootCatalog
from stateflow.ui.server import PagesServer, PagesSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
"""Path of Debian's Chromium; None where `make setup` could not install it."""
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium was not found: `make setup` installs it")
# Nothing of the browser may ask a server on the internet; everything that is looked at is on this machine.
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
_MOVING = """part => [part, ...part.querySelectorAll("*")].filter(element => {
    const { transitionDuration, transitionProperty, animationName } = getComputedStyle(element);
    const fades = transitionProperty !== "none" && /[1-9]/.test(transitionDuration);
    return fades || animationName !== "none";
}).map(element => element.outerHTML.slice(0, 120))"""
PATIENCE_MS = 180_000.0
"""How long a page may take; ten seconds and more on a busy machine."""
_AXE = Path(__file__).resolve().parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
needs_axe = pytest.mark.skipif(not _AXE.exists(), reason="axe was not found: `make setup` installs it where Node is")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser; each test opens its pages in a context of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Look:
    """A page of the browser, and the errors that it has reported.

    Attributes:
        expected: parts of errors that the test causes.
    """

    page: Page
    expected: Sequence[str] = ()
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self._note(str(error)))

    def _note(self, text: str) -> None:
        if not any(each in text for each in self.expected):
            self.errors.append(text)

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def moving(self, within: str) -> list[str]:
        """The elements of a part of the page that its styles let fade or move."""
        return list(self.page.locator(within).first.evaluate(_MOVING))

    def violations(self, within: str = "html") -> list[tuple[str, list[str]]]:
        """The rules of axe that a part of the page violates, with the elements that do."""
        self.page.evaluate(_AXE.read_text())
        found: dict[str, Any] = self.page.evaluate("part => axe.run(part)", within)
        return [
            (each["id"], [f"{node['html']} {node['failureSummary']}" for node in each["nodes"]])
            for each in found["violations"]
        ]


@contextmanager
def open_look(
    browser: Browser,
    *,
    width: int = 1280,
    height: int = 900,
    colours: Literal["light", "dark"] = "light",
    locale: str = "en-US",
    time_zone: str = "UTC",
    motion: Literal["reduce", "no-preference"] = "reduce",
    expected: Sequence[str] = (),
    **options: Any,
) -> Iterator[Look]:
    """A page in a new context; afterwards, it must have reported no error that was not expected."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=colours,
        reduced_motion=motion,
        locale=locale,
        timezone_id=time_zone,
        **options,
    )
    context.set_default_timeout(PATIENCE_MS)
    try:
        look = Look(context.new_page(), expected)
        yield look
        assert look.errors == [], look.errors
    finally:
        context.close()


@contextmanager
def serving(catalog: RootCatalog, port: int = 0, token: str = "") -> Iterator[str]:
    """The URL of a server of pages that runs meanwhile."""
    with PagesServer(catalog, PagesSettings(port=port, token=token)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server.url.rstrip("/")
        finally:
            server.stop()
            thread.join()


def log_in(page: Page, url: str, user: str, password: str) -> None:
    """Logs in to an Airflow."""
    page.goto(f"{url}/auth/login")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/")
