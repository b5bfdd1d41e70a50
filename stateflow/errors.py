"""Every error that stateflow raises on purpose, by what the person who meets it should do.

::

    StateflowError                     code, facts, hint, exit_code, retryable
    ├── ConfigError                    the job, its settings or the machine are not right: mend them, then start again
    │   ├── JobDefinitionError         the job file or its graph
    │   ├── SchemaMismatch             declared columns and real columns differ
    │   ├── EnvironmentUnsupported     Java, Python, Spark, Airflow, or storage this version does not run on
    │   ├── WrongJobRoot               the root belongs to another job, format, or max parallelism
    │   ├── IncompatibleState          stored values cannot be read as the type that the job declares
    │   └── TooLarge                   a document would exceed what readers accept; nothing was stored
    ├── UserCodeError                  a user function failed: mend the job
    ├── StateError                     a user function used state in a way that state does not allow
    ├── DataError                      what is stored, or what a sink holds, is not what it must be: a person decides
    │   ├── CorruptFile                bytes differ from what was recorded for them, or do not decode
    │   │   └── DamagedCopy            a copy on a host; it was dropped, and is fetched again by the next attempt
    │   ├── MissingFile                a file that a checkpoint needs is gone
    │   ├── CorruptInput               an input file cannot be read: replace it, or let it be skipped and recorded
    │   ├── SinkRefused                a table that the sink cannot honour
    │   ├── SinkDiverged               a table went back, was replaced, or knows more than the log
    │   ├── ForeignRows                a restore would undo commits of others that its plan did not show
    │   └── PlanOutdated               a restore's plan was made for a job that has moved on: plan again
    ├── Fenced                         a newer run owns the job: this one must end, and not be retried
    ├── StorageError                   the storage did not answer or refused: trying again may help
    ├── BatchFailed                    a micro-batch did not come back whole: a new run starts from the head
    │   └── SparkGone                  Spark's process has ended, or was stopped: this process has no other
    ├── RequestTimeout                 a run did not answer in time: ask again, or look whether there is a run
    ├── Interrupted                    a person or the system ended the run; its last checkpoint is safe
    └── InternalError                  should never happen: please report it

Each class has a stable ``code``; ``str(error)`` is a lower-case sentence with ``key=value`` facts and, on a line of
its own, a hint. All of them survive pickling, because they cross from Spark's Python workers to the driver.
"""

from __future__ import annotations

from typing import Any, ClassVar


class StateflowError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: a lower-case sentence that names the thing and the reason.
        hint: what the reader can do now.
        facts: values that help to find the cause, printed as ``key=value``.
    """

    code: ClassVar[str] = "stateflow"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)

    def add_facts(self, **facts: object) -> None:
        """Adds facts that the place which raised the error did not know; those that it gave stay."""
        self.facts = {**self.facts, **{name: v for name, v in facts.items() if name not in self.facts}}

    @property
    def sentence(self) -> str:
        """The message with its facts, without the hint."""
        return self.message + "".join(f" {key}={value!r}" for key, value in self.facts.items())

    def __str__(self) -> str:
        return self.sentence + (f"\n  hint: {self.hint}" if self.hint else "")


def _rebuild(cls: type[StateflowError], message: str, hint: str, facts: dict[str, object]) -> StateflowError:
    return cls(message, hint=hint, **facts)


class ConfigError(StateflowError, ValueError):
    """A setting has a wrong name or value."""

    code = "config"
    exit_code = 2


class JobDefinitionError(ConfigError):
    """The job file is missing, has no ``build``, or describes a graph that cannot run."""

    code = "job-definition"


class SchemaMismatch(ConfigError):
    """Columns that the job declares are not the columns that are there."""

    code = "schema-mismatch"


class EnvironmentUnsupported(ConfigError):
    """Java, Python, Spark, Airflow or the storage is not one that this version runs on."""

    code = "environment-unsupported"


class WrongJobRoot(ConfigError):
    """The job root was made by another job, another format version, or with another max parallelism."""

    code = "wrong-job-root"


class IncompatibleState(ConfigError):
    """Values of a state were stored as a type that cannot be read as the one that is declared."""

    code = "incompatible-state"


class TooLarge(ConfigError):
    """A document would be larger than what readers accept; it was not stored, and nothing changed."""

    code = "too-large"


class UserCodeError(StateflowError):
    """A function of the job raised; tasks are pure, so trying again would end the same way."""

    code = "user-code"
    exit_code = 4


class StateError(StateflowError):
    """State was used without a key, with another type under a known name, or with a key that cannot be one."""

    code = "state"
    exit_code = 4


class DataError(StateflowError):
    """Stored data is not what the log says that it is; nothing was changed."""

    code = "data"
    exit_code = 4


class CorruptFile(DataError):
    """A stored file's bytes are not those that were recorded for it."""

    code = "corrupt-file"


class DamagedCopy(CorruptFile):
    """A host's copy of a file is damaged; it was dropped, and the next attempt fetches or writes the file again."""

    code = "damaged-copy"
    exit_code = 5
    retryable = True


class CorruptInput(DataError):
    """A file that a source, or a transform, reads is truncated, garbled, or not of the declared format."""

    code = "corrupt-input"


class MissingFile(DataError, LookupError):
    """A stored file that is needed is not there."""

    code = "missing-file"


class SinkRefused(DataError):
    """The sink's table has a property that a direct commit would silently violate."""

    code = "sink-refused"
    exit_code = 2


class SinkDiverged(DataError):
    """The sink's table is not the one, or not at the point, that the log knows."""

    code = "sink-diverged"


class ForeignRows(DataError):
    """Other writers changed a table after a restore was planned; the restore would undo that, so it stopped."""

    code = "foreign-rows"


class PlanOutdated(DataError):
    """The job or the target is not any more what a restore was planned for; nothing was changed."""

    code = "plan-outdated"


class Fenced(StateflowError):
    """A newer run has claimed the job; nothing that this run did after that exists."""

    code = "fenced"
    exit_code = 3


class StorageError(StateflowError):
    """The storage failed; the state of the job is what its log says."""

    code = "storage"
    exit_code = 5
    retryable = True


class BatchFailed(StateflowError):
    """A micro-batch did not come back whole; a new run replays it from the last checkpoint."""

    code = "batch-failed"
    exit_code = 5
    retryable = True


class SparkGone(BatchFailed):
    """Spark's process has ended, or was stopped. Nothing helps in this process; a new one has a Spark of its own."""

    code = "spark-gone"


class RequestTimeout(StateflowError):
    """A run that knows of a request did not get to it in time; the request was withdrawn."""

    code = "request-timeout"
    exit_code = 5
    retryable = True


class Interrupted(StateflowError):
    """The run was interrupted; what was not committed will be replayed."""

    code = "interrupted"
    exit_code = 130
    retryable = True


class InternalError(StateflowError):
    """Something that should never happen did."""

    code = "internal"
    retryable = True
