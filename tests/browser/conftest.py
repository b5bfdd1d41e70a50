"""The browser of these tests, the pages of stories, and the option that renews pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.flights_story import FlightsStory, StoryCatalog, play_stories
from tests.support.browser import open_browser, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of `make screenshots`; without it, pictures are compared, and nothing is written."""
    group = parser.getgroup("pictures of the pages")
    group.addoption("--renew-pictures", action="store_true", help="write the pictures instead of comparing them")


@pytest.fixture(scope="session")
def renews_pictures(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("renew_pictures", False))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, FlightsStory]]:
    """The address of the pages of stories, and the longest one."""
    stories = play_stories(tmp_path_factory.mktemp("stories"))
    with serving(StoryCatalog(*stories)) as url:
        for each in stories:
            # A list of jobs shows what it knows after a quarter of a second; the state of a job waits for all of it.
            assert httpx.get(f"{url}/api/v1/jobs/{each.folder.name}", timeout=60).json()["history_complete"]
        yield url, stories[0]
