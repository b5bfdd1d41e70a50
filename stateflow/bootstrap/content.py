"""Objects of a savepoint that are named by their content."""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from stateflow.bootstrap.layout import Target
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.state.handles import FileHandle
from stateflow.storage.paths import SAVEPOINT_FILES


def store_content(target: Target, data: bytes) -> FileHandle:
    """Stores bytes in a file of a savepoint, and returns its handle; an earlier attempt may have stored the same."""
    key = f"{SAVEPOINT_FILES}{hashlib.sha256(data).hexdigest()}"
    return replace(write_bytes(target.storage, f"{target.folder}{key}", data), key=key)
