"""The trigger by which deferred sensors wait without a worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow_airflow.sensors.checks import Check, CheckArguments, Outcome, Status

_READERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="stateflow-sensor")
"""Threads of this process that read job roots. A storage that does not respond blocks these threads only, not the
triggers of other operators, which share the event loop and its default threads."""


class FreshnessTrigger(BaseTrigger):
    """Checks a job root at an interval; its only event has the outcome that ends the wait.

    The check runs in a thread. If the triggerer is restarted, the wait continues elsewhere until the same time.

    Args:
        check: the check, as of `Check.to_arguments`.
        poke_interval: seconds between two checks.
        until: ISO 8601 timestamp after which a stale outcome ends the wait.
    """

    def __init__(self, check: CheckArguments, poke_interval: float, until: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.check = check
        self.poke_interval = poke_interval
        self.until = until

    def serialize(self) -> tuple[str, dict[str, object]]:
        arguments = {"check": self.check, "poke_interval": self.poke_interval, "until": self.until}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        check, until = Check.from_arguments(self.check), datetime.fromisoformat(self.until)
        while True:
            outcome, remaining = await asyncio.get_running_loop().run_in_executor(_READERS, _run, check, until)
            if outcome.status is not Status.STALE or remaining <= 0:
                yield TriggerEvent(outcome.to_event())
                return
            self.log.info("Waiting: %s", outcome.text)
            await asyncio.sleep(min(self.poke_interval, remaining))


def _run(check: Check, until: datetime) -> tuple[Outcome, float]:
    """Returns the outcome of the check, and the seconds that remain after it. Imports the library in the thread."""
    from stateflow.clock import SystemClock

    clock = SystemClock()
    outcome = check.run(clock.now())
    return outcome, (until - clock.now()).total_seconds()
