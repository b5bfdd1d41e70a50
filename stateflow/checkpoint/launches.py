"""What the driver of a launch in a cluster stores below the job root for the process that has submitted it.

That process runs on another host: it learns from these objects which run of the job is its own, and how that ended.
The newest `KEEP` launches are kept, so that the result of a launch can be read again after the process was killed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping

from stateflow.errors import ConfigError, DataError, StateflowError
from stateflow.storage import Storage
from stateflow.storage.paths import LAUNCHES, launch_folder, launch_result_key, launch_run_key, parse_launch

log = logging.getLogger(__name__)

KEEP = 20
"""Launches of which the results are kept."""
_LIMIT = 1 << 20
"""Size of the largest result, in bytes."""
_RUN, _RESULT = "run", "result"
_ID = re.compile("[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")


def record_run(storage: Storage, launch: str, generation: int) -> None:
    """Stores that a run belongs to a launch. Raises StorageError."""
    storage.put_new(launch_run_key(check_launch(launch), generation), b"")


def generation_of(storage: Storage, launch: str) -> int:
    """Returns the generation of the newest run of a launch; 0 if none has claimed the job."""
    return max((generation for kind, generation, _ in _objects(storage, launch) if kind == _RUN), default=0)


def store_result(
    storage: Storage, launch: str, seq: int, document: Mapping[str, object], *, generation: int = 0
) -> None:
    """Stores the result of a launch, and deletes the results of old launches.

    An error is logged: the run has ended as it did, and only the report about it is lost.

    Args:
        storage: the job root, which may not have a job.
        launch: the launch.
        seq: number of the newest log entry; 0 without one.
        document: the result, as in the result file of a run.
        generation: of the driver's newest run; 0 if it has not claimed the job.
    """
    try:
        data = json.dumps(document, default=str, skipkeys=True).encode()
        if len(data) > _LIMIT:
            data = json.dumps(_without_details(document)).encode()
        storage.put_new(launch_result_key(check_launch(launch), generation, seq), data)
        _trim(storage)
    except (StateflowError, OSError) as e:
        log.warning("the result of the launch could not be stored: launch=%s: %s", launch, e)


def read_launch_result(storage: Storage, launch: str) -> dict[str, object] | None:
    """Returns the result of a launch; None if its driver has stored none.

    A cluster may have given up a driver that still works, such as one on a host that it cannot reach. Once a successor
    has fenced it, it stores a result as well, maybe later than the successor. So the newest generation counts.

    Raises:
        DataError: the stored result is damaged.
        StorageError: the job root cannot be read.
    """
    ends = [(generation, seq) for kind, generation, seq in _objects(storage, launch) if kind == _RESULT]
    if not ends:
        return None
    key = launch_result_key(launch, *max(ends))
    try:
        found = json.loads(storage.get(key, _LIMIT))
    except (ValueError, RecursionError) as e:
        raise DataError("the stored result of a launch is not valid JSON", key=key, storage=storage.uri) from e
    if not isinstance(found, dict):
        raise DataError("the stored result of a launch is not an object", key=key, storage=storage.uri)
    return found


def forget_launch(storage: Storage, launch: str) -> None:
    """Deletes what is stored for a launch, before it is submitted again."""
    storage.delete([blob.key for blob in storage.list(launch_folder(check_launch(launch)))])


def check_launch(launch: str) -> str:
    """Returns the id of a launch, which clusters can store as a tag or a label. Raises ConfigError for another text."""
    if not _ID.fullmatch(launch):
        raise ConfigError(
            "the id of a launch is not valid", hint="use 1 to 50 lower-case letters, digits and -", launch=launch[:100]
        )
    return launch


def _objects(storage: Storage, launch: str) -> list[tuple[str, int, int]]:
    parsed = [parse_launch(blob.key) for blob in storage.list(launch_folder(check_launch(launch)))]
    return [found[1:] for found in parsed if found]


def _trim(storage: Storage) -> None:
    parsed = [(blob.key, parse_launch(blob.key)) for blob in storage.list(LAUNCHES)]
    newest: dict[str, int] = {}
    for _, found in parsed:
        if found:
            newest[found[0]] = max(newest.get(found[0], 0), *found[2:])
    old = set(sorted(newest, key=lambda launch: newest[launch])[:-KEEP])
    storage.delete([key for key, found in parsed if found and found[0] in old])


def _without_details(document: Mapping[str, object]) -> dict[str, object]:
    """Returns a result without what may be long: facts of an error, and lists of rows or files."""
    kept: dict[str, object] = dict(document)
    error, result = document.get("error"), document.get("result")
    if isinstance(error, Mapping):
        kept["error"] = {**error, "facts": {}}
    if isinstance(result, Mapping):
        short = {name: value for name, value in result.items() if isinstance(value, str | int | float | None)}
        offsets = result.get("offsets")
        kept["result"] = short | ({"offsets": offsets} if len(str(offsets)) < _LIMIT // 2 else {})
    return kept
