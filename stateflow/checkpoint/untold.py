"""History that only the newest manifest has: read with the rest, and stored before that manifest goes out of sight."""

from __future__ import annotations

import logging

from stateflow.checkpoint.history import CheckpointRecord, write_records
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.errors import StateflowError

log = logging.getLogger(__name__)


def told_at(root: JobRoot, head: Head) -> list[CheckpointRecord]:
    """The records that the newest manifest has; none when it cannot be read, which others will say."""
    try:
        manifest = root.manifest(head)
    except StateflowError as e:
        log.warning("the history of the newest checkpoint cannot be read: %s", e)
        return []
    return manifest.told(head.checkpoint_id) if manifest else []


def tell_history(root: JobRoot, head: Head) -> None:
    """Stores them; twice does no harm. A storage that fails is logged, and fails nothing."""
    try:
        write_records(root.storage, told_at(root, head), root.clock.new_id())
    except StateflowError as e:
        log.warning("the history of the newest checkpoints was not written: %s", e)
