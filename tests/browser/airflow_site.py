"""A real Airflow whose users look at the pages of jobs in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.ui.catalog import job_at
from tests.airflow.system.live_airflow import Client
from tests.support.browser import Look, log_in, open_look

if TYPE_CHECKING:
    from playwright.sync_api import Browser

USERS = {"uma": "op", "oscar": "op", "nils": "user", "vera": "viewer"}
"""With the administrator, a user of each role."""


@dataclass(frozen=True)
class Site:
    """An Airflow with jobs, each in a folder of its name, and a browser.

    Attributes:
        folder: has the folders of the jobs.
    """

    folder: Path
    client: Client
    browser: Browser
    url: str

    def id_of(self, name: str) -> str:
        return job_at(str(self.folder / name / "root")).id

    def address(self, name: str, page: str = "") -> str:
        """The address of a page of a job."""
        return f"{self.url}/plugin/stateflow/jobs/{self.id_of(name)}{page}"

    @contextmanager
    def as_user(self, user: str, **options: Any) -> Iterator[Look]:
        """A page of a user who has logged in; the options are those of `open_look`."""
        with open_look(self.browser, **options) as look:
            log_in(look.page, self.url, user, self.client.home.password)
            yield look
