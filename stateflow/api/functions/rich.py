"""Functions of one row: plain callables, and rich ones that are opened and closed and may have keyed state."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from stateflow.api.dead_letters import DeadLetter, OnError
from stateflow.api.functions import RuntimeContext
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

In = TypeVar("In")
Out = TypeVar("Out")
Acc = TypeVar("Acc")


class RichFunction:
    """What all rich functions have. An object lives for one batch.

    On a keyed stream, `open` may declare state. On any other there is no key, and asking for state is an error;
    `ctx.info` counts Spark's partitions there, and has no uid.
    """

    def open(self, ctx: RuntimeContext) -> None:
        """Called before the first row."""

    def close(self) -> None:
        """Called after the last row, also when a row failed."""


class RichMapFunction(RichFunction, Generic[In, Out]):
    """One row for each."""

    def map(self, row: In) -> Out:
        """The row that comes of `row`."""
        raise NotImplementedError(f"{type(self).__name__} has no map")


class RichFlatMapFunction(RichFunction, Generic[In, Out]):
    """Any number of rows for each."""

    def flat_map(self, row: In) -> Iterable[Out] | None:
        """The rows that come of `row`."""
        raise NotImplementedError(f"{type(self).__name__} has no flat_map")


class RichFilterFunction(RichFunction, Generic[In]):
    """Keeps some rows."""

    def filter(self, row: In) -> bool:
        """Whether `row` stays."""
        raise NotImplementedError(f"{type(self).__name__} has no filter")


class StepKind(enum.Enum):
    """What a function of one row gives."""

    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"


_RICH: dict[StepKind, type[RichFunction]] = {
    StepKind.MAP: RichMapFunction,
    StepKind.FLAT_MAP: RichFlatMapFunction,
    StepKind.FILTER: RichFilterFunction,
}


@dataclass(frozen=True)
class RowStep:
    """A function of one row in the graph.

    Attributes:
        function: a callable, or a rich function of the kind.
        schema: of the rows that it gives.
        on_error: what becomes of rows that the function raises for.
        catches: whether it gives the dead letters of those rows, instead of what comes of the others.
    """

    kind: StepKind
    function: Any
    schema: RowSchema
    on_error: OnError = None
    catches: bool = False

    def __post_init__(self) -> None:
        rich = _RICH[self.kind]
        if isinstance(self.function, type) or not (
            isinstance(self.function, rich) or callable(self.function)
        ):
            raise JobDefinitionError(f"{self.kind.value} needs a function", hint=f"a callable that takes a row, or a "
                                     f"{rich.__name__} object", given=repr(self.function))  # fmt: skip

    def catching(self) -> RowStep:
        """The step that gives this one's dead letters, with a function object of its own."""
        return replace(
            self, function=copy.deepcopy(self.function), schema=RowSchema.of(DeadLetter), catches=True
        )

    @property
    def call(self) -> Callable[[Any], Any]:
        """From a row to what the kind of function gives."""
        if isinstance(self.function, RichFunction):
            return getattr(self.function, self.kind.value)  # type: ignore[no-any-return]
        return self.function  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """What people call the function."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))
