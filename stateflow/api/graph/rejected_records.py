"""The dead letters of a source: rejected records that a row function raises for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stateflow.api.dead_letters import DeadLetter, DeadLetters
from stateflow.api.functions.rich import RowStep, StepKind
from stateflow.api.graph.nodes import RecordsNode, RowsNode, SourceNode
from stateflow.api.hidden_columns import RejectedRecord, UndecodableRecord
from stateflow.api.schema import RowSchema


@dataclass(frozen=True)
class _Raise:
    """A row function that raises for each rejected record, so that the record becomes a dead letter.

    Args:
        reason: as `Source.reason`.
    """

    reason: Callable[[RejectedRecord], str]

    def __call__(self, record: RejectedRecord) -> Iterable[DeadLetter]:
        raise UndecodableRecord(self.reason(record) or record.reason)


def dead_letters_of(source: SourceNode, policy: DeadLetters, reason: Callable[[RejectedRecord], str]) -> RowsNode:
    """Returns the node of a source's dead letters.

    Args:
        policy: how many there may be.
        reason: as `Source.reason`.
    """
    records = RecordsNode(source, RowSchema.of(RejectedRecord), rejected=True)
    step = RowStep(StepKind.FLAT_MAP, _Raise(reason), records.schema, policy, uid=source.uid)
    return RowsNode(records, step.dead_letter_step())
