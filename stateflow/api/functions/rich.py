"""Functions of one row: plain callables, and rich functions with `open`, `close` and keyed state."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from stateflow.api.dead_letters import DeadLetter, OnError
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

In = TypeVar("In")
Out = TypeVar("Out")


class RichFunction:
    """Base class of rich functions. An object lives for one batch.

    On a keyed stream, `open` may declare state. On other streams, rows have no key, and declaring state raises an
    error; `ctx.info` then has no uid: on the stream of a source, `subtask` is the number of Spark's task, which may be
    as high as the job's parallelism or higher, and `parallelism` is 0: Spark decides in how many tasks it reads a
    batch.
    """

    def open(self, ctx: RuntimeContext) -> None:
        """Called before the first row."""

    def close(self) -> None:
        """Called after the last row, also when a row failed."""


class RichMapFunction(RichFunction, Generic[In, Out]):
    """A rich function for `map`."""

    def map(self, row: In) -> Out:
        """Returns the row to emit for `row`."""
        raise NotImplementedError(f"{type(self).__name__} has no map")


class RichFlatMapFunction(RichFunction, Generic[In, Out]):
    """A rich function for `flat_map`."""

    def flat_map(self, row: In) -> Iterable[Out] | None:
        """Returns the rows to emit for `row`."""
        raise NotImplementedError(f"{type(self).__name__} has no flat_map")


class RichFilterFunction(RichFunction, Generic[In]):
    """A rich function for `filter`."""

    def filter(self, row: In) -> bool:
        """Returns whether `row` is kept."""
        raise NotImplementedError(f"{type(self).__name__} has no filter")


RowFunction = Callable[[Any], Any] | RichFunction
"""A function of one row, of any row class."""


class StepKind(enum.Enum):
    """How the result of a function of one row is used; the value is the method's name."""

    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"


_RICH_CLASSES: dict[StepKind, type[RichFunction]] = {
    StepKind.MAP: RichMapFunction,
    StepKind.FLAT_MAP: RichFlatMapFunction,
    StepKind.FILTER: RichFilterFunction,
}


@dataclass(frozen=True)
class RowStep:
    """A function of one row in the graph.

    Attributes:
        function: a callable, or a rich function of the kind.
        schema: columns of the rows that it emits.
        on_error: what happens to rows for which the function raises.
        emits_dead_letters: whether the step emits the dead letters of those rows instead of the function's results.
        uid: of the source, for a step that belongs to one.
    """

    kind: StepKind
    function: RowFunction
    schema: RowSchema
    on_error: OnError = None
    emits_dead_letters: bool = False
    uid: str = ""

    def __post_init__(self) -> None:
        rich = _RICH_CLASSES[self.kind]
        if isinstance(self.function, type) or not (isinstance(self.function, rich) or callable(self.function)):
            raise JobDefinitionError(
                f"{self.kind.value} needs a function",
                hint=f"pass a callable that takes a row, or a {rich.__name__} object",
                called=self.kind.value,
                given=repr(self.function),
            )

    def dead_letter_step(self) -> RowStep:
        """Returns the step that emits this one's dead letters, with a copy of the function object."""
        function = copy.deepcopy(self.function)
        return replace(self, function=function, schema=RowSchema.of(DeadLetter), emits_dead_letters=True)

    @property
    def call(self) -> Callable[[Any], Any]:
        """The callable that takes a row."""
        if isinstance(self.function, RichFunction):
            call: Callable[[Any], Any] = getattr(self.function, self.kind.value)
            return call
        return self.function

    @property
    def name(self) -> str:
        """The name in errors and dead letters: the function's name, or the uid of a source."""
        return self.uid or str(getattr(self.function, "__qualname__", type(self.function).__qualname__))
