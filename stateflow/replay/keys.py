"""The key that a replay shows, from its text and the types of an operator's key columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stateflow.errors import ConfigError, WrongKeyType
from stateflow.state.handles import SubtaskState
from stateflow.types.columns.conversion import stored_scalar
from stateflow.types.key_values import encoded, group_of, parse_key


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

    def is_key(self, values: Sequence[object]) -> bool:
        """Returns whether the values of key columns, as a function receives them, are this key."""
        # Not the values: NaN is one key, and equal to no value.
        return encoded(list(map(stored_scalar, values))) == self.encoded


def _wanted(texts: Sequence[str], columns: Mapping[str, str], max_parallelism: int) -> WantedKey:
    values = parse_key(texts, columns)
    return WantedKey(values, group_of(values, list(columns.values()), max_parallelism), encoded(values))


@dataclass(frozen=True)
class KeyRequest:
    """The key that a user asks for.

    Attributes:
        texts: the value of each key column in its order, or a JSON array or object of them; see `parse_key`.
        operator: uid of the operator; empty for every operator whose key columns have such values.
    """

    texts: tuple[str, ...]
    operator: str = ""

    def keys(self, operators: Mapping[str, Mapping[str, str]], max_parallelism: int) -> dict[str, WantedKey]:
        """Returns the key of each operator that it is of, by uid.

        Args:
            operators: Spark's type name of each key column by its name, for each operator by uid.
            max_parallelism: number of key groups.

        Raises:
            ConfigError: there is no such operator.
            WrongKeyType: the operator, or every operator, has keys of other types.
        """
        if self.operator and self.operator not in operators:
            raise ConfigError(
                "the job has no such keyed operator",
                hint="use one of the uids found",
                operator=self.operator,
                found=sorted(operators),
            )
        wanted = {self.operator: operators[self.operator]} if self.operator else operators
        found, errors = {}, []
        for uid, columns in wanted.items():
            try:
                found[uid] = _wanted(self.texts, columns, max_parallelism)
            except WrongKeyType as e:
                errors.append(e)
        if len(errors) == 1 and not found:
            raise errors[0]
        if not found:
            raise WrongKeyType(
                "no operator has keys of these values",
                hint="pass --key once for each key column of an operator",
                key=list(self.texts),
                types={uid: list(columns.values()) for uid, columns in operators.items()},
            )
        return found
