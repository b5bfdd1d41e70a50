"""Tracks the current key of a keyed operator and calls `on_batch_end` once for each key."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stateflow.api.functions.process import KeyedFunction
from stateflow.errors import StateflowError
from stateflow.runtime.task.operators.key_types import EncodedKey
from stateflow.runtime.task.operators.operator_runtime import OperatorRuntime
from stateflow.state.kinds.slice_size import SliceSize


class KeyTracker:
    """Sets the current key, and tracks the keys that have had rows in this batch.

    Attributes:
        is_time_advanced: whether time has advanced to that of the batch. If true, a key ends with its last row;
            otherwise it may have more rows in phase 1.
    """

    def __init__(self, runtime: OperatorRuntime, *, is_time_advanced: bool) -> None:
        self.is_time_advanced = is_time_advanced
        self._runtime = runtime
        self._state = runtime.state
        self._context = runtime.context
        self._function = runtime.function
        self._clock = runtime.clock
        self._key_time = runtime.key_time
        self._has_batch_end = type(runtime.function).on_batch_end is not KeyedFunction.on_batch_end
        self._open: EncodedKey | None = None
        """The last key of the previous Arrow batch; the next batch may begin with more of its rows."""
        self._ended: dict[tuple[bytes, bytes], EncodedKey] = {}
        """Keys with rows of phase 0 that await `on_batch_end`."""

    def enter(self, key: EncodedKey, emitted: list[object]) -> None:
        """Makes `key` current, and ends the previous key; appends the rows that this emits to `emitted`."""
        # Compared by their bytes, not their values: a NaN is not equal to itself, and still one key.
        if self._open is None or self._open[:2] != key[:2]:
            self.end_open_key(emitted)
            self._open = key
            self._clock.reset()
            if self._key_time is not None:
                self._key_time.begin_key()
        self._make_current(key)

    def end_open_key(self, emitted: list[object]) -> None:
        """Ends the key that was processed last; appends the rows that its `on_batch_end` emits to `emitted`."""
        ended, self._open = self._open, None
        if ended is None or not self._has_batch_end:
            return
        if self.is_time_advanced:
            self._ended.pop(ended[:2], None)
            self._call_batch_end(ended, emitted)
        else:
            self._ended[ended[:2]] = ended

    def end_all_keys(self) -> Iterator[list[object]]:
        """Ends the batch for all keys whose `on_batch_end` has not been called yet; yields slices of what they emit."""
        yield self._end_last_key()
        ended, size = iter(list(self._ended.values())), SliceSize()
        while some := list(islice(ended, size.keys)):
            emitted = self._new_slice()
            self._state.begin_key_batch([(group, key) for group, key, _ in some])
            for key in some:
                self._call_batch_end(key, emitted)
            size.adapt(len(some), self._state.batch_bytes(), len(emitted))
            self._state.end_key_batch()
            yield emitted

    def _end_last_key(self) -> list[object]:
        emitted = self._new_slice()
        self.end_open_key(emitted)
        self._state.end_key_batch()
        return emitted

    def _new_slice(self) -> list[object]:
        self._runtime.emitters.begin()
        return []

    def _call_batch_end(self, key: EncodedKey, emitted: list[object]) -> None:
        runtime = self._runtime
        runtime.emitters.add(len(emitted), key[2])
        self._make_current(key)
        # What its last row has written counts from the time of that row.
        self._state.flush_event_times()
        self._context.row = None
        self._clock.reset()
        returned = None
        try:
            returned = self._function.on_batch_end(self._context)
            if returned is not None:
                emitted.extend(returned)
        except StateflowError:
            raise
        except Exception as e:
            cause = runtime.errors.cause("on_batch_end", e, returned)
            raise runtime.errors.user_error("on_batch_end", cause, key[2]) from e

    def _make_current(self, key: EncodedKey) -> None:
        if self._state.current_key != key[:2]:
            self._state.set_key(key[0], key[1])
            self._context.set_key(key[2])
