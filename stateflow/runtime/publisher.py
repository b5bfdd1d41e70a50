"""Publication of a run's pending output, and the plan of a rewind when some of it was deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from stateflow.api.sink import Sink, SinkContext, SinkTable
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import EntryRef, PendingOutput, PublishedOutput, SinkIntent, SinkMode
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.sink_commit import Decision, SinkOutput, check_sink_position, decide, publish, publish_early
from stateflow.errors import ConfigError, Fenced, MissingFile
from stateflow.state.handles import Committable

OutputFilter = Callable[[PendingOutput], bool]
"""Returns whether to publish an output."""

_MAX_NAMED = 20
"""Checkpoints that an error names."""
_NEVER_PUBLISHED = PublishedOutput(table_id="", version=-1, checkpoint_id=0)


@dataclass(frozen=True)
class BoundSink:
    """A sink of a job.

    Attributes:
        sink: the sink as the job file declares it.
        context: names the job and the sink.
        shares_table: whether sinks of the same uid of other job roots may write to the table, too.
    """

    sink: Sink
    context: SinkContext
    shares_table: bool = False

    @property
    def uid(self) -> str:
        """The sink's name in the job."""
        return self.context.uid

    @property
    def location(self) -> str:
        """Path of the table; empty for a sink without one."""
        return self.sink.location

    def open_table(self) -> SinkTable:
        """Opens the current version of the table. Raises Fenced if another job root has taken it over."""
        table = self.sink.open_table(self.context)
        if table.successor is not None:
            raise Fenced(
                "another job root has taken over the sink's table from this one",
                hint="run the job with the job root in by_root. To return to this one, start a new job root from a "
                "savepoint of it: stateflow run --from-savepoint PATH --tables continue",
                sink=self.uid,
                table=self.location,
                by_root=table.successor.root,
                by_job=table.successor.application.partition("/")[0],
            )
        return table

    def check_unshared(self) -> None:
        """Raises ConfigError if the sink of the same uid of another job root writes to the table.

        This job root has published nothing there: it would read all input again, and write its rows a second time.
        """
        others = self.sink.other_jobs(self.context)
        if others and not self.shares_table:
            raise ConfigError(
                "a sink of the same uid of another job root writes to the table",
                hint="check the job root, or give the sink its own table or another uid. To continue that job, start "
                "from a savepoint of it: --from-savepoint PATH --tables continue. To write to the same table as well: "
                "--tables keep",
                sink=self.uid,
                table=self.location,
                of_jobs=sorted(others),
            )


