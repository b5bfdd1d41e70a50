"""What the barriers since the last checkpoint come to: they were reached, and are not committed yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow.checkpoint.documents import Manifest, PendingOutput
from stateflow.runtime.measures import Measures
from stateflow.state.handles import Committable


@dataclass
class Uncommitted:
    """Barriers in their order; the newest one has the state, all of them have output.

    Attributes:
        folder: of the driver's files of the newest barrier.
        tries: how many checkpoints of this very barrier were aborted.
        increment_bytes, compaction_bytes: stored since the last checkpoint.
        seconds: that the batches took.
        committables: files to publish, by sink.
        measures: of the newest barrier's batch.
        reached_at: when the checkpoint that all of it becomes was triggered, by the clock that never goes back.
    """

    manifest: Manifest | None = None
    folder: str = ""
    tries: int = 0
    increment_bytes: int = 0
    compaction_bytes: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    measures: Measures = field(default_factory=Measures)
    reached_at: float = 0.0
    committables: dict[str, list[Committable]] = field(default_factory=dict)

    def add(self, manifest: Manifest, folder: str, output: dict[str, list[Committable]]) -> None:
        """One more barrier, whose state replaces that of the one before.

        Args:
            output: to publish with the checkpoint, by sink.
        """
        self.manifest, self.folder = manifest, folder
        self.increment_bytes += manifest.increment_bytes
        self.compaction_bytes += manifest.compaction_bytes
        _add_files(self.committables, output)

    def count(self, rows_in: int, rows_out: dict[str, int], seconds: float, measures: Measures) -> None:
        """What the newest barrier's batch did."""
        self.measures = measures
        self.rows_in += rows_in
        self.seconds += seconds
        _add_rows(self.rows_out, rows_out)

    def behind(self, older: Uncommitted) -> Uncommitted:
        """Both together, as what stands behind an aborted checkpoint takes over what that would have published."""
        if older.manifest is None:
            return self
        newest, tries = (self, 0) if self.manifest is not None else (older, older.tries + 1)
        both = Uncommitted(
            newest.manifest, newest.folder, tries, older.increment_bytes + self.increment_bytes,
            older.compaction_bytes + self.compaction_bytes, older.rows_in + self.rows_in,
            seconds=older.seconds + self.seconds, measures=newest.measures, reached_at=self.reached_at,
        )  # fmt: skip
        for each in (older, self):
            _add_rows(both.rows_out, each.rows_out)
            _add_files(both.committables, each.committables)
        return both

    @property
    def ordinal(self) -> int:
        """Of the newest barrier."""
        return self.manifest.ordinal if self.manifest else 0

    @property
    def document(self) -> Manifest:
        """The manifest of the checkpoint that all of it becomes."""
        assert self.manifest is not None
        return replace(
            self.manifest, increment_bytes=self.increment_bytes, compaction_bytes=self.compaction_bytes
        )

    @property
    def output(self) -> list[PendingOutput]:
        """Files to publish."""
        return [PendingOutput(checkpoint_id=0, sink=s, committables=c) for s, c in self.committables.items()]


def _add_rows(counts: dict[str, int], more: dict[str, int]) -> None:
    for sink, rows in more.items():
        counts[sink] = counts.get(sink, 0) + rows


def _add_files(files: dict[str, list[Committable]], more: dict[str, list[Committable]]) -> None:
    for sink, committables in more.items():
        files.setdefault(sink, []).extend(committables)
