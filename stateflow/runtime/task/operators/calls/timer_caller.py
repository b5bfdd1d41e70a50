"""Calls `on_timer` of a keyed operator's function for the timers that are due."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.errors import CorruptFile, StateflowError
from stateflow.runtime.task.operators.operator_runtime import OperatorRuntime
from stateflow.state.kinds.slice_size import SliceSize
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.timers import Timer


class TimerCaller:
    """Fires the timers of an operator."""

    def __init__(self, runtime: OperatorRuntime) -> None:
        self._runtime = runtime
        self._state = runtime.state
        self._function = runtime.function
        self._context = runtime.on_timer_context
        self._size = SliceSize()

    def fire_due(self) -> Iterator[list[object]]:
        """Fires the timers of all keys until none is due; yields slices of what they emit to the main output.

        Event-time timers fire before processing-time timers.
        """
        runtime = self._runtime
        watermark, now = runtime.spec.watermark, runtime.now
        until = {TimeDomain.EVENT_TIME: watermark, TimeDomain.PROCESSING_TIME: now}
        while runtime.timer_index.earliest.due(watermark, now):
            for domain, time in until.items():
                for keys, timers in runtime.timers.due(domain, time, self._size) if time is not None else ():
                    yield self._fire_slice(domain, keys, timers)
                self._state.end_key_batch()

    def _fire_slice(self, domain: TimeDomain, keys: list[tuple[bytes, bytes]], timers: Iterator[Timer]) -> list[object]:
        emitted: list[object] = []
        self._runtime.emitters.begin()
        self._state.begin_key_batch(sorted(set(keys)))
        for timer in timers:
            self.fire(domain, timer, emitted)
        # A slice without keys has timers that were registered meanwhile.
        self._size.adapt(len(keys) or self._size.keys, self._state.batch_bytes(), len(emitted))
        self._state.end_key_batch()
        return emitted

    def fire(self, domain: TimeDomain, timer: Timer, emitted: list[object]) -> None:
        """Fires one timer, whose key becomes current; appends what it emits.

        Raises:
            UserCodeError: `on_timer` raised.
            CorruptFile: the timer's key does not have as many columns as the operator's.
        """
        runtime, context = self._runtime, self._context
        if len(timer.values) != runtime.errors.columns:
            raise CorruptFile(
                "a stored timer has another number of key columns",
                hint="restore an older checkpoint",
                key=timer.key.hex()[:80],
                columns=runtime.errors.columns,
            )
        key = runtime.key_types.declared(timer.values)
        runtime.emitters.add(len(emitted), key)
        self._state.set_key(timer.group, timer.key)
        if timer.namespace is not None:
            self._state.set_namespace(timer.namespace)
        context.set_key(key)
        context.set_timer(domain, timer.time)
        runtime.context.row = None
        # A timer sees the state of its own time: the event time of the batch may be much later.
        if domain is TimeDomain.EVENT_TIME:
            runtime.clock.set(timer.time)
        else:
            runtime.clock.reset()
        returned = None
        try:
            returned = self._function.on_timer(timer.time, context)
            if returned is not None:
                emitted.extend(returned)
        except StateflowError:
            raise
        except Exception as e:
            cause = runtime.errors.cause("on_timer", e, returned)
            raise runtime.errors.user_error("on_timer", cause, key) from e
