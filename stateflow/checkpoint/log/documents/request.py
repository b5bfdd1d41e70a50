"""The documents of a request to a job's run, and of its answer."""

from __future__ import annotations

from enum import StrEnum

from stateflow.checkpoint.log.documents.savepoint import Origin, SavepointFormat
from stateflow.state.handles import Document


class RequestKind(StrEnum):
    """What a request asks the run to do."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    CHECKPOINT = "checkpoint"


class Request(Document, frozen=True, kw_only=True):
    """`requests/<id>`: a request from outside to the job's run."""

    id: str
    kind: RequestKind
    savepoint: str
    """Name of the savepoint to take."""
    origin: Origin
    by: str
    reason: str = ""
    drain: bool = False
    format: SavepointFormat | None = None
    """The format of the savepoint; None for the default of the run, which depends on the kind."""
    """Of the savepoint."""
    full: bool = False
    """For a checkpoint: whether it must not share files with any earlier checkpoint."""
    at: str
    until: str = ""
    """When the requester stops waiting, by its own clock; a run withdraws the request then. Empty: never."""
    generation: int = 0
    """The only run that the request is for; a newer one withdraws it. 0 for any run."""
    takes_over: bool = False
    """For a stop: whether a newer run asks for it, which continues the job."""


class Answer(Document, frozen=True, kw_only=True):
    """`requests/<id>.done`: the outcome of a request; the first writer decides it."""

    id: str
    status: str
    """``done``, ``failed`` or ``withdrawn``."""
    checkpoint_id: int = 0
    """The savepoint's checkpoint; without a savepoint, the run's checkpoint when it answered."""
    savepoint_id: str = ""
    savepoint: str = ""
    """URI of the savepoint."""
    code: str = ""
    message: str = ""
    by: str = ""
    at: str
