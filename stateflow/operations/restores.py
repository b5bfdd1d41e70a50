"""Going back to a point in time: a plan, and carrying it out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.proposal import Proposal
from stateflow.environment import open_existing
from stateflow.errors import ConfigError
from stateflow.recovery.job_roots import JobCode, open_root
from stateflow.runtime.proposing import RestoreOptions, propose
from stateflow.runtime.restoring import RestoreOrder, execute


def plan_restore(job_root: str, code: JobCode, target: str, options: RestoreOptions) -> Proposal:
    """What going back to `target` would mean; changes nothing. See `runtime.proposing.propose`."""
    changed_at = datetime.fromtimestamp(code.file.stat().st_mtime, UTC) if code.file.is_file() else None
    proposal = propose(open_existing(code.file, job_root, code.layers), target, options)
    return replace(
        proposal,
        job_file=str(code.file.absolute()),
        job_file_changed_at=changed_at.isoformat(timespec="seconds") if changed_at else "",
    )


def tables_back(job_root: str, code: JobCode) -> dict[str, bool]:
    """Of a restore that is not completed: by uid of the sink, whether its table is back. Changes nothing.

    Raises ConfigError when the job does not fit, or has not all of the sinks.
    """
    job = open_existing(code.file, job_root, code.layers)
    rewind = job.root.head().entry.rewind
    if rewind is None:
        return {}
    missing = sorted(rewind.sinks.keys() - job.sinks.keys())
    if missing:
        raise ConfigError("the job file has not the sinks of the restore", hint="give the one that it was begun with",
                          sinks=missing)  # fmt: skip
    return {uid: job.sinks[uid].open_table().token == rewind.seq for uid in sorted(rewind.sinks)}


@dataclass(frozen=True)
class RestoreReport:
    """A restore that is done.

    Attributes:
        stands_at: where the job is, in words: after a repeated request that may be further on than the plan went.
        repeated: whether it was done before, and this time nothing was.
    """

    job: str
    request: str
    label: str
    generation: int
    checkpoint_id: int
    offsets: dict[str, str]
    tables: dict[str, int]
    stands_at: str
    repeated: bool = False


def restore(job_root: str, code: JobCode, proposal: Proposal, order: RestoreOrder) -> RestoreReport:
    """Carries a plan out, exactly and at most once per request. See `runtime.restoring.execute`."""
    job = open_existing(code.file, job_root, code.layers)
    root = job.root
    done = execute(job, proposal, order)
    head = done.head
    tables = {uid: p.version for uid, p in head.entry.published.items() if uid in job.sinks}
    return RestoreReport(
        root.job.job, order.request, proposal.label, head.entry.generation, head.checkpoint_id,
        {p.uid: p.offset for p in head.entry.sources}, tables, head.stand, done.repeated,
    )  # fmt: skip


@dataclass(frozen=True)
class Rejection:
    """A person's decision against a plan.

    Attributes:
        request: names the decision; hexadecimal after its last hyphen. The same one is recorded once.
        at: when; ISO 8601.
        asked_by: who asked for the restore.
    """

    request: str
    by: str
    reason: str
    at: str
    asked_by: str = ""


def record_rejection(job_root: str, proposal: Proposal, rejection: Rejection) -> None:
    """Adds a rejected plan to the job's history; the same rejection again adds nothing.

    A storage that fails is reported in the log of this process, as for every record of the history.
    """
    root = open_root(job_root)
    asked_by = rejection.asked_by if rejection.asked_by != rejection.by else ""
    # The plan's entry and not the newest one: a retry finds the record under the same name, wherever the job stands.
    write_action(root.storage, ActionRecord(
        seq=proposal.head, kind="rejection", at=rejection.at, by=rejection.by, reason=rejection.reason,
        facts={"plan": proposal.label, "asked_by": asked_by, "request": rejection.request},
    ), rejection.request.rpartition("-")[2])  # fmt: skip
