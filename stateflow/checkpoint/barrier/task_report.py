"""The report of a task to the driver about one barrier."""

from __future__ import annotations

from datetime import datetime

from stateflow import errors
from stateflow.errors import StateflowError, UserCodeError, cut
from stateflow.state.handles import Committable, Document, OperatorPart, StateSchema, SubtaskState


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
    event_times: dict[str, int] = {}
    """The latest event time of the rows of each source, in milliseconds, by uid."""
    barrier_at: datetime | None = None
    """When the subtask had processed its input."""
    sync_ms: float = 0.0
    """Duration of the synchronous part of its snapshot."""
    failure: Failure | None = None
    carried: list[TaskReport] = []
    """Reports of upstream tasks, which this report forwards to the driver."""
