"""Approval of what a DAG asks for: the demo's user answers the question of the task `approve`."""

from __future__ import annotations

from flights_demo.client import AirflowClient, AirflowError
from flights_demo.polling import Stopwatch, poll
from flights_demo.screen import StatusLine

_TIMEOUT_SECONDS = 180.0
_DEFERRAL_SECONDS = 5.0
"""Time that Airflow needs to defer a task before it accepts a response; an earlier response is lost."""


def approve(client: AirflowClient, dag_id: str, run_id: str, status_line: StatusLine) -> None:
    """Waits for the question of a DAG run, and approves.

    Raises AirflowError when the run fails or does not ask.
    """

    def asks() -> bool:
        state = client.task(dag_id, run_id, "approve").state
        status_line(f"{dag_id} waits for approval: {state or 'not yet'}")
        if client.run_state(dag_id, run_id) == "failed":
            raise AirflowError(f"{dag_id} failed before it asked for approval")
        return state == "awaiting_input"

    if not poll(asks, _TIMEOUT_SECONDS, interval=0.5):
        raise AirflowError(f"{dag_id} did not ask for approval in {_TIMEOUT_SECONDS:.0f} s")
    watch = Stopwatch()
    poll(lambda: watch.seconds > _DEFERRAL_SECONDS, 2 * _DEFERRAL_SECONDS)
    client.answer(dag_id, run_id, "approve", "Approve", {"note": "seen"})
