"""Whether a job root that begins with a savepoint may go on in the tables that its sinks find."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

from stateflow.api.graph import SinkNode
from stateflow.api.sink import SinkContext, SinkTable
from stateflow.checkpoint.documents import PublishedOutput, Savepoint
from stateflow.errors import ConfigError, SinkDiverged


class OldTables(StrEnum):
    """What a run does about tables that the savepoint's job has written.

    The new job has an id of its own, so the tokens in these tables do not stop it from writing rows twice.
    """

    REFUSE = "refuse"
    CONTINUE = "continue"
    """Go on in them if they hold what was published up to the savepoint, and nothing after it."""
    KEEP = "keep"
    """Go on in them whatever they hold: rows after the savepoint are written a second time."""


def check_table(node: SinkNode, document: Savepoint, policy: OldTables) -> None:
    """Raises ConfigError or SinkDiverged when a new job root must not go on in the sink's table.

    Args:
        document: of the savepoint that the root begins with.
        policy: what was asked for.
    """
    own = SinkContext(document.job_uuid, node.uid, node.parent.schema)
    table_id = node.sink.check(own)
    if table_id is None:
        if policy is OldTables.CONTINUE and node.uid in document.sinks:
            raise ConfigError(
                "a table of the savepoint's job is not there",
                hint="restore it; to begin a new one, leave --tables out",
                sink=node.uid,
                table=node.sink.location,
                known=document.sinks[node.uid].table_id,
            )
        return
    known = {p.table_id: (uid, p) for uid, p in document.sinks.items()}
    uid, standing = known.get(table_id, (node.uid, None))
    table = node.sink.open_table(SinkContext(document.job_uuid, uid, node.parent.schema))
    if table.token is None or policy is OldTables.KEEP:
        return
    if not (table.token or standing):
        _check_other_jobs(node, own)
        return
    if policy is OldTables.REFUSE:
        raise ConfigError(
            "the savepoint's job has written the table of a sink",
            hint="give the run tables of its "
            "own; or, if that job does not run any more, go on in its tables: --tables continue",
            sink=node.uid,
            table=node.sink.location,
            table_id=table_id,
            of_job=f"{document.job} {document.job_uuid}",
        )
    used = _UsedTable(node.sink.location, {node.uid, uid}, table, standing)
    _check_standing(used, document.checkpoint_id)
    _check_no_later_job(used)


def _check_other_jobs(node: SinkNode, own: SinkContext) -> None:
    """Raises SinkDiverged when a job that the savepoint does not know has written the table: it may have begun with
    the same savepoint, and what comes after it would be there twice."""
    others = node.sink.other_jobs(own)
    if others:
        raise SinkDiverged(
            "the table of a sink was written by another job, which the savepoint does not know",
            hint="give the sink a table of its own; or go on in this one, whatever it holds: --tables keep",
            sink=node.uid,
            table=node.sink.location,
            of_jobs=sorted(others),
        )


@dataclass(frozen=True)
class _UsedTable:
    """A table that the savepoint's job has written.

    Attributes:
        uids: of its sink, in that job and now.
        standing: what the savepoint knows of it; None when it has written since.
    """

    location: str
    uids: Set[str]
    table: SinkTable
    standing: PublishedOutput | None


def _check_no_later_job(used: _UsedTable) -> None:
    """Raises SinkDiverged when another job went on in the table from the same savepoint, or from a later one."""
    if used.standing is None or used.standing.version < 0:
        return
    for commit in used.table.changes_since(used.standing.version).others:
        jobs = {
            job for job, _, uid in (name.partition("/") for name in commit.applications) if uid in used.uids
        }
        if jobs:
            raise SinkDiverged(
                "another job has written the table after the savepoint",
                hint="give the sink a table "
                "of its own; or take this one back to the version of the savepoint, with the table's "
                "own tools, and go on in it as it then is: --tables keep",
                sink=min(used.uids),
                table=used.location,
                of_jobs=sorted(jobs),
                version=commit.version,
                version_of_savepoint=used.standing.version,
            )


def _check_standing(used: _UsedTable, checkpoint_id: int) -> None:
    """Raises SinkDiverged unless the table holds what was published up to the savepoint, and nothing after it."""
    table, standing = used.table, used.standing
    back = table.plan_rewind(checkpoint_id)
    if back.to_version is not None and (back.rows_removed != 0 or back.rows_returned != 0):
        raise SinkDiverged(
            "a table holds output that the savepoint's job published after the savepoint",
            hint="take the table back to the version below, with the table's own tools, or choose a "
            "newer savepoint; or write the rows a second time: --tables keep",
            sink=min(used.uids),
            table=used.location,
            version=back.from_version,
            version_of_savepoint=back.to_version,
            rows_after=back.rows_removed,
        )
    if standing and standing.version >= 0 and (table.token or 0) < standing.checkpoint_id:
        raise SinkDiverged(
            "a table lacks output that was published before the savepoint",
            hint="restore the table; or go on in it as it is: --tables keep",
            sink=min(used.uids),
            table=used.location,
            token=table.token or 0,
            known=standing.checkpoint_id,
        )
