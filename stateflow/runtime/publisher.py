"""Publishing what is pending, and what to do when output to be published was deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stateflow.api.sink import Sink, SinkContext, SinkTable
from stateflow.checkpoint.documents import EntryRef, PendingOutput, PublishedOutput, SinkIntent, SinkMode
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.publish import Decision, Output, check_standing, decide, publish, publish_early
from stateflow.errors import MissingFile
from stateflow.state.handles import Committable

Selection = Callable[[PendingOutput], bool]

_NAMED = 20
"""How many checkpoints an error names."""
_NOTHING = PublishedOutput(table_id="", version=-1, checkpoint_id=0)


@dataclass(frozen=True)
class BoundSink:
    """A sink, and which one of which job it is."""

    sink: Sink
    context: SinkContext

    @property
    def uid(self) -> str:
        return self.context.uid

    @property
    def location(self) -> str:
        return self.sink.location

    def open_table(self) -> SinkTable:
        """The table as it is now."""
        return self.sink.open_table(self.context)


class Publisher:
    """Publishes a run's output in order, and remembers where each sink stands."""

    def __init__(self, root: JobRoot, sinks: dict[str, BoundSink]) -> None:
        self._root = root
        self._sinks = sinks
        self.published: dict[str, PublishedOutput] = {}
        self.settled: frozenset[tuple[int, str]] = frozenset()

    def publish_pending(self, head: Head, wanted: Selection = lambda _: True) -> None:
        """Makes visible what `head` carries as pending, oldest first.

        Args:
            wanted: says of each output whether it is meant.

        Raises Fenced, SinkDiverged, MissingFile.
        """
        for pending in pending_of(head):
            if (pending.checkpoint_id, pending.sink) in self.settled or not wanted(pending):
                continue
            output = Output(
                pending.checkpoint_id, self._root.output.read(pending), self._known(head, pending.sink)
            )
            self.published[pending.sink] = publish(self._sinks[pending.sink], output, self._root.log, head)
            self.settled |= {(pending.checkpoint_id, pending.sink)}

    def publish_early(self, head: Head, output: Mapping[str, list[Committable]]) -> None:
        """Makes visible what no checkpoint has yet, by sink; raises as `publish_pending` does."""
        for uid, committables in output.items():
            known = self._known(head, uid)
            standing = publish_early(self._sinks[uid], committables, known, self._root.log, head)
            # Anew each time: another thread may be reading it for a COMMIT.
            self.published = {**self.published, uid: standing}

    def check_standing(self, head: Head) -> None:
        """Raises Fenced or SinkDiverged unless every sink stands where the log says that it does."""
        for uid, sink in self._sinks.items():
            check_standing(sink, self._known(head, uid), self._root.log, head)

    def lost_checkpoint(self, head: Head) -> int | None:
        """The oldest checkpoint whose unpublished output has been deleted; None when all of it is there."""
        lost = [p.checkpoint_id for p in pending_of(head) if self._is_lost(p, head)]
        return min(lost, default=None)

    def way_back(self, head: Head, lost: int) -> tuple[EntryRef, dict[str, SinkIntent]]:
        """The newest retained checkpoint before `lost`, and every table as it stands with it.

        Raises MissingFile when there is none, or when another sink has output from there on already.
        """
        tables = {uid: sink.open_table() for uid, sink in self._sinks.items()}
        ahead = [
            u for u, t in tables.items() if max(t.token or 0, self._known(head, u).checkpoint_id) >= lost
        ]
        # Also when a command has shortened the list since, and a collection has removed the objects of this one.
        retained = self._root.line(head)
        older = [ref for ref in retained if ref.id < lost]
        if ahead or not older:
            raise MissingFile("output that is not yet published was deleted, and the run cannot go back by itself",
                              hint="restore the file, or take the job back with stateflow restore", checkpoint=lost,
                              published_in=ahead, retained=[r.id for r in retained[-_NAMED:]])  # fmt: skip
        # Of the handle whose token was looked at: what comes behind it is a late publication.
        intents = {
            uid: SinkIntent(
                table_id=table.table_id, mode=SinkMode.RESTORE, to_version=table.version, seen_version=table.version
            )
            for uid, table in tables.items()
        }  # fmt: skip
        return older[-1], intents

    def forget(self) -> None:
        """Drops what it remembers: every table goes back, and the log says where it stands then."""
        self.published = {}
        self.settled = frozenset()

    def forget_settled(self, head: Head) -> None:
        """Drops what `head` no longer carries."""
        pending = pending_of(head)
        self.settled &= {(p.checkpoint_id, p.sink) for p in pending}
        self._root.output.keep_only(pending)

    def _is_lost(self, pending: PendingOutput, head: Head) -> bool:
        table = self._sinks[pending.sink].open_table()
        known = self._known(head, pending.sink)
        token = known.checkpoint_id if table.token is None else table.token
        decision = decide(token, known.checkpoint_id, pending.checkpoint_id, head.entry.seq)
        return decision is Decision.PUBLISH and bool(table.missing(self._root.output.read(pending)))

    def _known(self, head: Head, uid: str) -> PublishedOutput:
        return self.published.get(uid) or head.entry.published.get(uid) or _NOTHING
