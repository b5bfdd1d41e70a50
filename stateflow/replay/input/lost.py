"""The error for input that a source no longer has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from stateflow.api.input_files import unreadable_in
from stateflow.errors import InputLost
from stateflow.replay.target import PlannedBatch

_POSITION = 500
"""Characters of a position in an error."""


def input_lost(uid: str, lost: Sequence[str], batch: PlannedBatch) -> InputLost:
    """Returns the error for a source that no longer has the rows of a batch.

    Args:
        uid: uid of the source.
        lost: texts on what it no longer has.
        batch: the batch, with the positions of the source.
    """
    return InputLost(
        "the source no longer has the rows of the batch",
        hint="a replay needs the input as it was: restore it, or replay one of the batches left",
        source=uid,
        lost=list(lost),
        start=batch.start_of(uid)[:_POSITION],
        end=batch.end_of(uid)[:_POSITION],
    )


def deleted_file(text: str, batch: PlannedBatch, descriptions: Mapping[str, str]) -> InputLost | None:
    """Returns the error for a file of a batch that Spark did not find; None if its error is another one.

    Args:
        text: Spark's error.
        descriptions: the descriptions of the sources by uid, which have the paths that they read.
    """
    found = unreadable_in(text)
    if found is None or not found.was_deleted:
        return None
    folders = [str(folder) for folder in PurePath(found.path).parents][:-1]
    moved = [uid for uid in descriptions if batch.moves(uid)]
    readers = [uid for uid in moved if any(folder in descriptions[uid] for folder in folders)]
    return input_lost((readers or moved)[0], [f"{found.path}: it does not exist"], batch)
