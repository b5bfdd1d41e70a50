"""Bugs of the Kafka sink."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from stateflow.connectors.kafka import client
from stateflow.connectors.kafka.client import Transactions
from stateflow.runtime.driver.batch_runner import CompletedBarrier
from stateflow.runtime.driver.job_run import JobRun
from stateflow.state.handles import Committable
from tests.support.mutants.registry import Mutants

if TYPE_CHECKING:
    from confluent_kafka import Producer

MUTANTS = Mutants()

_send_token = Transactions._send_token


@MUTANTS.plant("token-after-records", (Transactions, "_send_token"))
def _send_token_later(self: Transactions, producer: Producer, token: int, successor: str = "") -> None:
    """The records of a checkpoint are committed before its token, not in one transaction with it."""
    producer.commit_transaction()
    producer.begin_transaction()
    _send_token(self, producer, token, successor)


@MUTANTS.plant("own-transactional-id", (Transactions, "_start_producer"))
def _start_producer_that_fences_nothing(self: Transactions) -> None:
    """Each driver has a transactional id of its own, so that it fences no other driver."""
    from confluent_kafka import Producer

    options = {**client._DEFAULTS, **self._options, **self._connection.options(), "log_level": 0}
    producer = Producer({**options, "transactional.id": f"{self._name}-{uuid4().hex}"})
    producer.init_transactions(client.TIMEOUT_SECONDS)
    self._producer, self._token = producer, self._read(client.TIMEOUT_SECONDS)[1]


@MUTANTS.plant("early-records", (JobRun, "_publish_early"))
def _publish_early(self: JobRun, barrier: CompletedBarrier) -> dict[str, list[Committable]]:
    """Output is published before the COMMIT of its checkpoint."""
    self._context.publisher.publish_early(self.head, barrier.output)
    return {}
