"""Functions of two connected streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from stateflow.api.functions.process import Context, KeyedFunction

In1 = TypeVar("In1", contravariant=True)
In2 = TypeVar("In2", contravariant=True)
Out = TypeVar("Out", covariant=True)


class KeyedCoProcessFunction(KeyedFunction[Out], Generic[In1, In2, Out]):
    """A function of two keyed streams, which share its state.

    The rows of a key from both streams are processed in the order that both `key_by` declare. Ties, and rows without a
    declared order, are processed from the first stream before the second.
    """

    def process_element1(self, row: In1, ctx: Context) -> Iterable[Out] | None:
        """Called for each row of the first stream; returns or yields rows of the declared output class."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element1")

    def process_element2(self, row: In2, ctx: Context) -> Iterable[Out] | None:
        """Called for each row of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element2")


class KeyedBroadcastProcessFunction(KeyedFunction[Out], Generic[In1, In2, Out]):
    """A function of a keyed stream and a broadcast stream, which every subtask receives.

    The broadcast rows of a batch are processed before its keyed rows, in the same order in every subtask. They have no
    key, so keyed state cannot be used for them. The object lives for one batch: store data of broadcast rows that later
    batches need in `ctx.get_broadcast_state`. Every subtask must make the same changes there: the checkpoint stores the
    copy of subtask 0 for all.
    """

    def process_element(self, row: In1, ctx: Context) -> Iterable[Out] | None:
        """Called for each row of the keyed stream; returns or yields rows of the declared output class."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element")

    def process_broadcast_element(self, row: In2, ctx: Context) -> Iterable[Out] | None:
        """Called in every subtask for each row of the broadcast stream; each subtask emits the returned rows."""
        raise NotImplementedError(f"{type(self).__name__} has no process_broadcast_element")
