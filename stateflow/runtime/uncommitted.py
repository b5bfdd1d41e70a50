"""What the barriers since the last checkpoint come to: they were reached, and are not committed yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow.checkpoint.coordinator import PendingCheckpoint
from stateflow.checkpoint.documents import Manifest, PendingOutput
from stateflow.state.handles import Committable


@dataclass
class Uncommitted:
    """Barriers in their order; the newest one has the state, all of them have output.

    Attributes:
        folder: of the driver's files of the newest barrier.
        increment_bytes, compaction_bytes: stored since the last checkpoint.
    """

    manifest: Manifest | None = None
    folder: str = ""
    increment_bytes: int = 0
    compaction_bytes: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    _output: dict[str, list[Committable]] = field(default_factory=dict)

    def add(self, pending: PendingCheckpoint, manifest: Manifest, folder: str) -> None:
        """One more barrier, whose state replaces that of the one before."""
        self.manifest, self.folder = manifest, folder
        self.increment_bytes += manifest.increment_bytes
        self.compaction_bytes += manifest.compaction_bytes
        for sink, committables in pending.output().items():
            self._output.setdefault(sink, []).extend(committables)

    def count(self, rows_in: int, rows_out: dict[str, int], seconds: float) -> None:
        """What the newest barrier's batch did."""
        self.rows_in += rows_in
        self.seconds += seconds
        for sink, rows in rows_out.items():
            self.rows_out[sink] = self.rows_out.get(sink, 0) + rows

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
        return [PendingOutput(checkpoint_id=0, sink=s, committables=c) for s, c in self._output.items()]
