"""Where bytes live: one small interface, one file per backend, and all path names in one place."""

from stateflow.storage.base import BlobInfo, PutResult, Storage
from stateflow.storage.credentials import Credentials
from stateflow.storage.locate import forget_memory, open_storage
from stateflow.storage.memory import MemoryStorage
from stateflow.storage.posix import PosixStorage

__all__ = [
    "BlobInfo",
    "Credentials",
    "MemoryStorage",
    "PosixStorage",
    "PutResult",
    "Storage",
    "forget_memory",
    "open_storage",
]
