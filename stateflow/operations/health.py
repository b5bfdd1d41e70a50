"""The state of a job in a word, from what its job root tells and what others know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from stateflow.checkpoint.history import FAILED_START, FAILURE, read_action, read_pending_records, read_records
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import SAVEPOINT_RECORD, ActionRecord, Origin
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.operations.job_root import open_root
from stateflow.operations.status import JobDescription, describe_at, read_newest_manifest
from stateflow.runtime.backlog import JobBacklog, StoredBacklog, input_waits, read_stored_backlog
from stateflow.storage.paths import HISTORY, history_key, history_seq


class HealthWord(StrEnum):
    """The state of a job in a word: the first one that applies."""

    WAITS_FOR_APPROVAL = "waits-for-approval"
    """A restore or a deletion waits for the approval of a person."""
    RESTORING = "restoring"
    """A restore is not completed. The same restore completes it; the next run also does, if it has changed the job."""
    FAILING = "failing"
    """The newest run ended with an error, or a later start failed before it had claimed the job."""
    RETRYING = "retrying"
    """The newest run has not made a checkpoint yet, and the run before it ended with an error."""
    STARTING = "starting"
    """The newest run has not made a checkpoint yet."""
    LATE = "late"
    """The newest checkpoint is older than the deadline of the job."""
    RUNNING = "running"
    """The newest run has not ended. It may have been killed: a job root does not tell that before the next run."""
    STOPPED = "stopped"
    """A person has stopped the job, and no run has begun since."""
    CAUGHT_UP = "caught-up"
    """No run is active, and no input waited when the newest run last measured it."""
    IDLE = "idle"
    """No run is active. Input waited when the newest run last measured it, or it is not known whether any did."""


@dataclass(frozen=True)
class HealthFacts:
    """What the health of a job follows from. None means that it is not known.

    Attributes:
        restoring: whether a restore has begun and is not completed.
        run_open: whether the newest run has not ended normally.
        failed: whether the newest run, or a later start, ended with an error.
        failed_before: whether the run before the newest one ended with an error.
        committed: whether the newest run has made a checkpoint.
        stopped: whether a person has stopped the job at its newest checkpoint.
        awaits_approval: whether an approval is missing; a job root does not have it.
        late: whether the deadline of the job has passed; a job root does not have it.
        input_waits: whether input waited when the newest run last measured it; None if that run has not.
    """

    restoring: bool = False
    run_open: bool = False
    failed: bool = False
    failed_before: bool = False
    committed: bool = False
    stopped: bool = False
    awaits_approval: bool | None = None
    late: bool | None = None
    input_waits: bool | None = None


@dataclass(frozen=True)
class Health:
    """The state of a job in a word, as far as it is known.

    Attributes:
        word: the word.
        unknown: words of which it is not known whether they apply.
    """

    word: HealthWord
    unknown: tuple[HealthWord, ...]


def health_of(facts: HealthFacts) -> Health:
    """Returns the first word that applies, in the order of `HealthWord`."""
    began = facts.run_open and not facts.failed and not facts.committed
    applies: Mapping[HealthWord, bool | None] = {
        HealthWord.WAITS_FOR_APPROVAL: facts.awaits_approval,
        HealthWord.RESTORING: facts.restoring,
        HealthWord.FAILING: facts.failed,
        HealthWord.RETRYING: began and facts.failed_before,
        HealthWord.STARTING: began,
        HealthWord.LATE: facts.late,
        HealthWord.RUNNING: facts.run_open,
        HealthWord.STOPPED: facts.stopped,
        HealthWord.CAUGHT_UP: None if facts.input_waits is None else not facts.input_waits,
        HealthWord.IDLE: True,
    }
    words = list(HealthWord)
    word = next(word for word in words if applies[word])
    return Health(word, tuple(each for each in words[: words.index(word)] if applies[each] is None))


def health_facts(
    description: JobDescription,
    head: Head,
    *,
    failures: Set[int],
    before: int,
    actions: Iterable[ActionRecord],
    backlog: StoredBacklog | None,
) -> HealthFacts:
    """Returns what a job root tells of the job's health.

    Args:
        description: the status of the job.
        head: its newest log entry.
        failures: generations of the runs that recorded an error, at their end or before they claimed the job.
        before: generation of the newest checkpoint before the newest run; 0 if it is not known.
        actions: records of actions, with those at the newest checkpoint.
        backlog: the newest report of the input that waits.
    """
    entry = head.entry
    is_current = backlog is not None and backlog.generation == entry.generation
    newest = max([before, *(each for each in failures if each < entry.generation)])
    return HealthFacts(
        restoring=description.restoring is not None or description.restore_open,
        run_open=description.run_open and description.run > 0,
        failed=description.failure is not None or description.failed_start is not None,
        failed_before=newest in failures,
        committed=entry.ordinal > 0,
        stopped=not description.run_open and any(_is_stop(a) for a in actions if a.seq == head.checkpoint_id),
        input_waits=input_waits(backlog.backlog) if backlog is not None and is_current else None,
    )


def _is_stop(record: ActionRecord) -> bool:
    """Returns whether a person has stopped the job, with a savepoint or without."""
    is_of_stop = record.kind == SAVEPOINT_RECORD and record.text("origin") == Origin.STOP.value
    return record.kind == "stop" or is_of_stop


def describe_with_health(
    job_root: str, measured: JobBacklog | None = None
) -> tuple[JobDescription, Health, JobBacklog | None]:
    """Returns the status of a job, its state in a word, and the input that waited when it was last measured.

    Args:
        job_root: URI of the job root.
        measured: the input that waits now; None to take what a run has stored.

    Raises ConfigError when it does not exist.
    """
    root = open_root(job_root)
    return root.read_kept(lambda head: _describe(root, head, measured))


def _describe(
    root: JobRoot, head: Head, measured: JobBacklog | None
) -> tuple[JobDescription, Health, JobBacklog | None]:
    description = describe_at(root, head, read_newest_manifest(root, head))
    now = StoredBacklog(head.entry.generation, measured) if measured else None
    backlog = now or read_stored_backlog(root.storage, head)
    keys = [blob.key for blob in root.storage.list(HISTORY)]
    generation, at_checkpoint = head.entry.generation, history_key(head.checkpoint_id, "").removesuffix(".json")
    kinds = tuple(f"{at_checkpoint}{kind}-" for kind in (SAVEPOINT_RECORD, "stop"))
    facts = health_facts(
        description,
        head,
        failures={history_seq(key) for key in keys if f"-{FAILURE}-" in key or f"-{FAILED_START}-" in key},
        before=_run_before(root, head) if description.run_open and not head.entry.ordinal else generation,
        actions=[record for key in keys if key.startswith(kinds) if (record := read_action(root.storage, key))],
        backlog=backlog,
    )
    return description, health_of(facts), backlog.backlog if backlog else None


def _run_before(root: JobRoot, head: Head) -> int:
    """Returns the generation of the newest checkpoint before the newest run; 0 if no recent one is known."""
    records = read_records(root.storage, _LOOKED_BACK, read_pending_records(root, head))
    return max((r.generation for r in records if r.generation < head.entry.generation), default=0)


_LOOKED_BACK = 10
"""Records among which one of the run before is looked for."""
