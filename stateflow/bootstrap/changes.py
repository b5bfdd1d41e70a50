"""Changes of an existing savepoint: methods of the writer that `SavepointWriter.from_savepoint` returns."""

from __future__ import annotations

from typing import Self, TypeVar

from stateflow.bootstrap.existing import Existing
from stateflow.bootstrap.transforms import StateTransformation, Transform
from stateflow.errors import ConfigError
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class SavepointChanges:
    """Removes operators of an existing savepoint, and transforms their states.

    A transformation is a function that returns the new rows of some rows: it gets a `pyarrow.RecordBatch` with the
    columns of `stateflow.read_state`, and returns one with the columns of the frames that `SavepointWriter` accepts.
    Keys may be removed, added or changed. It is called in this process, once for each batch, and not for a state
    without rows. Everything that is not transformed stays as it is.
    """

    def __init__(self, existing: Existing | None = None) -> None:
        self._existing = existing

    def without_operator(self, uid: str) -> Self:
        """Removes an operator of the existing savepoint with all of its state; returns this writer.

        Raises:
            ConfigError: the savepoint has no such operator, or the writer is of a new one.
        """
        self._of_existing(uid).remove(uid)
        return self

    def transform_state(self, uid: str, descriptor: StateDescriptor, function: Transform) -> Self:
        """Replaces the entries of a keyed state of the existing savepoint; returns this writer.

        Args:
            uid: uid of the operator.
            descriptor: the state as the job declares it from now on, under its name; kind and type may be others.
            function: returns new rows, with the columns that `KeyedStateFrame` describes under their default names. The
                elements of a list are in the order of the rows. ``written_at``, from which a time to live counts, stays
                as it is if the function returns it.

        Raises:
            ConfigError: the savepoint has no such operator or state, or the writer is of a new one.
        """
        return self._transformed(uid, StateTransformation(descriptor, function))

    def transform_timers(self, uid: str, function: Transform) -> Self:
        """Replaces the timers of an operator; returns this writer. Arguments and errors as for `transform_state`.

        Args:
            uid: uid of the operator.
            function: returns new rows: the key columns, ``time``, ``domain`` and ``namespace``, as for
                `SavepointWriter.with_operator`.
        """
        return self._transformed(uid, StateTransformation(None, function))

    def transform_operator_state(self, uid: str, descriptor: ListStateDescriptor[T], function: Transform) -> Self:
        """Replaces the elements of a list of operator state; returns this writer. A union list stays one.

        Arguments and errors as for `transform_state`.

        Args:
            uid: uid of the operator.
            descriptor: the list as the job declares it from now on, under its name.
            function: returns new rows: ``value``, or a column for each field. Each subtask keeps the new rows of its
                own elements.
        """
        return self._transformed(uid, StateTransformation(descriptor, function, is_of_operator=True))

    def transform_broadcast_state(self, uid: str, descriptor: MapStateDescriptor[K, V], function: Transform) -> Self:
        """Replaces the entries of a broadcast state; returns this writer.

        Arguments and errors as for `transform_state`.

        Args:
            uid: uid of the operator.
            descriptor: the map as the job declares it from now on, under its name.
            function: returns new rows: ``map_key``, and ``value`` or a column for each field.
        """
        return self._transformed(uid, StateTransformation(descriptor, function, is_of_operator=True))

    def _transformed(self, uid: str, change: StateTransformation) -> Self:
        self._of_existing(uid).add_change(uid, change)
        return self

    def _of_existing(self, uid: str) -> Existing:
        if self._existing is None:
            raise ConfigError(
                "a new savepoint has no operator that could be changed", hint="use from_savepoint(path)", uid=uid
            )
        return self._existing
