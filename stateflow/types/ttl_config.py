"""How long state lives: durations and time to live, with PyFlink's names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any

from stateflow.errors import JobDefinitionError


class Time:
    """Durations with PyFlink's names; each is a `timedelta`."""

    @staticmethod
    def milliseconds(count: float) -> timedelta:
        """`count` thousandths of a second."""
        return timedelta(milliseconds=count)

    @staticmethod
    def seconds(count: float) -> timedelta:
        """`count` seconds."""
        return timedelta(seconds=count)

    @staticmethod
    def minutes(count: float) -> timedelta:
        """`count` minutes."""
        return timedelta(minutes=count)

    @staticmethod
    def hours(count: float) -> timedelta:
        """`count` hours."""
        return timedelta(hours=count)

    @staticmethod
    def days(count: float) -> timedelta:
        """`count` days."""
        return timedelta(days=count)


@dataclass(frozen=True)
class StateTtlConfig:
    """How long an entry lives: a value, an element of a list, or an entry of a map. Made by `new_builder`.

    Args:
        ttl: at least a millisecond. An entry has expired once so much time has passed since it began to live.
        background_cleanup: whether each batch removes some of what has expired.
        cleanup_entries: how much a subtask looks at for this state per batch; ``state.ttl_cleanup_entries`` if None.
    """

    class UpdateType(Enum):
        """What begins an entry's life anew; with `Disabled`, entries live for ever."""

        Disabled = "disabled"
        OnCreateAndWrite = "write"
        OnReadAndWrite = "read"

    class StateVisibility(Enum):
        """What reading an expired entry that is still stored gives: nothing, or the entry, once."""

        NeverReturnExpired = "never"
        ReturnExpiredIfNotCleanedUp = "until-cleaned-up"

    class TtlTimeCharacteristic(Enum):
        """Which time passes: the batch's processing time; or event time, which is the watermark as the key sees it."""

        ProcessingTime = "processing"
        EventTime = "event"

    ttl: timedelta
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired
    ttl_time_characteristic: TtlTimeCharacteristic = TtlTimeCharacteristic.ProcessingTime
    background_cleanup: bool = True
    cleanup_entries: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ttl, timedelta) or self.ttl < timedelta(milliseconds=1):
            raise JobDefinitionError(
                "a time to live must be a duration of at least a millisecond", ttl=self.ttl
            )
        if self.cleanup_entries is not None and self.cleanup_entries < 1:
            raise JobDefinitionError("a clean-up looks at one entry or more", hint="disable_cleanup_in_background "
                                     "switches it off", entries=self.cleanup_entries)  # fmt: skip

    @property
    def is_enabled(self) -> bool:
        """Whether entries expire at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    @property
    def milliseconds(self) -> int:
        """The time to live."""
        return self.ttl // timedelta(milliseconds=1)

    @staticmethod
    def new_builder(ttl: timedelta) -> StateTtlConfigBuilder:
        """A builder with Flink's defaults. Raises JobDefinitionError when `ttl` is no duration above zero."""
        return StateTtlConfigBuilder(StateTtlConfig(ttl))


class StateTtlConfigBuilder:
    """Builds a `StateTtlConfig` step by step, as PyFlink's builder does."""

    def __init__(self, config: StateTtlConfig) -> None:
        self._config = config

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfigBuilder:
        """What begins an entry's life anew."""
        return self._with(update_type=update_type)

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        """Only writing begins an entry's life anew; the default."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        """Reading does so too."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfigBuilder:
        """What reading an expired entry gives."""
        return self._with(state_visibility=state_visibility)

    def never_return_expired(self) -> StateTtlConfigBuilder:
        """An expired entry is never seen; the default."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        """An expired entry may be read once more, if it is still there."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

    def set_ttl_time_characteristic(
        self, characteristic: StateTtlConfig.TtlTimeCharacteristic
    ) -> StateTtlConfigBuilder:
        """Which time passes."""
        return self._with(ttl_time_characteristic=characteristic)

    def use_processing_time(self) -> StateTtlConfigBuilder:
        """The batch's processing time; the default."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

    def use_event_time(self) -> StateTtlConfigBuilder:
        """The subtask's watermark."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)

    def cleanup_incrementally(self, cleanup_size: int) -> StateTtlConfigBuilder:
        """How much a subtask looks at per batch to find what has expired."""
        return self._with(cleanup_entries=cleanup_size)

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        """Expired entries are only removed when they are read, and in full snapshots."""
        return self._with(background_cleanup=False)

    def build(self) -> StateTtlConfig:
        """The configuration."""
        return self._config

    def _with(self, **changes: Any) -> StateTtlConfigBuilder:
        return StateTtlConfigBuilder(replace(self._config, **changes))
