"""Checkpoints out of turn: asked of the job's run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from stateflow.checkpoint.asking import Patience, ask_run
from stateflow.checkpoint.documents import Origin, Request, RequestKind
from stateflow.errors import ConfigError
from stateflow.recovery.job_roots import now, open_root


@dataclass(frozen=True)
class CheckpointAsk:
    """Who wants a checkpoint, and how long they wait.

    Attributes:
        request: id; asking again with the same one gives the same answer. Made up when empty.
        full: whether it must have no file in common with any before it: all state is stored anew.
        patience: for a sign that there is a run, and for each later sign that it still is.
        timeout: for the run's barrier.
    """

    by: str = ""
    reason: str = ""
    request: str = ""
    full: bool = False
    patience: timedelta = timedelta(seconds=5)
    timeout: timedelta = timedelta(minutes=10)


def trigger_checkpoint(job_root: str, ask: CheckpointAsk) -> int:
    """Makes the run's next barrier a checkpoint, whatever its interval; returns the checkpoint's id.

    Raises:
        ConfigError: no run works on the job; a run that is not there has nothing that its last checkpoint lacks.
        RequestTimeout: the run did not reach a barrier in time.
    """
    root = open_root(job_root)
    head = root.head()
    given = None
    if not head.entry.ended:
        asked = Request(id=ask.request or root.clock.new_id(), kind=RequestKind.CHECKPOINT, savepoint="",
                        origin=Origin.MANUAL, by=ask.by or root.writer, reason=ask.reason, full=ask.full,
                        at=now(root))  # fmt: skip
        given = ask_run(root, asked, Patience(ask.patience, ask.timeout))
    if given is None:
        raise ConfigError("no run works on the job, or none gave a sign", hint="its newest checkpoint has all that it "
                          "worked off; if one is at work, wait longer: --patience", root=root.storage.uri,
                          checkpoint=head.checkpoint_id)  # fmt: skip
    return given.checkpoint_id
