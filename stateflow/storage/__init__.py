"""Object storage for job roots.

- `base`: the interface `Storage`, and helpers that several backends share.
- `posix`, `memory`, `object_store`, `hdfs`: a module for each backend; `overlay`: scratch storage over another one.
- `locations`: opens the storage that a URI or location names, if allowed, with the credentials of the environment.
- `paths`: the names of all objects; `race_probe`: whether a storage lets one of several writers create an object.
"""

from stateflow.storage.base import BlobInfo, PutResult, Storage
from stateflow.storage.locations import (
    Credentials,
    check_address,
    check_location,
    is_object_address,
    open_below,
    open_if_allowed,
    open_location,
    open_object,
    open_storage,
    register_memory,
    split_object,
    unregister_memory,
)
from stateflow.storage.memory import MemoryStorage
from stateflow.storage.posix import PosixStorage

__all__ = [
    "BlobInfo",
    "Credentials",
    "MemoryStorage",
    "PosixStorage",
    "PutResult",
    "Storage",
    "check_address",
    "check_location",
    "is_object_address",
    "open_below",
    "open_if_allowed",
    "open_location",
    "open_object",
    "open_storage",
    "register_memory",
    "split_object",
    "unregister_memory",
]
