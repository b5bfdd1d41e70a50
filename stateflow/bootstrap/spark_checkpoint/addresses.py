"""Names, as text, of parts of the checkpoints of Spark's queries: ``spark:CHECKPOINT#variable=last,operator=1``."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Self

from stateflow.errors import ConfigError

PREFIX = "spark:"
SOURCE, VARIABLE, OPERATOR, STORE, BATCH = "source", "variable", "operator", "store", "batch"
STATE_PARTS = frozenset((VARIABLE, OPERATOR, STORE, BATCH))
SOURCE_PARTS = frozenset((SOURCE, BATCH))
_NUMBERS = frozenset((SOURCE, OPERATOR, BATCH))
_DIGITS = 18


@dataclass(frozen=True)
class QueryAddress:
    """A part of the checkpoint of a query.

    Attributes:
        path: path or URI of the checkpoint folder.
        texts: the parts that are names: ``variable`` and ``store``.
        numbers: the parts that are numbers: ``source``, ``operator`` and ``batch``.
    """

    path: str
    texts: Mapping[str, str]
    numbers: Mapping[str, int]

    @classmethod
    def of_source(cls, text: str) -> Self:
        """Returns the address of a source, in ``CHECKPOINT``, ``CHECKPOINT#N`` or ``CHECKPOINT#source=N,batch=N``.

        Raises:
            ConfigError: as `of_state` does.
        """
        path, separator, rest = text.rpartition("#")
        if separator and rest.isdecimal():
            return cls._parsed(path, f"{SOURCE}={rest}", SOURCE_PARTS)
        # Any other text after a # is a part of the path.
        return cls._parsed(path, rest, SOURCE_PARTS) if separator and "=" in rest else cls(text, {}, {})

    @classmethod
    def of_state(cls, text: str) -> Self:
        """Returns the address of a state, in ``CHECKPOINT``, ``CHECKPOINT#VARIABLE`` or ``CHECKPOINT#name=value,…``.

        Raises:
            ConfigError: a part is not known, or not a number.
        """
        path, separator, rest = text.rpartition("#")
        if not separator:
            return cls(text, {}, {})
        return cls._parsed(path, rest, STATE_PARTS) if "=" in rest else cls(path, {VARIABLE: rest}, {})

    @classmethod
    def _parsed(cls, path: str, parts: str, known: Set[str]) -> Self:
        given = [part.partition("=")[::2] for part in parts.split(",")]
        names = [name for name, _ in given]
        wrong = [name for name, value in given if name in _NUMBERS and not _is_number(value)]
        if not set(names) <= known or len(set(names)) < len(names) or wrong:
            raise ConfigError(
                "a part of a checkpoint of Spark is not valid",
                hint=f"after the #, use {', '.join(sorted(known))}, each once: for example "
                f"{OPERATOR if OPERATOR in known else SOURCE}=1,{BATCH}=7",
                path=path,
                parts=parts,
            )
        return cls(
            path,
            {name: value for name, value in given if name not in _NUMBERS},
            {name: int(value) for name, value in given if name in _NUMBERS},
        )


def _is_number(text: str) -> bool:
    # Python refuses to convert thousands of digits.
    return text.isdecimal() and len(text) <= _DIGITS
