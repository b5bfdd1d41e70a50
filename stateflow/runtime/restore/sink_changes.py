"""The changes of a restore to the sinks' tables: as a plan describes them, and as the log's intent orders them."""

from __future__ import annotations

from collections.abc import Sequence, Set

from stateflow.api.sink import SinkRewind
from stateflow.checkpoint.log.documents import PendingOutput, SinkIntent, SinkMode
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.restore.plan_document import SinkChange, SinkLeft
from stateflow.errors import ConfigError, PlanOutdated, SinkDiverged
from stateflow.runtime.publisher import BoundSink, OutputFilter
from stateflow.runtime.restore.context import RestoreContext


def plan_sink_changes(context: RestoreContext, mode: SinkMode, keep_tables: Set[str]) -> list[SinkChange]:
    """Returns the change of each existing table of the job's sinks, by uid.

    Args:
        mode: whether tables are restored, or keep their content.
        keep_tables: uids of the sinks whose tables keep their content with any mode.

    Raises:
        SinkDiverged: a table was removed or replaced, or cannot be restored to the target.
        SinkRefused: the table of a sink cannot be rewound.
        ConfigError: several sinks write into one table, which cannot be restored for one of them.
    """
    changes = []
    for uid, sink in sorted(context.job.sinks.items()):
        table_id = _table_id(context, sink)
        if table_id is not None:
            mode_of_sink = SinkMode.KEEP if uid in keep_tables else mode
            changes.append(_sink_change(context, sink, table_id, mode_of_sink))
    _check_not_shared(changes)
    return changes


def _table_id(context: RestoreContext, sink: BoundSink) -> str | None:
    """Returns the id of the sink's table; None before its first output. Raises SinkDiverged for another table."""
    known = context.head.entry.published.get(sink.uid)
    table_id = sink.sink.check(sink.context)
    if table_id is None and known is not None:
        raise SinkDiverged(
            "the sink's table no longer exists",
            hint="restore it, or give the sink a new uid",
            sink=sink.uid,
            table=sink.location,
        )
    if known is not None and known.table_id != table_id:
        raise SinkDiverged(
            "the sink's table is not the one that this job published to",
            hint="plan with the settings of the job's runs; to continue with the existing table, give the sink a new "
            "uid",
            sink=sink.uid,
            table=sink.location,
            known=known.table_id,
            found=table_id,
        )
    return table_id


def _sink_change(context: RestoreContext, sink: BoundSink, table_id: str, mode: SinkMode) -> SinkChange:
    table = sink.open_table()
    if mode is SinkMode.KEEP:
        return SinkChange(uid=sink.uid, mode=mode, table_id=table_id, table=sink.location, now=table.version)
    rewind = context.plan_rewind(sink.uid, table)
    return SinkChange(
        uid=sink.uid,
        mode=mode,
        table_id=table_id,
        table=sink.location,
        now=rewind.from_version,
        then=rewind.to_version,
        rows_removed=rewind.rows_removed,
        rows_returned=rewind.rows_returned,
        others=tuple(other.text for other in rewind.others),
    )


def _check_not_shared(changes: list[SinkChange]) -> None:
    """Raises ConfigError when a table that is restored belongs to several sinks.

    A second rewind would return rows that the first removed, and a rewind for one sink would remove rows of another
    one that are to be kept.
    """
    tables: dict[str, list[SinkChange]] = {}
    for change in changes:
        tables.setdefault(change.table_id, []).append(change)
    shared = sorted(
        [change.uid for change in sharing]
        for sharing in tables.values()
        if len(sharing) > 1 and any(change.mode is SinkMode.RESTORE for change in sharing)
    )
    if shared:
        raise ConfigError(
            "several sinks write into one table, which cannot be restored for each of them",
            hint="keep the table for all of them: --keep-table UID for each, or --sinks keep; or give each sink its "
            "own table",
            sinks=shared,
        )


def tables_without_sink(context: RestoreContext, mode: SinkMode, keep_tables: frozenset[str]) -> list[SinkLeft]:
    """Returns the tables with output after the target whose sink the job lacks; a restore cannot change them.

    Args:
        keep_tables: uids of the sinks whose tables the user agrees to keep; all of them with mode *keep*. Those of
            the job's sinks have no effect here; see `plan_sink_changes`.

    Raises:
        ConfigError: `keep_tables` lacks such a table, or has the uid of no sink; or output of the target itself is not
            published yet, which only its sink can do.
    """
    head, upto = context.head, context.target.checkpoint_id
    known = {uid: p for uid, p in head.entry.published.items() if uid not in context.job.sinks}
    newest = {uid: p.checkpoint_id for uid, p in known.items()} | _pending_without_sink(context)
    tables = [
        SinkLeft(uid=uid, table_id=known[uid].table_id if uid in known else "", checkpoint_id=checkpoint_id)
        for uid, checkpoint_id in sorted(newest.items())
        if checkpoint_id > upto
    ]
    _check_kept_tables({table.uid for table in tables}, mode, keep_tables - context.job.sinks.keys())
    return tables


