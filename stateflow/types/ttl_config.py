"""Time to live (TTL) configuration of state, with PyFlink's names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum

from stateflow.errors import JobDefinitionError


class Time:
    """Factory of durations with PyFlink's names; each is a `timedelta`."""

    @staticmethod
    def milliseconds(count: float) -> timedelta:
        """Returns a duration of `count` milliseconds."""
        return timedelta(milliseconds=count)

    @staticmethod
    def seconds(count: float) -> timedelta:
        """Returns a duration of `count` seconds."""
        return timedelta(seconds=count)

    @staticmethod
    def minutes(count: float) -> timedelta:
        """Returns a duration of `count` minutes."""
        return timedelta(minutes=count)

    @staticmethod
    def hours(count: float) -> timedelta:
        """Returns a duration of `count` hours."""
        return timedelta(hours=count)

    @staticmethod
    def days(count: float) -> timedelta:
        """Returns a duration of `count` days."""
        return timedelta(days=count)


@dataclass(frozen=True)
class StateTtlConfig:
    """The TTL of a state's entries: values, elements of a list, or entries of a map. Created by `new_builder`.

    Args:
        ttl: at least one millisecond. An entry expires when this time has passed since it was written, or read with
            `OnReadAndWrite`.
        update_type: the operations that renew an entry's TTL.
        state_visibility: whether expired entries that are not removed yet are visible.
        ttl_time_characteristic: the time that the TTL is measured in.
        background_cleanup: whether each batch removes some expired entries.
        cleanup_entries: maximum number of entries that the cleanup reads per subtask and batch for this state;
            1,000 if None. Each visited key group counts as three. A full snapshot removes all expired entries.
    """

    class UpdateType(Enum):
        """The operations that renew an entry's TTL; with `Disabled`, entries do not expire."""

        Disabled = "disabled"
        OnCreateAndWrite = "write"
        OnReadAndWrite = "read"

    class StateVisibility(Enum):
        """Whether reading an expired entry that is still stored returns nothing, or the entry once."""

        NeverReturnExpired = "never"
        ReturnExpiredIfNotCleanedUp = "until-cleaned-up"

    class TtlTimeCharacteristic(Enum):
        """The time that the TTL is measured in: the batch's processing time, or the watermark of the key."""

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
                "a TTL must be a timedelta of at least one millisecond",
                hint="for example timedelta(days=7)",
                ttl=self.ttl,
            )
        if self.cleanup_entries is not None and self.cleanup_entries < 1:
            raise JobDefinitionError(
                "the number of entries to clean up must be at least 1",
                hint="call disable_cleanup_in_background to disable the cleanup",
                entries=self.cleanup_entries,
            )

    @property
    def is_enabled(self) -> bool:
        """Whether entries expire."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    @property
    def milliseconds(self) -> int:
        """The TTL in milliseconds."""
        return self.ttl // timedelta(milliseconds=1)

    @staticmethod
    def new_builder(ttl: timedelta) -> StateTtlConfigBuilder:
        """Returns a builder with Flink's defaults; raises JobDefinitionError if `ttl` is below one millisecond."""
        return StateTtlConfigBuilder(StateTtlConfig(ttl))


class StateTtlConfigBuilder:
    """Builder of a `StateTtlConfig`, like PyFlink's; each method returns a new builder."""

    def __init__(self, config: StateTtlConfig) -> None:
        self._config = config

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfigBuilder:
        """Sets the operations that renew an entry's TTL."""
        return StateTtlConfigBuilder(replace(self._config, update_type=update_type))

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        """Renews the TTL on writes only; the default."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        """Renews the TTL on reads and writes."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfigBuilder:
        """Sets whether expired entries that are not removed yet are visible."""
        return StateTtlConfigBuilder(replace(self._config, state_visibility=state_visibility))

    def never_return_expired(self) -> StateTtlConfigBuilder:
        """Hides expired entries; the default."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        """Returns an expired entry once if it is not removed yet."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

    def set_ttl_time_characteristic(
        self, characteristic: StateTtlConfig.TtlTimeCharacteristic
    ) -> StateTtlConfigBuilder:
        """Sets the time that the TTL is measured in."""
        return StateTtlConfigBuilder(replace(self._config, ttl_time_characteristic=characteristic))

    def use_processing_time(self) -> StateTtlConfigBuilder:
        """Measures the TTL in the batch's processing time; the default."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

    def use_event_time(self) -> StateTtlConfigBuilder:
        """Measures the TTL in event time, by the watermark of the key."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)

    def cleanup_incrementally(self, cleanup_size: int) -> StateTtlConfigBuilder:
        """Sets the maximum number of entries that the cleanup reads per subtask and batch."""
        return StateTtlConfigBuilder(replace(self._config, cleanup_entries=cleanup_size))

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        """Removes expired entries only when they are read, and in full snapshots."""
        return StateTtlConfigBuilder(replace(self._config, background_cleanup=False))

    def build(self) -> StateTtlConfig:
        """Returns the configuration."""
        return self._config


def ttl_hint(given: object) -> str:
    """Returns the code for a TTL configuration, with the given duration if it is one."""
    if not isinstance(given, timedelta) or given <= timedelta(0):
        return "StateTtlConfig.new_builder(Time.days(7)).build()"
    units = {
        "days": timedelta(days=1),
        "hours": timedelta(hours=1),
        "minutes": timedelta(minutes=1),
        "seconds": timedelta(seconds=1),
        "milliseconds": timedelta(milliseconds=1),
    }
    unit = next((name for name, length in units.items() if not given % length), "milliseconds")
    return f"StateTtlConfig.new_builder(Time.{unit}({given // units[unit]})).build()"
