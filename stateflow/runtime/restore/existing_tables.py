"""Whether a job root created from a savepoint may continue in existing tables, and whom it takes them over from."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from stateflow.api.graph.nodes import SinkNode
from stateflow.api.sink import Delivery, SinkContext, SinkTable, Successor
from stateflow.checkpoint.log.documents import PublishedOutput, Savepoint, SinkIntent, SinkMode
from stateflow.errors import ConfigError, SinkDiverged


class ExistingTables(StrEnum):
    """Policy for tables that the savepoint's job has written.

    The new job has its own id, so the tokens in these tables do not prevent it from writing rows twice. A job root that
    continues in a table takes it over: the savepoint's job, and each job root that took over from it, can publish
    nothing there from then on.
    """

    REFUSE = "refuse"
    CONTINUE = "continue"
    """Continue in them if they hold the output published up to the savepoint, and nothing after it."""
    KEEP = "keep"
    """Continue in them whatever they hold: rows after the savepoint are written a second time. Sinks of other jobs may
    write to them, too."""


def plan_table(node: SinkNode, document: Savepoint, policy: ExistingTables) -> SinkIntent | None:
    """Returns how a new job root takes over the sink's table; None if the savepoint's job has not written it.

    Args:
        document: the savepoint from which the root is created.

    Raises:
        ConfigError, SinkDiverged: the root must not continue in the table.
    """
    own = SinkContext(document.job_uuid, node.uid, node.parent.schema)
    table_id = node.sink.check(own)
    if table_id is None:
        if policy is ExistingTables.CONTINUE and node.uid in document.sinks:
            raise ConfigError(
                "a table of the savepoint's job does not exist",
                hint="restore it; to start a new one, omit --tables",
                sink=node.uid,
                table=node.sink.location,
                known=document.sinks[node.uid].table_id,
            )
        return None
    if node.sink.delivery is not Delivery.EXACTLY_ONCE:
        return None
    known = {p.table_id: (uid, p) for uid, p in document.sinks.items()}
    uid, published = known.get(table_id, (node.uid, None))
    former = SinkContext(document.job_uuid, uid, node.parent.schema)
    table = node.sink.open_table(former)
    if not (table.token or published):
        if policy is not ExistingTables.KEEP:
            _check_other_jobs(node, own)
        return None
    line = _line_of(node, former, table)
    if policy is ExistingTables.KEEP:
        return SinkIntent(table_id=table_id, mode=SinkMode.KEEP, takes_over=dict.fromkeys(line))
    if policy is ExistingTables.REFUSE:
        raise ConfigError(
            "the savepoint's job has written the table of a sink",
            hint="give the run its own tables; or, if that job no longer runs, continue in its tables: "
            "--tables continue",
            sink=node.uid,
            table=node.sink.location,
            table_id=table_id,
            of_job=f"{document.job} {document.job_uuid}",
        )
    _check_successors(node, former, table)
    since = _check_own_output(node, table, document.checkpoint_id, published)
    _check_later_commits(node, own, table, since, uid)
    return SinkIntent(table_id=table_id, mode=SinkMode.KEEP, takes_over=line)


def _line_of(node: SinkNode, former: SinkContext, table: SinkTable) -> dict[str, int | None]:
    """Returns the token of a sink, and of those that have taken over its table one from the other, by application."""
    found: dict[str, int | None] = {former.application: table.token or 0}
    for successor, token in _successors(node, former, table):
        found[successor.application] = token
    return found


def _successors(node: SinkNode, former: SinkContext, table: SinkTable) -> Iterator[tuple[Successor, int]]:
    """Yields the sinks that have taken over a table one from the other, with their tokens."""
    found = {former.application}
    while table.successor is not None and table.successor.application not in found:
        found.add(table.successor.application)
        job_uuid, _, uid = table.successor.application.partition("/")
        successor, table = table.successor, node.sink.open_table(SinkContext(job_uuid, uid, former.schema))
        yield successor, table.token or 0


def _check_successors(node: SinkNode, former: SinkContext, table: SinkTable) -> None:
    """Raises SinkDiverged when a sink that has taken over the table has published since.

    Their tokens say so for each kind of table; Kafka and PostgreSQL do not record who has written a row.
    """
    for successor, token in _successors(node, former, table):
        # 0: it was killed before the take-over was complete, or the table has no tokens.
        if successor.token < 0 or token not in (0, successor.token):
            raise SinkDiverged(
                "another job root has taken over a table after the savepoint, and written it",
                hint="continue with by_root, or with a savepoint of it; or give the sink its own table; or write the "
                "rows after the savepoint a second time: --tables keep",
                sink=node.uid,
                table=node.sink.location,
                by_root=successor.root,
                of_jobs=[successor.application.partition("/")[0]],
            )


def _check_own_output(
    node: SinkNode, table: SinkTable, checkpoint_id: int, published: PublishedOutput | None
) -> int | None:
    """Returns the table's version at the savepoint; None when it is not known.

    Args:
        published: the savepoint's record of the table; None when it has none.

    Raises:
        SinkDiverged: the table lacks output that the savepoint's job published up to the savepoint, or has some that
            it published afterwards.
    """
    is_known = published is not None and published.version >= 0
    rewind = table.plan_rewind(checkpoint_id)
    if rewind.to_version is not None and (rewind.rows_removed != 0 or rewind.rows_returned != 0):
        raise SinkDiverged(
            "a table holds output that the savepoint's job published after the savepoint",
            hint="restore the table to version_of_savepoint, with the table's own tools, or choose a newer savepoint; "
            "or write the rows a second time: --tables keep",
            sink=node.uid,
            table=node.sink.location,
            version=rewind.from_version,
            version_of_savepoint=rewind.to_version,
            rows_after=rewind.rows_removed,
        )
    if published is not None and is_known and (table.token or 0) < published.checkpoint_id:
        raise SinkDiverged(
            "a table lacks output that was published before the savepoint",
            hint="restore the table; or continue in it as it is: --tables keep",
            sink=node.uid,
            table=node.sink.location,
            token=table.token or 0,
            known=published.checkpoint_id,
        )
    return published.version if published is not None and is_known else rewind.to_version


def _check_later_commits(node: SinkNode, own: SinkContext, table: SinkTable, since: int | None, former: str) -> None:
    """Raises SinkDiverged when another job's sink has committed after version `since`, or ever if that is not known.

    Another root may have been created from the same savepoint, or from a later one.

    Args:
        former: uid of the sink in the savepoint's job.
    """
    if since is None:
        _check_other_jobs(node, own)
        return
    for commit in table.changes_since(since).others:
        names = (name.partition("/") for name in commit.applications)
        jobs = sorted(job for job, _, uid in names if uid in (node.uid, former))
        if jobs:
            raise SinkDiverged(
                "another job has written the table after the savepoint",
                hint="give the sink its own table; or restore this one to version_of_savepoint, with the table's own "
                "tools, and continue in it as it then is: --tables keep",
                sink=node.uid,
                table=node.sink.location,
                of_jobs=jobs,
                version=commit.version,
                version_of_savepoint=since,
            )


def _check_other_jobs(node: SinkNode, own: SinkContext) -> None:
    """Raises SinkDiverged when another job's sink has ever written the table.

    Another root may have been created from the same savepoint, and would have written the rows after it.
    """
    others = node.sink.other_jobs(own)
    if others:
        raise SinkDiverged(
            "the table of a sink was written by another job, which the savepoint does not record",
            hint="give the sink its own table; or continue in this one, whatever it holds: --tables keep",
            sink=node.uid,
            table=node.sink.location,
            of_jobs=sorted(others),
        )
