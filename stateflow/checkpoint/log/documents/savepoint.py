"""The document of a savepoint."""

from __future__ import annotations

from enum import StrEnum

from stateflow.checkpoint.log.documents.log_entry import PublishedOutput
from stateflow.checkpoint.log.documents.manifest import Manifest
from stateflow.state.handles import Document, Int64, Parallelism


class Origin(StrEnum):
    """Why a savepoint was taken. Retention by age and number applies to periodic savepoints only."""

    MANUAL = "manual"
    PERIODIC = "periodic"
    STOP = "stop"
    UPGRADE = "upgrade"


class SavepointFormat(StrEnum):
    """How a savepoint stores keyed state."""

    NATIVE = "native"
    """As the state backend stored it."""
    CANONICAL = "canonical"
    """In a format that is independent of the state backend."""


class ClaimState(StrEnum):
    """What a slot in a savepoint's ``claims/`` says about the savepoint's owner."""

    CLAIMED = "claimed"
    """A job owns it, and deletes it."""
    RELEASED = "released"
    """A claim was undone: the user owns it, and any job may claim it."""
    DELETED = "deleted"
    """A user is deleting it: no job may claim it."""


class SavepointClaim(Document, frozen=True, kw_only=True):
    """``claims/<number>`` in a savepoint's folder; the slot with the highest number counts."""

    state: ClaimState
    job: str = ""
    job_uuid: str = ""
    """The job that has claimed or released it; empty for a deletion."""
    job_root: str = ""
    """URI of that job's root, for information."""
    generation: Int64 = 0
    """The job's generation that wrote the slot; 0 in a job root that begins with the savepoint."""
    by: str
    at: str
    """When it was written, by the writer's clock; for information."""


class Savepoint(Document, frozen=True, kw_only=True):
    """`_savepoint` in a savepoint's folder. It is written last: a folder without it is not a savepoint."""

    version: int
    id: str
    name: str
    origin: Origin
    made_at: str
    committed_at: str = ""
    """When its checkpoint was committed, according to the log; empty in savepoints of older versions."""
    by: str
    reason: str = ""
    request: str = ""
    """Id of the request that it answers, so that the same request is not answered twice."""
    generation: int = 0
    """Generation of the run that created it for a request; the run's answer decides whether it is kept. 0 when it was
    created outside of a run."""
    drained: bool = False
    format: SavepointFormat = SavepointFormat.NATIVE
    job: str
    job_uuid: str
    max_parallelism: Parallelism
    checkpoint_id: int
    manifest: Manifest
    """The checkpoint's manifest, with keys relative to the savepoint's folder."""
    sinks: dict[str, PublishedOutput]
    """Position of each sink after this checkpoint's output was published, as far as the log knew."""
    stateflow: str = ""
    positions: dict[str, str] = {}
    """By uid of the source, where it continues as the caller of `SavepointWriter` stated it, such as ``latest``."""
