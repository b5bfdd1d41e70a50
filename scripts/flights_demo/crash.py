"""The kill in the second run: proves that it happened where it should, and that nothing of the batch was committed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flights_demo.airflow_home import launches_below
from flights_demo.job_root import Uncommitted, history, newest_entry, uncommitted
from stateflow import ops
from stateflow_airflow import processes
from stateflow_airflow.launcher import Launch

FAILPOINT = "batch.reported:3"


class NotAsPromised(Exception):
    """The demo claims something that is not so."""


@dataclass(frozen=True)
class Kill:
    """What was found between the death of the first try and the start of the second."""

    driver: int
    exit_code: int | None
    checkpoint_id: int
    generation: int
    left_behind: Uncommitted


def look_for_kill(runs: Path, job_root: Path) -> Kill | None:
    """What a killed first try left; None while it has not died yet.

    Raises NotAsPromised when it did not die from SIGKILL at the failpoint, or when something of the batch that it was
    in was committed.
    """
    marker = next(iter(runs.rglob("failpoint-reached")), None)
    launch = _first_launch(marker.parent) if marker else None
    if marker is None or launch is None or launch.process():
        return None
    driver = int(marker.read_text())
    head = ops.describe(str(job_root))
    record = next(record for record in history(job_root) if record.checkpoint_id == head.checkpoint_id)
    kill = Kill(
        driver=driver,
        exit_code=launch.exit_code(),
        checkpoint_id=head.checkpoint_id,
        generation=record.generation,
        left_behind=uncommitted(job_root, record.generation, record.ordinal),
    )
    _check(kill, newest_entry(job_root))
    return kill


def _first_launch(folder: Path) -> Launch | None:
    return next(iter(launches_below(folder)), None)


def _check(kill: Kill, newest: int) -> None:
    promises = {
        "the driver has ended": processes.look(kill.driver) is None,
        "SIGKILL ended it": kill.exit_code == -9,
        "its batch's files are there": kill.left_behind.files > 0,
        "no log entry follows the last checkpoint's COMMIT": newest == kill.checkpoint_id,
    }
    broken = [promise for promise, kept in promises.items() if not kept]
    if broken:
        raise NotAsPromised(f"not so: {'; '.join(broken)}. Found: {kill}, newest entry {newest}")
