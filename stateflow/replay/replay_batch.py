"""Replays a batch from Python: what the command prints, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stateflow.config.sources import SettingsLayer, read_toml
from stateflow.replay.key_trace import KeyRequest
from stateflow.replay.report import ReplayReport
from stateflow.replay.run import DEFAULT_ROWS, ReplayRequest, replay
from stateflow.types.key_values import plain_key


def replay_batch(
    job_file: str | Path,
    job_root: str,
    batch: int,
    *,
    settings: str | Path | Mapping[str, object] | None = None,
    key: Sequence[object] = (),
    operator: str = "",
    max_rows: int | None = DEFAULT_ROWS,
) -> ReplayReport:
    """Runs a batch again, from the checkpoint before it, and returns what it emits and how it changes the state.

    Nothing is published, and the job root does not change, apart from pins that are removed at the end. Runs of the job
    may continue meanwhile. State and rows go to a scratch folder that is removed at the end.

    Args:
        job_file: the job file.
        job_root: the job root, as a path or URI.
        batch: id of the checkpoint whose batch runs again: what the job did between the checkpoint before it and this.
        settings: the settings of the job: a TOML file, or values by name, such as ``{"checkpoints.retained": 5}``.
        key: the values of the key columns of the only key whose calls and state to return: texts as on the command
            line, or the values. Empty for no key.
        operator: with a key, uid of the only operator; empty for every operator whose key columns have such values.
        max_rows: rows of each sink, and changes of state, to return; None for all.

    Raises:
        ConfigError: the checkpoint or the one before it is not retained, or job, key and state do not fit.
        InputLost: a source no longer has the rows; the fact ``left`` has the batches that can be replayed.
        StateflowError: the batch failed.
    """
    wanted = KeyRequest(key_texts(key), operator) if key else None
    return replay(ReplayRequest(Path(job_file), job_root, batch, _layers(settings), max_rows, wanted))


def _layers(settings: str | Path | Mapping[str, object] | None) -> tuple[SettingsLayer, ...]:
    if settings is None:
        return ()
    return (dict(settings),) if isinstance(settings, Mapping) else (read_toml(Path(settings)),)


def key_texts(key: Sequence[object]) -> tuple[str, ...]:
    """Returns the values of key columns as on the command line, where `parse_key` reads them."""
    plain = plain_key(key)
    if None in plain:
        return (msgspec.json.encode(plain).decode(),)
    return tuple(map(str, plain))
