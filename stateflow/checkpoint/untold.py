"""History that only the newest manifest has: read with the rest, and stored before that manifest goes out of sight."""

from __future__ import annotations

import logging
from collections.abc import Sequence

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
        store_pending_records(root, head, told_at(root, head))
    except StateflowError as e:
        log.warning("the history of the newest checkpoints was not written: %s", e)


def store_pending_records(root: JobRoot, head: Head, records: Sequence[CheckpointRecord]) -> None:
    """Stores records that only the manifest of `head` has. The same ones have the same name, however often a start
    fails after this. Raises StorageError or ConfigError."""
    manifest = head.entry.manifest
    write_records(root.storage, records, manifest.sha256 if manifest else root.clock.new_id())
