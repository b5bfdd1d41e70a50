"""Converts keys from the types that are stored to the declared ones, such as the members of an Enum."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence

from stateflow.errors import StateError
from stateflow.runtime.task_spec import ChainSpec
from stateflow.types.columns.shapes import Leaf

Key = tuple[object, ...]
"""The values of the key columns."""
EncodedKey = tuple[bytes, bytes, Key]
"""Key group (2 bytes) and key as they are stored, and the values of the key columns."""


class KeyTypes:
    """The declared types of an operator's key columns.

    Args:
        spec: the operator chain; its keying is set. With two keyed inputs, the first one's types apply.
    """

    def __init__(self, spec: ChainSpec) -> None:
        assert spec.keying is not None
        self._uid = spec.uid
        schema = spec.inputs[0].schema
        shapes = [schema.column(name).shape for name in spec.keying.columns]
        self._kinds = [
            shape.kind if isinstance(shape, Leaf) and _is_converted(shape.kind) else None for shape in shapes
        ]
        self._are_stored = not any(self._kinds)

    def declared(self, key: Key) -> Key:
        """Returns a key of stored values as the function sees it.

        Raises:
            StateError: a value is not one of the declared type, such as a member that was removed from an Enum.
        """
        if self._are_stored:
            return key
        try:
            return tuple(kind(value) if kind else value for kind, value in zip(self._kinds, key, strict=True))
        except (ValueError, TypeError, AttributeError) as e:
            raise StateError(
                "a stored key is not of the declared type",
                hint="restore the removed member of the Enum, or declare the column with the type that it had",
                operator=self._uid,
                key=repr(key)[:200],
                reason=str(e),
            ) from e

    def all_declared(self, keys: Sequence[EncodedKey]) -> Sequence[EncodedKey]:
        """Returns encoded keys with the values as the function sees them; raises StateError as `declared` does."""
        if self._are_stored:
            return keys
        return [(group, encoded, self.declared(values)) for group, encoded, values in keys]


def _is_converted(kind: type) -> bool:
    return issubclass(kind, enum.Enum | uuid.UUID)
