"""The report of a task to the driver about one barrier."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from datetime import datetime

import msgspec

from stateflow import errors
from stateflow.checkpoint.log.documents import TimeSpan
from stateflow.errors import StateflowError, UserCodeError, cut
from stateflow.state.handles import Committable, Document, OperatorPart, StateSchema, SubtaskState
from stateflow.types.decoders import msgpack_decoder

_ERROR_MARK = re.compile(r"\[stateflow-failure:([A-Za-z0-9+/=]+)\]")


class Failure(Document, frozen=True, kw_only=True):
    """An error of a task that running the task again cannot fix."""

    kind: str
    message: str
    hint: str
    facts: dict[str, str]

    @classmethod
    def of(cls, error: StateflowError) -> Failure:
        """Returns the failure that describes `error`."""
        facts = {key: value if isinstance(value, str) else cut(repr(value)) for key, value in error.facts.items()}
        return cls(kind=type(error).__name__, message=error.message, hint=error.hint, facts=facts)

    def to_error(self) -> StateflowError:
        """Returns the error that the failure describes."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, StateflowError)):
            kind = UserCodeError
        return kind(self.message, hint=self.hint, **self.facts)


def message_with(error: StateflowError) -> str:
    """Returns a message that contains an error, for functions in Spark, which forwards only messages."""
    data = base64.b64encode(msgspec.msgpack.encode(Failure.of(error))).decode()
    return f"{error} [stateflow-failure:{data}]"


def error_in_text(text: str) -> StateflowError | None:
    """Returns the error that `message_with` encoded in the message of a failed query; None without one."""
    found = _ERROR_MARK.search(text)
    if found is None:
        return None
    try:
        return msgpack_decoder(Failure).decode(base64.b64decode(found[1])).to_error()
    except (msgspec.DecodeError, ValueError):
        return None


class Consumed(Document, frozen=True, kw_only=True):
    """The attempt of an upstream task whose rows a task consumed."""

    uid: str
    subtask: int
    attempt: str


class TaskReport(Document, frozen=True, kw_only=True):
    """One subtask's part of a checkpoint, or its failure."""

    generation: int
    ordinal: int
    uid: str
    subtask: int
    attempt: str
    consumed: list[Consumed] = []
    key_types: list[str] = []
    key_names: list[str] = []
    states: list[StateSchema] = []
    state: SubtaskState | None = None
    """None for an operator without state, and for a subtask that never received a row."""
    operator_states: list[StateSchema] = []
    part: OperatorPart | None = None
    """Operator state; None without any."""
    output: dict[str, list[Committable]] = {}
    rows_in: int = 0
    rows_out: int = 0
    increment_bytes: int = 0
    compaction_bytes: int = 0
    dead_letters: int = 0
    last_dead_letter: Failure | None = None
    """The error of the last dead letter."""
    late_rows_dropped: int = 0
    """Number of rows that the operator dropped because they were too late."""
    ahead: dict[str, list[TimeSpan]] = {}
    """The event times of rows above the watermark, by `WaitingRows.inputs`, as a text."""
    hot_keys: dict[str, int] = {}
    """For keys with many, the number of pairs of rows that a join has compared."""
    barrier_at: datetime | None = None
    """When the subtask had processed its input."""
    sync_ms: float = 0.0
    """Duration of the synchronous part of its snapshot."""
    failure: Failure | None = None
    carried: list[TaskReport] = []
    """Reports of upstream tasks, which this report forwards to the driver."""


def combined_spans(spans: Iterable[TimeSpan], limit: int) -> list[TimeSpan]:
    """Returns spans in order; as many neighbours become one as are needed to have at most `limit`."""
    ordered = sorted(spans, key=lambda span: (span.first, span.last))
    size = -(-len(ordered) // limit) or 1
    parts = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return [
        TimeSpan(first=part[0].first, last=max(s.last for s in part), rows=sum(s.rows for s in part)) for part in parts
    ]
