"""The table of a sink, as its maintenance needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stateflow.api.schema import RowSchema
from stateflow.connectors.delta.log.table_log import DeltaHead, read_head
from stateflow.errors import SinkDiverged

COMPACTED = "compacted"
"""In place of the job's UUID in the names of files that combine others, so that no sink takes them for its own."""


@dataclass(frozen=True)
class OwnTable:
    """The table of a sink.

    Attributes:
        path: folder of the table.
        job_uuid: UUID of the job.
        uid: uid of the sink.
        schema: columns of the table that the sink writes.
        partition_by: the partition columns.
    """

    path: Path
    job_uuid: str
    uid: str
    schema: RowSchema
    partition_by: tuple[str, ...]

    @property
    def application(self) -> str:
        """The name under which the table stores the sink's token."""
        return f"{self.job_uuid}/{self.uid}"

    def head(self, known: DeltaHead | None = None) -> DeltaHead:
        """Returns the newest version. Raises SinkDiverged if there is no table."""
        head = read_head(self.path, self.application, known)
        if head is None:
            raise SinkDiverged("the sink's table does not exist", hint="run the job first", table=str(self.path))
        return head
