"""The document ``FORMAT``, which identifies a job root."""

from __future__ import annotations

from stateflow.state.handles import Document, Parallelism

FORMAT_VERSION = 1


class JobFormat(Document, frozen=True, kw_only=True):
    """`FORMAT`: the job that a job root belongs to; created once, never changed."""

    version: int
    job: str
    job_uuid: str
    max_parallelism: Parallelism
    key_types: dict[str, list[str]] = {}
    """Spark type names of the key columns, by uid of each keyed operator that the job had when it was created."""
    forked_from: str = ""
    """What a fork was made from: a savepoint's id, or job uuid and checkpoint. Empty for any other job."""
    begun_with: str = ""
    """URI of the savepoint that the job root was created from; empty for any other job."""
    shadow: bool = False
    """Whether every run publishes to shadow tables instead of the tables that the job file names."""
