"""Row functions at work: in a task behind an operator, in a frame of Spark's, or in this process."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import msgspec
import pyarrow as pa
from msgspec import DecodeError

from stateflow.api.functions import RuntimeContext, TaskInfo
from stateflow.api.returned import message_and_hint, named_if_no_rows
from stateflow.api.rich_functions import RichFunction, RowStep, StepKind
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.reports import Failure
from stateflow.decoders import msgpack_decoder
from stateflow.errors import StateError, StateflowError, UserCodeError
from stateflow.runtime.dead_letters import LetterBox, innermost, is_the_rows_fault
from stateflow.runtime.rows import row_maker, to_batch, to_rows

_MARK = re.compile(r"\[stateflow-failure:([A-Za-z0-9+/=]+)\]")


class _NoKeyedState:
    """Stands for keyed state where there is no key."""

    def __getattr__(self, name: str) -> Any:
        raise StateError("state was asked for without a key", hint="call key_by before the rich function")


class RowChain:
    """Row functions one behind the other, over the rows of one batch.

    Args:
        steps: their function objects are used up.
    """

    def __init__(self, steps: Sequence[RowStep], info: TaskInfo) -> None:
        self._info = info
        self._steps = steps
        self._boxes = {
            at: LetterBox(step.on_error, step.name, info.epoch)
            for at, step in enumerate(steps)
            if step.on_error is not None
        }
        # A key is all that keyed state asks for, and there is none.
        context = RuntimeContext(cast(Any, _NoKeyedState()), info)
        for step in steps:
            if isinstance(step.function, RichFunction):
                self._guarded(step, "open", step.function.open, context)

    def apply(self, rows: Iterable[Any]) -> list[Any]:
        """What comes of the rows."""
        for at, step in enumerate(self._steps):
            box = self._boxes.get(at)
            rows = self._step(step, rows) if box is None else _step_apart(step, rows, box)
        return rows if isinstance(rows, list) else list(rows)

    def close(self) -> None:
        """Closes the rich functions."""
        for step in self._steps:
            if isinstance(step.function, RichFunction):
                self._guarded(step, "close", step.function.close)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Closes the rich functions when the block fails; its failure is the one to tell."""
        try:
            yield
        except BaseException:
            with suppress(StateflowError):
                self.close()
            raise

    def _step(self, step: RowStep, rows: Iterable[Any]) -> list[Any]:
        call, row, made = step.call, None, None
        result: list[Any] = []
        try:
            for row in rows:
                if step.kind is StepKind.MAP:
                    result.append(call(row))
                elif step.kind is StepKind.FLAT_MAP:
                    made = call(row)
                    result += made or ()
                elif call(row):
                    result.append(row)
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error(step, step.kind.value, named_if_no_rows(e, made, call), row) from e
        return result

    def _guarded(self, step: RowStep, name: str, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error(step, name, e) from e

    def _user_error(self, step: RowStep, name: str, error: Exception, row: Any = None) -> UserCodeError:
        behind = {"operator": self._info.uid} if self._info.uid else {}
        what, hint = message_and_hint(error, name)
        return UserCodeError(
            what, hint=f"{hint}; nothing of this batch was committed", function=step.name, row=repr(row)[:500],
            where=innermost(error), **behind,
        )  # fmt: skip


def _made(step: RowStep, row: Any) -> Iterable[Any]:
    """What the step's function makes of a row."""
    made = step.call(row)
    if step.kind is StepKind.MAP:
        return (made,)
    if step.kind is StepKind.FLAT_MAP:
        try:
            return iter(made or ())
        except TypeError as e:
            raise named_if_no_rows(e, made, step.call) from e
    return (row,) if made else ()


def _step_apart(step: RowStep, rows: Iterable[Any], box: LetterBox) -> list[Any]:
    """What comes of the rows that do not fail; or the dead letters of those that do."""
    result: list[Any] = []
    for row in rows:
        letters: list[Any] = []
        made: list[Any] = []
        try:
            made = list(_made(step, row))
        except Exception as e:
            if not is_the_rows_fault(e):
                raise
            letters.append(box.take(None, row, e))
        result += letters if step.catches else made
    return result


def steps_in_frame(
    steps: Sequence[RowStep], source: RowSchema, info: TaskInfo, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Row functions over the Arrow batches of a partition.

    An error of a function travels in the text of what is raised: Spark lets nothing else through.
    """
    maker, schema = row_maker(source), steps[-1].schema
    try:
        chain = RowChain(steps, info)
        for batch in batches:
            with chain.closed_on_error():
                rows = chain.apply(to_rows([batch.column(name) for name in source.names], maker))
                made = to_batch(rows, schema)
            yield made
        chain.close()
    except StateflowError as e:
        data = base64.b64encode(msgspec.msgpack.encode(Failure.of(e))).decode()
        raise RuntimeError(f"{e} [stateflow-failure:{data}]") from e


def failure_in(text: str) -> StateflowError | None:
    """The error that `steps_in_frame` put into what Spark says of a failed query; None when there is none."""
    found = _MARK.search(text)
    if found is None:
        return None
    try:
        return msgpack_decoder(Failure).decode(base64.b64decode(found[1])).to_error()
    except (DecodeError, ValueError):
        return None
