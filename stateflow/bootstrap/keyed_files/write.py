"""Writes the keyed state of an operator: on Spark if a frame is Spark's, otherwise in this process."""

from __future__ import annotations

from stateflow.bootstrap.encoding.frames import is_spark
from stateflow.bootstrap.keyed_files.local import write_local
from stateflow.bootstrap.layout import KeyedOperator, Layout, Target
from stateflow.state.handles import SubtaskState


def write_keyed(operator: KeyedOperator, layout: Layout, target: Target) -> list[SubtaskState]:
    """Writes the keyed state of an operator in canonical files; returns the state of each subtask that has entries.

    Raises:
        DataError: a key occurs twice, or a value is null.
        SchemaMismatch, StateError, EntryTooLarge: a value cannot be stored.
    """
    if any(map(is_spark, operator.frames)):
        from stateflow.bootstrap.keyed_files.spark import write_on_spark

        return write_on_spark(operator, layout, target)
    return write_local(operator, layout, target) if operator.frames else []
