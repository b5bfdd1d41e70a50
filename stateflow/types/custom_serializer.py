"""Custom serializers: what a job file provides for values that a declared type cannot describe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Compatibility(Enum):
    """Compatibility of a serializer with values that another version of it wrote."""

    AS_IS = "as is"
    AFTER_MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


class Serializer(ABC, Generic[T]):
    """Base class of custom serializers, for values that a declared type cannot describe.

    Each value is stored with the version that wrote it. A value of an older version is decoded when it is read, and
    stored in the newest version when it is written again: `decode` must support every version that `compatibility`
    accepts.

    Attributes:
        name: identifies the serializer over all versions of the job; a state's serializer cannot be replaced by one
            with another name.
        version: the version that `encode` writes, at least 1.
    """

    name: str
    version: int = 1

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """Returns the bytes of a value; exceptions are reported as StateError."""

    @abstractmethod
    def decode(self, data: bytes, version: int) -> T:
        """Returns the value that `encode` of `version` has encoded as `data`; exceptions are reported as CorruptFile.

        The data may be damaged or forged: it must never determine which code runs, as it would with pickle.
        """

    def compatibility(self, stored_version: int) -> Compatibility:
        """Returns whether values of a stored version can be decoded; called before a run claims the job.

        By default, only values of the serializer's own version can be decoded.
        """
        return Compatibility.AS_IS if stored_version == self.version else Compatibility.INCOMPATIBLE
