"""How long a person waits in Chromium for pages of a job with 10,000 checkpoints, and for what they click there.

Each page is loaded several times, each time by a browser that has nothing of it in its cache. *First paint* is the
browser's own first contentful paint; *shown* is when the page shows the job's data. An interaction takes from the press
of the mouse to the next frame that shows its effect, as the browser's Event Timing measures it, in steps of 8 ms.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from benchmarks.pages import Size, SyntheticJob, served
from benchmarks.results import write_result
from stateflow.storage import MemoryStorage, open_storage
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
        address: of the page, below the job.
        shown: text that the page shows once it has its data.
        acts: what a person does, by name, in this order.
    """

    address: str
    shown: str
    acts: dict[str, Act]


def _press(name: str) -> Act:
    return lambda page: page.get_by_role("button", name=name, exact=True).first.click()


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
}


def run(folder: Path, size: Size = _SIZE) -> Path:
    """Measures and writes ``browser.json``."""
    root = folder / "flights"
    job = SyntheticJob(MemoryStorage(), size)
    job.fill()
    job.copy_to(open_storage(str(root)))
    with served(str(root)) as (url, _), open_browser() as browser:
        id = _warmed(url)
        pages = {
            name: _measured(browser, f"{url}/#/{visit.address.format(id=id)}", visit) for name, visit in VISITS.items()
        }
    return write_result(
        "browser",
        {
            "checkpoints": size.checkpoints,
            "subtasks": size.subtasks,
            "loads": _LOADS,
            "load_1m": round(os.getloadavg()[0], 1),
            "limits_ms": LIMITS_MS,
            "pages": {
                name: {what: {"median_ms": _median(found), "max_ms": max(found)} for what, found in page.items()}
                for name, page in pages.items()
            },
            # A median: other programs on the machine delay some of the loads.
            "missed": [
                f"{name}: {what}"
                for name, page in pages.items()
                for what, found in page.items()
                if _median(found) > LIMITS_MS.get(what, LIMITS_MS["interaction"])
            ],
        },
    )


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 1)


def _warmed(url: str) -> str:
    """Returns the id of the job once the server knows all of its history: this is not about its first look."""
    with httpx.Client(base_url=url, timeout=60) as client:
        id = str(client.get("api/v1/jobs").json()["jobs"][0]["id"])
        while not client.get(f"api/v1/jobs/{id}").json()["history_complete"]:
            pass
    return id


def _measured(browser: Browser, address: str, visit: Visit) -> dict[str, list[float]]:
    """Loads a page several times; returns the milliseconds of each load and interaction."""
    found: dict[str, list[float]] = {}
    for _ in range(_LOADS):
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
