"""Functions over two connected streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from stateflow.api.functions import Context, KeyedFunction

In1 = TypeVar("In1")
In2 = TypeVar("In2")
Out = TypeVar("Out")


class KeyedCoProcessFunction(KeyedFunction[Out], Generic[In1, In2, Out]):
    """A function over the rows of two streams with the same key, which share its state.

    The rows of a key come one after another, from both streams: in the order that both `key_by` declare, and with equal
    or no such values first those of the first stream, then those of the second.
    """

    def process_element1(self, row: In1, ctx: Context) -> Iterable[Out] | None:
        """Called for each row of the first stream; returns, or yields, rows of the declared output class."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element1")

    def process_element2(self, row: In2, ctx: Context) -> Iterable[Out] | None:
        """Called for each row of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element2")


class KeyedBroadcastProcessFunction(KeyedFunction[Out], Generic[In1, In2, Out]):
    """A function over a keyed stream and one that every subtask gets whole.

    The broadcast rows of a batch come before its keyed rows, in the same order in every subtask. There is no key then:
    keyed state cannot be used. The object lives for one batch, and so does what it keeps of broadcast rows; what must
    last goes into `ctx.get_broadcast_state`. It must do the same in every subtask: subtask 0's copy is kept for all.
    """

    def process_element(self, row: In1, ctx: Context) -> Iterable[Out] | None:
        """Called for each row of the keyed stream; returns, or yields, rows of the declared output class."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element")

    def process_broadcast_element(self, row: In2, ctx: Context) -> Iterable[Out] | None:
        """Called in every subtask for each row of the broadcast stream; what it emits comes once from each."""
        raise NotImplementedError(f"{type(self).__name__} has no process_broadcast_element")
