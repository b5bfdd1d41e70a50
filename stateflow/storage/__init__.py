"""Object storage for job roots: one interface, one module per backend, and all object names in `paths`."""

from stateflow.storage.base import BlobInfo, PutResult, Storage
from stateflow.storage.credentials import Credentials
from stateflow.storage.locations import check_location, open_if_allowed, open_location
from stateflow.storage.memory import MemoryStorage
from stateflow.storage.posix import PosixStorage
from stateflow.storage.resolve import open_storage, register_memory, unregister_memory

__all__ = [
    "BlobInfo",
    "Credentials",
    "MemoryStorage",
    "PosixStorage",
    "PutResult",
    "Storage",
    "check_location",
    "open_if_allowed",
    "open_location",
    "open_storage",
    "register_memory",
    "unregister_memory",
]
