"""The browser of these tests, and the option that renews pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import open_browser

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
