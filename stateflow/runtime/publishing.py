"""Publishing what is pending, and what to do when output to be published was deleted."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow import failpoints
from stateflow.api.sink import Sink, SinkContext, SinkTable
from stateflow.checkpoint.documents import EntryRef, PendingOutput, PublishedOutput
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.publish import Decision, Output, check_standing, decide, publish
from stateflow.errors import MissingFile

_NOTHING = PublishedOutput(table_id="", version=-1, checkpoint_id=0)


@dataclass(frozen=True)
class BoundSink:
    """A sink, and which one of which job it is."""

    sink: Sink
    context: SinkContext

    @property
    def uid(self) -> str:
        return self.context.uid

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

    def publish_pending(self, head: Head, before: int | None = None) -> None:
        """Makes everything visible that `head` carries as pending, oldest first.

        Args:
            before: leave out checkpoints from this one on.

        Raises Fenced, SinkDiverged, MissingFile.
        """
        for pending in pending_of(head):
            if before is not None and pending.checkpoint_id >= before:
                continue
            if (pending.checkpoint_id, pending.sink) in self.settled:
                continue
            output = Output(pending.checkpoint_id, pending.committables, self._known(head, pending.sink))
            self.published[pending.sink] = publish(self._sinks[pending.sink], output, self._root.log, head)
            self.settled |= {(pending.checkpoint_id, pending.sink)}

    def check_standing(self, head: Head) -> None:
        """Raises Fenced or SinkDiverged unless every sink stands where the log says that it does."""
        for uid, sink in self._sinks.items():
            check_standing(sink, self._known(head, uid), self._root.log, head)

    def lost_checkpoint(self, head: Head) -> int | None:
        """The oldest checkpoint whose unpublished output has been deleted; None when all of it is there."""
        lost = [p.checkpoint_id for p in pending_of(head) if self._is_lost(p, head)]
        return min(lost, default=None)

    def base_before(self, head: Head, lost: int) -> EntryRef:
        """The newest retained checkpoint before `lost`, to go back to.

        Raises MissingFile when there is none, or when another sink has output from there on already.
        """
        ahead = [uid for uid in self._sinks if self._token(uid, head) >= lost]
        older = [ref for ref in head.entry.retained if ref.id < lost]
        if ahead or not older:
            raise MissingFile("output that is not yet published was deleted, and the run cannot go back by itself",
                              hint="restore the file, or rewind the job and its sinks by hand", checkpoint=lost,
                              published_in=ahead, retained=[r.id for r in head.entry.retained])  # fmt: skip
        return older[-1]

    def forget_settled(self, head: Head) -> None:
        """Drops what `head` no longer carries."""
        carried = {(p.checkpoint_id, p.sink) for p in pending_of(head)}
        self.settled &= carried

    def _is_lost(self, pending: PendingOutput, head: Head) -> bool:
        table = self._sinks[pending.sink].open_table()
        known = self._known(head, pending.sink)
        token = known.checkpoint_id if table.token is None else table.token
        decision = decide(token, known.checkpoint_id, pending.checkpoint_id, head.entry.seq)
        return decision is Decision.PUBLISH and bool(table.missing(pending.committables))

    def _token(self, uid: str, head: Head) -> int:
        return max(self._sinks[uid].open_table().token or 0, self._known(head, uid).checkpoint_id)

    def _known(self, head: Head, uid: str) -> PublishedOutput:
        return self.published.get(uid) or head.entry.published.get(uid) or _NOTHING


def restore_order(publisher: Publisher, root: JobRoot, head: Head) -> Head:
    """Publishes what a start finds pending; goes back to an older checkpoint when some of it is gone.

    Returns the newest entry: `head`, or the CLAIM that adopts the older checkpoint.
    """
    lost = publisher.lost_checkpoint(head)
    publisher.publish_pending(head, before=lost)
    if lost is None:
        publisher.check_standing(head)
        failpoints.hit("start.published")
        return head
    base = publisher.base_before(head, lost)
    return root.go_back(head, base, f"output of checkpoint {lost} was deleted before it was published")
