"""Exception classes of stateflow, grouped by the action that the user should take.

::

    StateflowError                     code, facts, hint, exit_code, retryable
    ├── ConfigError                    wrong job, settings or machine: fix them, then start again
    │   ├── JobDefinitionError         invalid job file or graph
    │   ├── SchemaMismatch             declared and actual columns differ
    │   ├── EnvironmentUnsupported     unsupported version of Java, Python, Spark or Airflow, or unsupported storage
    │   ├── WrongJobRoot               the root has another job, format version or max parallelism
    │   ├── SavepointClaimed           a job owns the savepoint, and deletes it
    │   ├── IncompatibleState          stored values cannot be read as the declared type
    │   └── TooLarge                   a document would exceed the size limit of readers; nothing was stored
    ├── UserCodeError                  a user function raised: fix the job
    ├── StateError                     a user function used state incorrectly
    │   └── EntryTooLarge              a key or value exceeds a setting: filter such rows, or raise the setting
    ├── DataError                      stored data or a sink's table is not as recorded: an operator must decide
    │   ├── CorruptFile                content differs from the recorded hash, or does not decode
    │   │   └── DamagedCopy            damaged copy on a host; deleted, and fetched again by the next attempt
    │   ├── MissingFile                a file that a checkpoint needs does not exist
    │   ├── CorruptInput               unreadable input file or record: replace it, or let the source skip and record it
    │   ├── InputLost                  input after a source's position no longer exists: set another position
    │   ├── SinkRefused                unsupported property of a sink's table
    │   ├── SinkDiverged               a table was restored, replaced, or has commits that the log does not know
    │   ├── ForeignRows                a restore would undo other writers' commits that its plan does not show
    │   ├── PlanOutdated               the job has changed since a restore was planned: plan again
    │   └── HistoryChanged             records of the history were changed or deleted; state is not affected
    ├── Fenced                         a newer run owns the job: this run must end without a retry
    ├── StorageError                   the storage failed or did not respond: a retry may succeed
    ├── BatchFailed                    a micro-batch is incomplete: a new run starts from the newest checkpoint
    │   └── SparkGone                  Spark's process has ended; this process cannot start another one
    ├── ClusterFailed                  the cluster that runs the driver refused, lost or ended it: a retry may succeed
    ├── QueryError                     a query of a job's state failed
    │   ├── UnknownJob                 the job root has no job
    │   ├── UnknownState               no state has the queryable name
    │   ├── UnknownKey                 the state has no value for the key
    │   ├── WrongKeyType               a key does not have the recorded types of the state's key
    │   ├── NotYetAvailable            no server, or no checkpoint as new as requested: a retry may succeed
    │   ├── CheckpointNotServed        the requested checkpoint is older than those that servers have open
    │   ├── Unauthorized               the token is missing or wrong
    │   └── QueryTooLarge              a request or an answer exceeds the limits of the server
    ├── RequestTimeout                 a run did not answer in time: retry, or check whether a run is active
    ├── Interrupted                    the user or the system ended the run; its last checkpoint is intact
    └── InternalError                  a bug: report it

Each class has a stable ``code``. ``str(error)`` is a lower-case sentence with ``key=value`` facts and, on a second
line, a hint. All classes can be pickled, because Spark sends them from its Python workers to the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

LONGEST_TEXT = 10_000
"""Characters of a message and of each fact. They may contain keys and rows, and go to logs, reports and the history."""


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """Returns a text of at most `longest` characters, at least 40; a longer text is cut, and ends with its length."""
    if len(text) <= longest:
        return text
    end = f"… ({len(text)} characters)"
    return text[: longest - len(end)] + end


class StateflowError(Exception):
    """Base class of all errors that stateflow raises.

    Args:
        message: a lower-case sentence that says what failed and why.
        hint: what the user can do.
        facts: values that help to find the cause, printed as ``key=value``.
    """

    code: ClassVar[str] = "stateflow"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        self.message = cut(message)
        super().__init__(self.message)
        self.hint = hint
        self.facts = _bounded(facts)

    def __reduce__(self) -> tuple[Callable[..., StateflowError], tuple[object, ...]]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)

    def add_facts(self, **facts: object) -> None:
        """Adds facts that were unknown where the error was raised; does not replace existing ones."""
        self.facts = {**self.facts, **{name: v for name, v in _bounded(facts).items() if name not in self.facts}}

    @property
    def sentence(self) -> str:
        """The message with its facts, without the hint."""
        facts = {name: cut(repr(value), 2 * LONGEST_TEXT) for name, value in self.facts.items()}
        return self.message + "".join(f" {name}={text}" for name, text in facts.items())

    def __str__(self) -> str:
        return self.sentence + (f"\n  hint: {self.hint}" if self.hint else "")


def _bounded(facts: dict[str, object]) -> dict[str, object]:
    return {name: cut(value) if isinstance(value, str) else value for name, value in facts.items()}


def _rebuild(cls: type[StateflowError], message: str, hint: str, facts: dict[str, object]) -> StateflowError:
    return cls(message, hint=hint, **facts)


class ConfigError(StateflowError, ValueError):
    """A setting, option or argument has an invalid name or value."""

    code = "config"
    exit_code = 2


class JobDefinitionError(ConfigError):
    """The job file does not exist, has no ``build``, or describes an invalid graph."""

    code = "job-definition"


class SchemaMismatch(ConfigError):
    """The columns that the job declares differ from the actual columns."""

    code = "schema-mismatch"


class EnvironmentUnsupported(ConfigError):
    """This version does not support the installed Java, Python, Spark or Airflow, or the storage."""

    code = "environment-unsupported"


class WrongJobRoot(ConfigError):
    """The job root was created by another job, another format version, or with another max parallelism."""

    code = "wrong-job-root"


class IncompatibleState(ConfigError):
    """Stored values of a state cannot be read as the declared type."""

    code = "incompatible-state"


class SavepointClaimed(ConfigError):
    """A job has claimed a savepoint: no other job can claim it, and that job deletes it."""

    code = "savepoint-claimed"


class TooLarge(ConfigError):
    """A document would exceed the size limit of readers; it was not stored, and nothing changed."""

    code = "too-large"


class UserCodeError(StateflowError):
    """A function of the job raised an exception; tasks are deterministic, so a retry would fail as well."""

    code = "user-code"
    exit_code = 4


class StateError(StateflowError):
    """A function used state without a key, under a name that has another type, or with an invalid key."""

    code = "state"
    exit_code = 4


class EntryTooLarge(StateError):
    """A key, a key of a map or a value is larger than a setting allows."""

    code = "entry-too-large"


class DataError(StateflowError):
    """Stored data is not as the log describes it; nothing was changed."""

    code = "data"
    exit_code = 4


class CorruptFile(DataError):
    """The content of a stored file differs from what was recorded for it."""

    code = "corrupt-file"


class DamagedCopy(CorruptFile):
    """A host's copy of a file is damaged; it was deleted, and the next attempt fetches or writes the file again."""

    code = "damaged-copy"
    exit_code = 5
    retryable = True


