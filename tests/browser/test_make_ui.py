"""``make ui`` ends on the timeline: the address that it prints leads there, through the login."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from flights_demo.airflow_home import USER, launches_below
from flights_demo.client import AirflowClient
from flights_demo.layout import Layout
from flights_demo.polling import poll
from flights_demo.upgrade import deploy

from tests.airflow.system.live_airflow import PATIENCE
from tests.support.browser import needs_chromium, open_look
from tests.ui.pages_job import PagesJob

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow(reason="starts all of Airflow and a browser"), pytest.mark.airflow, needs_chromium]
ROOT = Path(__file__).resolve().parents[2]
# As on the command line, in another folder.
PROGRAM = """
import sys, demo
from pathlib import Path
from flights_demo.layout import Layout
demo.Layout = lambda: Layout(Path(sys.argv[1]))
sys.exit(demo.main(["ui"]))
"""


@pytest.fixture
def results(tmp_path: Path) -> Layout:
    """What a demo leaves: a job root with a restore, DAGs, and Airflow's database."""
    layout = Layout(tmp_path / "demo")
    job = PagesJob(tmp_path / "job")
    job.grow(8)
    base = job.checkpoints[0]
    job.grow(8)
    job.go_back(base)
    shutil.copytree(job.address, layout.job_root)
    deploy(layout)
    layout.airflow_home().migrate()
    return layout


@pytest.fixture
def program(results: Layout) -> Iterator[subprocess.Popen[str]]:
    # Nothing is to run by itself.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "STATEFLOW_RETENTION_SCHEDULE": ""}
    command = [sys.executable, "-c", PROGRAM, str(results.root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        yield program
        program.send_signal(signal.SIGINT)


def said_before(program: subprocess.Popen[str], last: str) -> str:
    """What a program has printed, up to the line with a text. It ends by itself if Airflow does not start."""
    assert program.stdout is not None
    lines = []
    for line in program.stdout:
        lines.append(line)
        if last in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def test_make_ui_ends_on_the_timeline(results: Layout, program: subprocess.Popen[str], browser: Browser) -> None:
    recipe = subprocess.run(["make", "--dry-run", "ui"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert recipe.splitlines()[-1].endswith("python scripts/demo.py ui")
    said = said_before(program, "Ctrl-C")
    (timeline,) = re.findall(r"Timeline: (\S+)", said)
    (password,) = re.findall(r"password: (\S+)", said)
    # Unlike after a demo, Airflow has to read the DAG first.
    client = AirflowClient(timeline.partition("/plugin")[0], USER, password)
    assert poll(lambda: client.has_dag("flights"), PATIENCE)
    with open_look(browser, expected=["401"]) as look:
        page = look.page
        page.goto(timeline)
        page.locator("input[name=username]").fill(USER)
        page.locator("input[name=password]").fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/timeline")
        page.get_by_role("button", name="restore").first.wait_for()
    program.send_signal(signal.SIGINT)
    assert program.wait(PATIENCE) == 0
    assert launches_below(results.airflow) and not results.airflow_home().is_running()
