"""A job root in memory and a run of it."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import Manifest, PendingOutput, SourcePosition
from stateflow.checkpoint.log.entry_lists import OutputSizes, SegmentSizes
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import write_manifest
from stateflow.checkpoint.log.transitions import Commit
from stateflow.clock import ManualClock
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import data_folder


class MemoryJob:
    """A run that commits what a test wants; `opened` returns the root as another process reads it."""

    def __init__(
        self,
        storage: MemoryStorage | None = None,
        segments: SegmentSizes | None = None,
        outputs: OutputSizes | None = None,
    ) -> None:
        self.storage = storage or MemoryStorage()
        self.segments, self.outputs = segments or SegmentSizes(), outputs or OutputSizes()
        self.root = self.opened()
        self.head = self.root.claim()

    def opened(self) -> JobRoot:
        root = JobRoot.create_or_open(self.storage, ManualClock(), NewJob("job", 4, {}), "a test")
        root.checkpoints.retained.sizes, root.outputs.sizes = self.segments, self.outputs
        return root

    def commit(
        self, retention: RetentionLimits, files: Sequence[Committable] = (), sources: Sequence[SourcePosition] = ()
    ) -> None:
        """Commits an empty manifest, with these files as pending output of the sink "out"."""
        entry = self.head.entry
        ordinal = entry.ordinal + 1
        folder = data_folder(entry.generation, ordinal, "driver")
        manifest = Manifest(
            job_uuid=entry.job_uuid, generation=entry.generation, ordinal=ordinal, operators=[], sources=[]
        )
        handle = write_manifest(self.storage, folder, manifest)
        pending = [PendingOutput(checkpoint_id=0, sink="out", committables=list(files))] if files else []
        output = self.root.outputs.store(folder, "output-1", pending)
        outcome = self.root.commit(self.head, Commit(ordinal, handle, list(sources), output), retention)
        assert isinstance(outcome, Appended)
        self.head = outcome.head
