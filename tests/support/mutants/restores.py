"""Bugs of restores: intents, tables that are rewound or kept, and what is published before."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stateflow.api.sink import SinkTable
from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    ClaimedSavepoint,
    JobFormat,
    LogEntry,
    PublishedOutput,
    Rewind,
    SinkIntent,
    SinkMode,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.transitions import Adoption, Author
from stateflow.checkpoint.restore.plan_document import SinkChange
from stateflow.runtime.driver import job_restore
from stateflow.runtime.publisher import BoundSink, OutputFilter, Publisher
from stateflow.runtime.restore import new_job_root, plan_execution, planner
from stateflow.runtime.restore.planner import RestoreContext
from tests.support.mutants.registry import Mutants

MUTANTS = Mutants()


@MUTANTS.plant("any-table", (new_job_root, "_check_own_output"))
def _check_no_output(*_: object, **__: object) -> None:
    """A table's versions after the savepoint are not checked."""


_rewind_table = plan_execution._rewind_table


@MUTANTS.plant("kept-token", (plan_execution, "_rewind_table"), rules="S1 R5", plan="rewinds")
def _without_token_when_kept(sink: BoundSink, rewind: Rewind, root: JobRoot, planned_now: bool) -> PublishedOutput:
    """A restore sets no token in tables that are kept."""
    intent = rewind.sinks[sink.uid]
    if intent.mode is SinkMode.RESTORE:
        return _rewind_table(sink, rewind, root, planned_now)
    version = sink.open_table().version
    return PublishedOutput(table_id=intent.table_id, version=version, checkpoint_id=rewind.seq)


@MUTANTS.plant("no-take-over", (plan_execution, "_rewind_table"))
def _without_take_over(sink: BoundSink, rewind: Rewind, root: JobRoot, planned_now: bool) -> PublishedOutput:
    """A new job root continues in tables without fencing the root that wrote them."""
    intents = {uid: replace(intent, takes_over={}) for uid, intent in rewind.sinks.items()}
    return _rewind_table(sink, replace(rewind, sinks=intents), root, planned_now)


@MUTANTS.plant("blind-rewind", (plan_execution, "_version_to_restore"), rules="S4", plan="shared")
def _version_of_the_intent(sink: BoundSink, table: SinkTable, rewind: Rewind, _: bool) -> int | None:
    """A table is restored to the version of the intent, although other writers have committed since."""
    intent = rewind.sinks[sink.uid]
    return None if intent.to_version == table.version else intent.to_version


@MUTANTS.plant("late-intent", (job_restore, "complete_rewind"), rules="R5 S1", plan="rewinds")
def _later(root: JobRoot, sinks: object, head: Head, planned_now: bool = False) -> Head:
    """A start does not execute the intent of a restore."""
    return head


@MUTANTS.plant("unpublished-target", (plan_execution, "Publisher"), rules="R3", plan="rewinds")
class _Silent(Publisher):
    """A restore does not publish its target's pending output before it writes the intent."""

    def publish_pending(self, head: Head, wanted: OutputFilter = lambda _: True) -> None:
        pass


_claim = transitions.claim


@MUTANTS.plant("pending-behind", (transitions, "claim"), rules="S1", plan="rewinds")
def _claim_with_all_pending(
    job: JobFormat, base: Head | None, author: Author, adopt: Adoption | None, announced: ClaimedSavepoint | None = None
) -> LogEntry:
    """An intent does not drop output that is pending after its target."""
    entry = _claim(job, base, author, adopt, announced)
    return replace(entry, pending=transitions.pending_of(base)) if base and adopt and adopt.sinks else entry


@MUTANTS.plant("early-version", (planner, "_intent"), rules="S1", plan="rewinds")
def _intent_of_the_plan(context: RestoreContext, change: SinkChange) -> SinkIntent:
    """A restore uses the table version of its plan, which was read before pending output was published."""
    then = change.now if change.then is None else change.then
    version = then if change.mode is SinkMode.RESTORE else None
    return SinkIntent(table_id=change.table_id, mode=change.mode, to_version=version, seen_version=version)


# Mistakes that the simulator found in the code itself.


@MUTANTS.plant("plain-none", (planner, "_intent"), rules="S1", plan="rewinds")
def _intent_without_version(context: RestoreContext, change: SinkChange) -> SinkIntent:
    """A table without a change to undo is not checked again for output that was published after the plan."""
    then = None
    if change.mode is SinkMode.RESTORE:
        then = context.job.sinks[change.uid].open_table().plan_rewind(context.target.checkpoint_id).to_version
    return SinkIntent(table_id=change.table_id, mode=change.mode, to_version=then, seen_version=then)


@MUTANTS.plant("kept-unpublished", (plan_execution, "output_to_publish"), rules="S1 S2", plan="rewinds")
def _output_of_the_target_alone(context: RestoreContext, changes: Sequence[SinkChange]) -> OutputFilter:
    """A table that a restore keeps does not receive the committed output that is still pending."""
    return lambda pending: pending.checkpoint_id <= context.last_published