class Publisher:
    """Publishes a run's output in order, and tracks the newest publication of each sink.

    Args:
        root: the job root.
        sinks: the job's sinks, by uid.

    Attributes:
        published: the newest publication of this run, by uid of the sink.
        settled: pairs of checkpoint id and sink whose pending output is published.
    """

    def __init__(self, root: JobRoot, sinks: dict[str, BoundSink]) -> None:
        self._root = root
        self._sinks = sinks
        self.published: dict[str, PublishedOutput] = {}
        self.settled: frozenset[tuple[int, str]] = frozenset()
        self._seconds: dict[str, float] = {}

    def take_durations(self) -> dict[str, float]:
        """Returns how long publications have taken since the last call, in seconds by uid of the sink."""
        found, self._seconds = self._seconds, {}
        return found

    @contextmanager
    def _measure(self, sink: str) -> Iterator[None]:
        began = self._root.clock.monotonic()
        yield
        self._seconds[sink] = self._seconds.get(sink, 0.0) + self._root.clock.monotonic() - began

    def publish_pending(self, head: Head, wanted: OutputFilter = lambda _: True) -> None:
        """Publishes the pending output of `head`, oldest first.

        Args:
            wanted: selects the output to publish.

        Raises:
            Fenced: a newer run has published to a table.
            SinkDiverged: a table was replaced or changed without this job.
            MissingFile: a file to publish was deleted.
        """
        for pending in pending_of(head):
            if (pending.checkpoint_id, pending.sink) in self.settled or not wanted(pending):
                continue
            output = SinkOutput(
                pending.checkpoint_id, self._root.outputs.read(pending), self._known(head, pending.sink)
            )
            with self._measure(pending.sink):
                self.published[pending.sink] = publish(self._sinks[pending.sink], output, self._root.log, head)
            self.settled |= {(pending.checkpoint_id, pending.sink)}

    def publish_early(self, head: Head, output: Mapping[str, list[Committable]]) -> None:
        """Publishes output before its checkpoint exists; raises as `publish_pending` does.

        Args:
            head: the newest log entry of the run.
            output: files to publish, by uid of the sink.
        """
        for uid, committables in output.items():
            known = self._known(head, uid)
            with self._measure(uid):
                position = publish_early(self._sinks[uid], committables, known, self._root.log, head)
            # A new dictionary each time: another thread may be reading the old one for a COMMIT.
            self.published = {**self.published, uid: position}

    def check_tables(self, head: Head) -> None:
        """Raises Fenced or SinkDiverged unless the token of every table is the one that the log has."""
        for uid, sink in self._sinks.items():
            check_sink_position(sink, self._known(head, uid), self._root.log, head)

    def oldest_lost_checkpoint(self, head: Head) -> int | None:
        """Returns the id of the oldest checkpoint with deleted pending output; None when no file is missing."""
        lost = [p.checkpoint_id for p in pending_of(head) if self._is_lost(p, head)]
        return min(lost, default=None)

    def plan_rewind(self, head: Head, lost: int) -> tuple[EntryRef, dict[str, SinkIntent]]:
        """Returns the newest retained checkpoint before `lost`, and an intent for each sink's table, by uid.

        Args:
            head: the newest log entry of the run.
            lost: id of the oldest checkpoint whose output was deleted before its publication.

        Raises:
            MissingFile: no older checkpoint is retained, or another sink has already published output of `lost`.
        """
        tables = {uid: sink.open_table() for uid, sink in self._sinks.items()}
        ahead = [u for u, t in tables.items() if max(t.token or 0, self._known(head, u).checkpoint_id) >= lost]
        # This list may be empty: a command can shorten it, and a collection then removes its objects.
        retained = self._root.checkpoints.restorable(head)
        older = [ref for ref in retained if ref.id < lost]
        if ahead or not older:
            raise MissingFile(
                "output was deleted before it was published, and no earlier checkpoint can replace it",
                hint="restore the file from a backup, or restore a savepoint with 'stateflow restore'",
                checkpoint_id=lost,
                published_in=ahead,
                retained_checkpoint_ids=[r.id for r in retained[-_MAX_NAMED:]],
            )
        # Versions of the handles whose tokens were checked: whatever follows is a late publication.
        intents = {
            uid: SinkIntent(
                table_id=table.table_id, mode=SinkMode.RESTORE, to_version=table.version, seen_version=table.version
            )
            for uid, table in tables.items()
        }
        return older[-1], intents

    def reset(self) -> None:
        """Drops all recorded publications. Called when every table is rewound; the log then has the new positions."""
        self.published = {}
        self.settled = frozenset()

    def discard_settled(self, head: Head) -> None:
        """Drops settled output that is no longer pending in `head`."""
        pending = pending_of(head)
        self.settled &= {(p.checkpoint_id, p.sink) for p in pending}
        self._root.outputs.keep_only(pending)

    def _is_lost(self, pending: PendingOutput, head: Head) -> bool:
        if not (self._is_unpublished(pending, head) and self._has_missing_files(pending)):
            return False
        # Again: a fenced run may have published the output meanwhile, and then removed the files.
        return self._is_unpublished(pending, head)

    def _is_unpublished(self, pending: PendingOutput, head: Head) -> bool:
        table, known = self._sinks[pending.sink].open_table(), self._known(head, pending.sink)
        token = known.checkpoint_id if table.token is None else table.token
        return decide(token, known.checkpoint_id, pending.checkpoint_id, head.entry.seq) is Decision.PUBLISH

    def _has_missing_files(self, pending: PendingOutput) -> bool:
        return bool(self._sinks[pending.sink].open_table().missing(self._root.outputs.read(pending)))

    def _known(self, head: Head, uid: str) -> PublishedOutput:
        return self.published.get(uid) or head.entry.published.get(uid) or _NEVER_PUBLISHED