def _pending_without_sink(context: RestoreContext) -> dict[str, int]:
    """Returns the newest checkpoint with pending output of each sink that the job lacks, by uid."""
    pending = [p for p in pending_of(context.head) if p.sink not in context.job.sinks]
    of_target = sorted({p.sink for p in pending if p.checkpoint_id <= context.target.checkpoint_id})
    if of_target:
        raise ConfigError(
            "a sink was removed before its output was published",
            hint="plan with the version of the job that has the sink",
            sinks=of_target,
        )
    return {p.sink: p.checkpoint_id for p in pending}


def _check_kept_tables(uids: set[str], mode: SinkMode, keep_tables: frozenset[str]) -> None:
    unknown = sorted(keep_tables - uids)
    if unknown:
        raise ConfigError(
            "a table to keep belongs neither to a sink of the job, nor to a removed sink with output after the target",
            hint=f"name sinks of the job, or removed ones with such output: {sorted(uids) or 'there are none'}",
            uids=unknown,
        )
    unnamed = sorted(uids - keep_tables)
    if unnamed and mode is SinkMode.RESTORE:
        raise ConfigError(
            "tables cannot be restored, because the job does not have their sinks",
            hint="plan with the version of the job that has them; or pass --keep-table UID to keep a table: a version "
            "that has the sink again writes its rows a second time",
            sinks=unnamed,
        )


def plan_sink_rewind(context: RestoreContext, change: SinkChange) -> SinkRewind:
    """Returns the current effect of a planned change; for a kept table, only the version of the handle.

    Raises PlanOutdated when the table is another one, or when the restore would undo commits of other writers that the
    plan does not show.
    """
    table = context.job.sinks[change.uid].open_table()
    if table.table_id != change.table_id:
        raise PlanOutdated(
            "the sink's table is not the one of the plan",
            hint="make a new plan",
            sink=change.uid,
            planned=change.table_id,
            found=table.table_id,
        )
    if change.mode is SinkMode.KEEP:
        return SinkRewind(table.version, None, 0, 0, ())
    rewind = context.plan_rewind(change.uid, table)
    unseen = [other.text for other in rewind.others if other.text not in change.others]
    if unseen:
        raise PlanOutdated(
            "other writers committed to a table after the plan was made, and the restore would undo that",
            hint="make a new plan, and read what it would undo",
            sink=change.uid,
            unseen=unseen,
        )
    return rewind


def output_to_publish(context: RestoreContext, changes: Sequence[SinkChange]) -> OutputFilter:
    """Returns a filter for the pending output that is published before tables are rewound: that of the target.

    The rest is dropped, and is produced again. A kept table gets all of its output: a paused driver could still publish
    it afterwards, and the content of a table must not depend on whether it does.
    """
    upto = context.last_published
    kept_tables = {change.uid for change in changes if change.mode is SinkMode.KEEP}

    def is_published(pending: PendingOutput) -> bool:
        return pending.checkpoint_id <= upto or pending.sink in kept_tables

    return is_published


def sink_intents(context: RestoreContext, changes: Sequence[SinkChange]) -> dict[str, SinkIntent]:
    """Returns the intent for each planned change, by uid, from the tables' current versions.

    Raises as `plan_sink_rewind` does.
    """
    return {change.uid: _intent(context, change) for change in changes}


def _intent(context: RestoreContext, change: SinkChange) -> SinkIntent:
    # The plan's version may be out of date: output that was pending then is published now, and belongs to the target.
    rewind = plan_sink_rewind(context, change)
    if change.mode is SinkMode.KEEP:
        return SinkIntent(table_id=change.table_id, mode=change.mode, seen_version=None)
    # With nothing to rewind, the version is still recorded: a paused driver can still publish before the table has
    # the token of this restore.
    version = rewind.from_version if rewind.to_version is None else rewind.to_version
    return SinkIntent(table_id=change.table_id, mode=change.mode, to_version=version, seen_version=rewind.from_version)
