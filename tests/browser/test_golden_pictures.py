"""Pages look as in their golden pictures, which the documentation shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pytest
from PIL import Image, ImageDraw

from tests.browser.flights_story import FlightsStory
from tests.browser.golden_pictures import MOST_FAR, check_picture, far_apart
from tests.support.browser import ARGUMENTS, CHROMIUM, needs_chromium, open_look

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium
_slow = pytest.mark.slow(reason="opens many pages in a browser")


@dataclass(frozen=True)
class Sight:
    """A page of which there are pictures.

    Attributes:
        address: of the page.
        last: text of it that it shows last.
        height: of the window; as much as the picture needs.
        also: another text that it shows at some time, of another answer.
    """

    address: str
    last: str
    height: int = 900
    also: str = ""


PAGES = {
    "jobs": Sight("", "bookings", 330),
    "state": Sight("jobs/flights", "Restore to here", also="Nothing undone since"),
    "timeline": Sight("jobs/flights/timeline", "Operators, subtasks, files and who needs it", 860),
    "checkpoint": Sight("jobs/flights/timeline?point=46", "running-delay"),
    "run": Sight("jobs/flights/runs/50", "Start-up", 860),
    "points": Sight("jobs/flights/restore", "Use this point"),
    "restore": Sight("jobs/flights/restore?to=before-v2", "files of the target are stored"),
    "savepoints": Sight("jobs/flights/savepoints?from=before-v2&to=monday", "This deletes no checkpoint"),
    "journal": Sight("jobs/flights/journal", "checked with the airline", 560),
    "graph": Sight("jobs/flights/graph", "Physical plan", 820),
}
LOOKS: dict[str, tuple[int, Literal["light", "dark"]]] = {
    "light": (1280, "light"),
    "dark": (1280, "dark"),
    "phone": (375, "light"),
}
_PHONE_HEIGHT = 812


@contextmanager
def opened(browser: Browser, story: tuple[str, FlightsStory], name: str, look: str = "light") -> Iterator[Page]:
    """A page of the story, a while after all that has happened there."""
    sight, (width, colours) = PAGES[name], LOOKS[look]
    height = _PHONE_HEIGHT if look == "phone" else sight.height
    with open_look(browser, width=width, height=height, colours=colours) as opened:
        page = opened.page
        page.clock.set_fixed_time(story[1].ended_at)
        page.goto(f"{story[0]}/#/{sight.address}")
        page.get_by_text(sight.last).first.wait_for()
        page.get_by_text(sight.also or sight.last).first.wait_for()
        page.locator("[aria-busy=true]").first.wait_for(state="detached")
        yield page


@_slow
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_in_its_picture(
    browser: Browser, story: tuple[str, FlightsStory], renews_pictures: bool, name: str, look: str
) -> None:
    with opened(browser, story, name, look) as page:
        check_picture(page, f"{name}-{look}", renews=renews_pictures)


@_slow
@pytest.mark.parametrize(
    ("name", "css"),
    [
        ("timeline", "svg path { display: none }"),
        ("timeline", "svg circle { fill: none !important; stroke: none !important }"),
        ("jobs", "tbody tr:nth-child(2) { display: none }"),
        ("state", "tbody tr:nth-child(2) { visibility: hidden }"),
        ("restore", "[role=alert] { background: none !important }"),
    ],
)
def test_what_is_missing_in_a_page_is_a_difference(
    browser: Browser, story: tuple[str, FlightsStory], name: str, css: str
) -> None:
    with opened(browser, story, name) as page:
        page.add_style_tag(content=css)
        with pytest.raises(AssertionError, match="golden picture"):
            check_picture(page, f"{name}-light", renews=False)


@_slow
@pytest.mark.parametrize("flag", ["--font-render-hinting=full", "--enable-font-antialiasing=false"])
def test_another_rendering_of_letters_is_not_a_difference(
    browser: Browser, story: tuple[str, FlightsStory], flag: str
) -> None:
    other = browser.browser_type.launch(executable_path=CHROMIUM, args=(*ARGUMENTS, flag))
    try:
        for name in PAGES:
            with opened(other, story, name) as page:
                check_picture(page, f"{name}-light", renews=False)
    finally:
        other.close()


@_slow
@pytest.mark.parametrize("family", ["DejaVu Sans Condensed", "DejaVu Serif"])
def test_other_fonts_are_not_a_difference_but_a_page_of_other_colours_is(
    browser: Browser, story: tuple[str, FlightsStory], family: str
) -> None:
    with opened(browser, story, "timeline") as page:
        # Both for the page and for the text that is measured.
        page.evaluate(
            """family => {
                const style = document.createElement("style");
                style.textContent = `* { font-family: "${family}" !important }`;
                document.head.append(style);
                const set = Object.getOwnPropertyDescriptor(CanvasRenderingContext2D.prototype, "font").set;
                Object.defineProperty(CanvasRenderingContext2D.prototype, "font", {
                    set(value) { set.call(this, value.replace(/sans-serif|monospace/, `"${family}"`)); },
                });
            }""",
            family,
        )
        check_picture(page, "timeline-light", renews=False)
        page.add_style_tag(content="* { background: black !important }")
        with pytest.raises(AssertionError, match="golden picture"):
            check_picture(page, "timeline-light", renews=False)


def test_the_share_of_squares_that_are_far_apart() -> None:
    white, marked = Image.new("RGB", (80, 80), "white"), Image.new("RGB", (80, 80), "white")
    assert far_apart(white, marked).mean() == 0
    ImageDraw.Draw(marked).rectangle((8, 8, 15, 15), "black")
    assert far_apart(white, marked).mean() == 0.01 > MOST_FAR
    assert far_apart(white, Image.new("RGB", (80, 88), "white")).mean() == 1