class CorruptInput(DataError):
    """An input file or record is truncated, damaged, or not in the declared format."""

    code = "corrupt-input"


class InputLost(DataError):
    """Input after a source's position no longer exists."""

    code = "input-lost"


class MissingFile(DataError, LookupError):
    """A required stored file does not exist."""

    code = "missing-file"


class SinkRefused(DataError):
    """The sink's table has a property that a direct commit would silently violate."""

    code = "sink-refused"
    exit_code = 2


class SinkDiverged(DataError):
    """The sink's table was replaced, or does not have the version that the log records."""

    code = "sink-diverged"


class ForeignRows(DataError):
    """Other writers changed a table after a restore was planned; the restore stopped, because it would undo that."""

    code = "foreign-rows"


class PlanOutdated(DataError):
    """The job or the target has changed since a restore was planned; nothing was changed."""

    code = "plan-outdated"


class HistoryChanged(DataError):
    """Objects of the history were changed or deleted after a run had recorded their hashes in the log."""

    code = "history-changed"


class Fenced(StateflowError):
    """A newer run has claimed the job; nothing that this run did after the claim has any effect."""

    code = "fenced"
    exit_code = 3


class StorageError(StateflowError):
    """The storage failed; the log defines the state of the job."""

    code = "storage"
    exit_code = 5
    retryable = True


class BatchFailed(StateflowError):
    """A micro-batch did not complete; a new run replays it from the last checkpoint."""

    code = "batch-failed"
    exit_code = 5
    retryable = True


class SparkGone(BatchFailed):
    """Spark's process has ended or was stopped. A retry needs a new process, which starts its own Spark."""

    code = "spark-gone"


class ClusterFailed(StateflowError):
    """A cluster did not start a driver, lost it, or does not respond; the log defines the state of the job."""

    code = "cluster-failed"
    exit_code = 5
    retryable = True


class RequestTimeout(StateflowError):
    """A run acknowledged a request and did not complete it in time; the request was withdrawn."""

    code = "request-timeout"
    exit_code = 5
    retryable = True


class QueryError(StateflowError):
    """A query of a job's state failed."""

    code = "query"
    exit_code = 4


class UnknownJob(QueryError):
    """The job root of a query has no job."""

    code = "unknown-job"


class UnknownState(QueryError):
    """No state of the job has the queryable name, or several operators use it."""

    code = "unknown-state"


class UnknownKey(QueryError, LookupError):
    """The state has no value for the key: it was never written, was removed, or has expired."""

    code = "unknown-key"


class WrongKeyType(QueryError, TypeError):
    """A key, or the key of a map, does not have the types that the checkpoint has recorded."""

    code = "wrong-key-type"


class NotYetAvailable(QueryError):
    """No server serves the key, or none has a checkpoint that is as new as requested."""

    code = "not-yet-available"
    exit_code = 5
    retryable = True


class CheckpointNotServed(QueryError):
    """The servers do not have the requested checkpoint open: it is too old, or the key has moved to another server."""

    code = "checkpoint-not-served"


class Unauthorized(QueryError):
    """The token is missing or wrong."""

    code = "unauthorized"


class QueryTooLarge(QueryError):
    """A request or an answer exceeds the limits of the server."""

    code = "query-too-large"


class Interrupted(StateflowError):
    """The run was interrupted; the next run replays what was not committed."""

    code = "interrupted"
    exit_code = 130
    retryable = True


class InternalError(StateflowError):
    """A bug in stateflow."""

    code = "internal"
    retryable = True


def error_class(code: str) -> type[StateflowError]:
    """Returns the class of errors with a code; `ClusterFailed` for a code that this version does not know."""
    found: list[type[StateflowError]] = [StateflowError]
    for each in found:
        found += each.__subclasses__()
    return next((each for each in found if each.code == code and each is not StateflowError), ClusterFailed)
