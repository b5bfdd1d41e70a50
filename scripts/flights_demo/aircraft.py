"""Runs the job that reads Kafka, while the job that reads files is running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flights_demo.broker import Broker
from flights_demo.client import AirflowError
from flights_demo.crash import DemoCheckFailed
from flights_demo.deliveries import delivery_number, of_quarter
from flights_demo.expected import Row
from flights_demo.polling import poll
from flights_demo.quarters import DemoContext
from flights_demo.screen import StatusLine

DAG, TASK = "aircraft", "run"
KILL = "publish.after:2"
_TIMEOUT_SECONDS = 240.0


@dataclass(frozen=True)
class AircraftRun:
    """A DAG run that was triggered.

    Attributes:
        run_id: id of the DAG run.
        flights: number of records that it reads.
        kill: whether its first try is killed.
    """

    run_id: str
    flights: int
    kill: bool


def start_run(demo: DemoContext, broker: Broker, flights: list[Row], half: int, kill: bool = False) -> AircraftRun:
    """Sends the flights of a half of the year, and triggers the DAG.

    Args:
        half: 1 or 2.
        kill: kill the first try after its second commit to the table.
    """
    quarters = (2 * half - 1, 2 * half)
    deliveries = {delivery.number for quarter in quarters for delivery in of_quarter(quarter)}
    sent = [row for row in flights if delivery_number(row["time"].month, row["time"].day) in deliveries]
    broker.send(sent)
    if half == 1:
        demo.client.unpause(DAG)
    run_id = f"half-{half}"
    demo.client.trigger(DAG, run_id, {"failpoint": KILL} if kill else {})
    return AircraftRun(run_id, len(sent), kill)


def wait_for_run(demo: DemoContext, run: AircraftRun, status_line: StatusLine) -> dict[str, Any]:
    """Waits for the end of a run; returns the result of its task.

    Raises:
        AirflowError: the run failed.
        DemoCheckFailed: it was not killed as expected, or did not read all records.
    """

    def ended() -> bool:
        status_line(f"{run.run_id}: try {demo.client.task(DAG, run.run_id, TASK).number or 1}")
        return demo.client.run_state(DAG, run.run_id) in ("success", "failed")

    if not poll(ended, _TIMEOUT_SECONDS, interval=0.4):
        raise AirflowError(f"run {run.run_id} of {DAG} did not end in {_TIMEOUT_SECONDS:.0f} s")
    task = demo.client.task(DAG, run.run_id, TASK)
    if task.state != "success":
        raise AirflowError(f"run {run.run_id} of {DAG} ended as {task.state}; its logs are below {demo.layout.runs}")
    if task.number != (2 if run.kill else 1):
        raise DemoCheckFailed(f"run {run.run_id} of {DAG} took {task.number} tries")
    returned = dict(demo.client.returned(DAG, run.run_id, TASK))
    if not run.kill and returned["rows_in"] != run.flights:
        raise DemoCheckFailed(f"run {run.run_id} of {DAG} read {returned['rows_in']} of {run.flights} records")
    return returned
