"""The key that a replay shows, from its text and the types of an operator's key columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation

from stateflow.errors import ConfigError, StateError
from stateflow.state.handles import SubtaskState
from stateflow.state.kinds.key_context import KEY_OFFSET
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.types.columns.conversion import stored_scalar
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group, key_hash

_GROUP_BYTES, _TIME_BYTES = 2, 8
_TIMERS = frozenset(TIMER_IDS.values())


@dataclass(frozen=True)
class WantedKey:
    """One key of an operator.

    Attributes:
        values: the values of its key columns, as they are stored.
        group: its key group.
        encoded: the values as part of a stored key.
    """

    values: tuple[object, ...]
    group: int
    encoded: bytes

    def is_in(self, subtask: SubtaskState) -> bool:
        """Returns whether a subtask has the key's state."""
        return subtask.first_group <= self.group <= subtask.last_group

    def has(self, stored: bytes) -> bool:
        """Returns whether a stored entry belongs to the key."""
        if int.from_bytes(stored[:_GROUP_BYTES]) != self.group:
            return False
        at = KEY_OFFSET + (_TIME_BYTES if stored[_GROUP_BYTES:KEY_OFFSET] in _TIMERS else 0)
        return stored.startswith(self.encoded, at)

    def is_key(self, values: Sequence[object]) -> bool:
        """Returns whether the values of key columns, as a function receives them, are this key."""
        return tuple(map(stored_scalar, values)) == self.values


def parse_key(texts: Sequence[str], types: Sequence[str], max_parallelism: int) -> WantedKey:
    """Returns the key with the given values.

    Args:
        texts: the value of each key column.
        types: Spark's type names of the key columns.
        max_parallelism: number of key groups.

    Raises:
        ConfigError: the number of values differs from that of the columns, or a value is not of its column's type.
    """
    if len(texts) != len(types):
        raise ConfigError(
            "the number of values of the key differs from that of the key columns",
            hint="pass --key once for each key column, in their order",
            given=list(texts),
            types=list(types),
        )
    values = tuple(_parse(text, kind) for text, kind in zip(texts, types, strict=True))
    return WantedKey(values, key_group(values, types, max_parallelism), encode_key(values))


def _parse(text: str, kind: str) -> object:
    try:
        value = _value(text, kind)
        key_hash([value], [kind])
        encode_key([value])
    except (ValueError, InvalidOperation, OverflowError, StateError) as e:
        raise ConfigError(
            "a value of the key is not of its column's type",
            hint="write numbers in decimal, dates and times in ISO 8601, bytes in hexadecimal, intervals in seconds",
            value=text[:200],
            type=kind,
            reason=str(e)[:200],
        ) from e
    return value


def _value(text: str, kind: str) -> object:
    """Returns a value as a function receives it from a column. Raises ValueError if it is none of the type."""
    parse = _PARSERS.get(kind)
    if parse is not None:
        return parse(text)
    if kind.startswith("decimal("):
        scale = int(kind.rstrip(")").partition(",")[2] or 0)
        # Decimals of different scale are different keys.
        return Decimal(text).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    raise ValueError(f"keys of this type cannot be given as a text: {kind}")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def _timestamp(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def _local_timestamp(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo:
        raise ValueError("a time zone in a timestamp without one")
    return found


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


_EXACT = Context(prec=100)
_PARSERS: dict[str, Callable[[str], object]] = {
    "string": str,
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "boolean": _boolean,
    "date": date.fromisoformat,
    "time(6)": time.fromisoformat,
    "timestamp": _timestamp,
    "timestamp_ntz": _local_timestamp,
    "binary": bytes.fromhex,
    "interval day to second": _seconds,
}


@dataclass(frozen=True)
class KeyRequest:
    """The key that a user asks for.

    Attributes:
        texts: the value of each key column, in their order.
        operator: uid of the operator; empty for every operator whose key columns have such values.
    """

    texts: tuple[str, ...]
    operator: str = ""

    def keys(self, types: Mapping[str, Sequence[str]], max_parallelism: int) -> dict[str, WantedKey]:
        """Returns the key of each operator that it is of, by uid.

        Args:
            types: Spark's type names of the key columns of each operator, by uid.
            max_parallelism: number of key groups.

        Raises:
            ConfigError: there is no such operator, or no operator has such keys.
        """
        if self.operator:
            if self.operator not in types:
                raise ConfigError(
                    "the job has no such keyed operator",
                    hint="use one of the uids found",
                    operator=self.operator,
                    found=sorted(types),
                )
            return {self.operator: parse_key(self.texts, types[self.operator], max_parallelism)}
        found, errors = {}, []
        for uid, kinds in types.items():
            try:
                found[uid] = parse_key(self.texts, kinds, max_parallelism)
            except ConfigError as e:
                errors.append(e)
        if not found:
            raise (
                errors[0]
                if len(errors) == 1
                else ConfigError(
                    "no operator has keys of these values",
                    hint="pass --key once for each key column of an operator",
                    key=list(self.texts),
                    types={uid: list(kinds) for uid, kinds in types.items()},
                )
            )
        return found
