"""Converts keys from the types that are stored to the declared ones, such as the members of an Enum."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.errors import StateError
from stateflow.runtime.task_spec import ChainSpec
from stateflow.types.columns.conversion import stored_scalar
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
        shapes = [schema.column(name).shape for name in spec.keying.row_columns]
        self._kinds = [shape.kind if isinstance(shape, Leaf) and shape.is_converted else None for shape in shapes]
        self._are_stored = not any(self._kinds)

    def declared(self, key: Key) -> Key:
        """Returns a key of stored values as the function receives it.

        Raises:
            StateError: a value is not one of the declared type, such as a member that was removed from an Enum, or a
                UUID in upper case.
        """
        if self._are_stored:
            return key
        try:
            found = tuple(
                kind(value) if kind and value is not None else value
                for kind, value in zip(self._kinds, key, strict=True)
            )
        except (ValueError, TypeError, AttributeError) as e:
            raise self._error("a key is not of the declared type", key, str(e)) from e
        # The two texts of one UUID would be two keys with separate state, which the function could not distinguish.
        stored = tuple(map(stored_scalar, found))
        if stored != key:
            raise self._error("a key is not in the form in which it is stored", key, f"the form is {stored!r}")
        return found

    def all_declared(self, keys: Sequence[EncodedKey]) -> Sequence[EncodedKey]:
        """Returns encoded keys with the values as the function receives them; raises StateError as `declared` does."""
        if self._are_stored:
            return keys
        return [(group, encoded, self.declared(values)) for group, encoded, values in keys]

    def _error(self, message: str, key: Key, reason: str) -> StateError:
        return StateError(
            message,
            hint="convert the column in a transform, for UUIDs with lower(…); restore a member that was removed from "
            "an Enum; or declare the column with the type of its values",
            operator=self._uid,
            key=repr(key)[:200],
            reason=reason,
        )
