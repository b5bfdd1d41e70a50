"""How long a person waits in Chromium for pages of a job with 10,000 checkpoints, and for what they click there.

The job root is on disk, and in a bucket whose server waits 20 ms before it reads each request; there also with a server
of pages that was started just before, and has to read the history. Each page is loaded several times, each time by a
browser that has nothing of it in its cache. *First paint* is the browser's own first contentful paint; *shown* is when
the page shows the job's data. An interaction takes from the press of the mouse to the next frame that shows its effect,
as the browser's Event Timing measures it, in steps of 8 ms.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import httpx

from benchmarks.pages import SAVED, Size, SyntheticJob, served
from benchmarks.results import write_result
from stateflow.operations.job_root import open_root
from stateflow.storage import MemoryStorage, open_storage
from stateflow.ui.catalog import job_at
from tests.servers.running import s3_server
from tests.support.browser import open_browser, open_look

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIMITS_MS = {"first_paint": 1000, "shown": 1000, "interaction": 100}
_SIZE = Size(checkpoints_of_run=20)
_LOADS = 9
# An event shorter than 16 ms is not reported: it counts as 0.
_OBSERVE = """
window.slowest = 0;
new PerformanceObserver(list => {
    for (const entry of list.getEntries()) window.slowest = Math.max(window.slowest, entry.duration);
}).observe({type: "event", durationThreshold: 16, buffered: true});
"""
_AFTER_FRAMES = (
    "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
)
Act = Callable[["Page"], None]


@dataclass(frozen=True)
class Visit:
    """A page and what a person does there.

    Attributes:
        address: of the page; `id` is the job, and `newest` its newest checkpoint.
        shown: text that the page shows once it has its data.
        acts: what a person does, by name, in this order.
    """

    address: str
    shown: str
    acts: dict[str, Act]


def _press(name: str) -> Act:
    return lambda page: page.get_by_role("button", name=name, exact=True).first.click()


def _choose(page: Page) -> None:
    page.get_by_text("Restore to here").first.click()


VISITS = {
    "jobs": Visit("", "Input waiting", {"open the actions": lambda page: page.locator("summary").first.click()}),
    "state": Visit(
        "jobs/{id}",
        "Restore to here",
        {
            "charts of all": _press("All"),
            "charts closer": _press("Zoom in"),
            "older points": _press("Older"),
            "newer points": _press("Newer"),
            "details of a checkpoint": lambda page: page.locator("tbody a[href*='point=']").first.click(),
        },
    ),
    "timeline": Visit(
        "jobs/{id}/timeline",
        "Operators, subtasks, files and who needs it",
        {
            "select a point": lambda page: page.locator("svg [role=button]").nth(3).click(),
            "all": _press("All"),
            "closer": _press("Zoom in"),
            "collapse runs": _press("Collapse runs"),
            "expand runs": _press("Collapse runs"),
            "read 2,000 records": _press("Show older records"),
            "expand or collapse 2,000 records": _press("Collapse runs"),
            "all of 2,000 records": _press("All"),
        },
    ),
    "checkpoint": Visit("jobs/{id}?point={newest}", "operator-4", {}),
    "graph": Visit(
        "jobs/{id}/graph",
        "Physical plan",
        {
            "select an operator": lambda page: page.locator("svg [role=button]").nth(1).click(),
            "open the connections": lambda page: page.get_by_text("Connections as a table").click(),
        },
    ),
    "restore": Visit("jobs/{id}/restore", "Restore to here", {"choose a point": _choose}),
    "plan of a restore": Visit(
        "jobs/{id}/restore?to={newest}",
        "goes from checkpoint",
        {
            "open the options": lambda page: page.get_by_text("2. Options").click(),
            "keep a table": lambda page: page.get_by_label("totals").first.click(),
        },
    ),
    "savepoints": Visit("jobs/{id}/savepoints", SAVED[1], {}),
    "journal": Visit("jobs/{id}/journal", "before the upgrade", {}),
    "journal of all jobs": Visit("journal", "before the upgrade", {}),
    "run": Visit("jobs/{id}/runs/1", "Job file", {}),
}


Figures = dict[str, list[float]]
"""The milliseconds of each load and interaction, by name."""


def run(folder: Path, size: Size = _SIZE, loads: int = _LOADS) -> Path:
    """Measures and writes ``browser.json``."""
    job = SyntheticJob(MemoryStorage(), size)
    job.fill()
    disk, bucket = folder / "flights", folder / "bucket"
    bucket.mkdir()
    job.copy_to(open_storage(str(disk)))
    with open_browser() as browser:
        found = {"disk": _of_one_server(browser, str(disk), loads)}
        with s3_server(bucket, "bucket", size.delay_ms) as variables, mock.patch.dict("os.environ", variables):
            job.copy_to(open_storage(str(bucket / "data" / "bucket" / "flights")))
            found["bucket"] = _of_one_server(browser, "s3://bucket/flights", loads)
            found["bucket, new server"] = _of_new_servers(browser, "s3://bucket/flights", loads)
    return write_result(
        "browser",
        {
            "checkpoints": size.checkpoints,
            "subtasks": size.subtasks,
            "loads": loads,
            "load_1m": round(os.getloadavg()[0], 1),
            "limits_ms": LIMITS_MS,
            "pages": {place: {name: _summary(page) for name, page in pages.items()} for place, pages in found.items()},
            # A median: other programs on the machine delay some of the loads.
            "missed": [
                f"{place}: {name}: {what}"
                for place, pages in found.items()
                for name, page in pages.items()
                for what, milliseconds in page.items()
                if _median(milliseconds) > LIMITS_MS.get(what, LIMITS_MS["interaction"])
            ],
        },
    )


def _summary(page: Figures) -> dict[str, dict[str, float]]:
    return {what: {"median_ms": _median(found), "max_ms": round(max(found), 1)} for what, found in page.items()}


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 1)


def _addresses(job_root: str) -> dict[str, str]:
    """Returns the address of each page, below those of the server."""
    newest = open_root(job_root).head().checkpoint_id
    return {name: f"#/{visit.address.format(id=job_at(job_root).id, newest=newest)}" for name, visit in VISITS.items()}


def _of_one_server(browser: Browser, job_root: str, loads: int) -> dict[str, Figures]:
    """Loads each page several times, once the server knows all of the history."""
    id, addresses = job_at(job_root).id, _addresses(job_root)
    with served(job_root) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            while not client.get(f"api/v1/jobs/{id}").json()["history_complete"]:
                pass
        return {name: _measured(browser, f"{url}/{addresses[name]}", visit, loads) for name, visit in VISITS.items()}


def _of_new_servers(browser: Browser, job_root: str, loads: int) -> dict[str, Figures]:
    """Loads each page several times, each time by a server that has not read the history."""
    addresses, pages = _addresses(job_root), dict[str, Figures]()
    for name, visit in VISITS.items():
        pages[name] = {}
        for _ in range(loads):
            with served(job_root) as (url, _process):
                found = _measured(browser, f"{url}/{addresses[name]}", replace(visit, acts={}), loads=1)
            for what, milliseconds in found.items():
                pages[name].setdefault(what, []).extend(milliseconds)
    return pages


def _measured(browser: Browser, address: str, visit: Visit, loads: int) -> Figures:
    """Loads a page several times, and does there what a person does."""
    found: Figures = {}
    for _ in range(loads):
        with open_look(browser) as look:
            page = look.page
            page.add_init_script(_OBSERVE)
            page.goto(address, wait_until="commit")
            page.get_by_text(visit.shown).first.wait_for()
            found.setdefault("shown", []).append(page.evaluate("performance.now()"))
            paints = page.evaluate("performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)")
            found.setdefault("first_paint", []).append(paints[0])
            for name, act in visit.acts.items():
                page.wait_for_load_state("networkidle")
                page.evaluate("window.slowest = 0")
                act(page)
                page.evaluate(_AFTER_FRAMES)
                found.setdefault(name, []).append(page.evaluate("window.slowest"))
    return found
