"""Expected errors, by what is stable of them: class, code and facts. Words may change."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from stateflow.errors import StateflowError

E = TypeVar("E", bound=StateflowError)

_REPORTED = re.compile(r"^error \[([a-z-]+)\]: (.*)$", re.MULTILINE)
_FACT = re.compile(
    r" (\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])|True|False|None)"
)


@contextmanager
def raises(kind: type[E], /, **facts: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expects an error of exactly this class that has these facts, and a hint or more facts as it likes.

    Args:
        kind: the class of the error; a subclass of it is a failure.
        facts: values that the error must name.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert type(error) is kind, repr(error)
    assert {name: error.facts.get(name) for name in facts} == facts, repr(error)


@dataclass(frozen=True)
class ReportedError:
    """An error as the command line prints it.

    Attributes:
        code: of the error's class.
        facts: those with plain values: strings, numbers, booleans and None.
    """

    code: str
    facts: dict[str, Any]


def reported_errors(text: str) -> list[ReportedError]:
    printed = [json.loads(line)["error"] for line in text.splitlines() if line.startswith('{"error"')]
    return [
        *(ReportedError(error["code"], error["facts"]) for error in printed),
        *(
            ReportedError(code, {name: ast.literal_eval(value) for name, value in _FACT.findall(sentence)})
            for code, sentence in _REPORTED.findall(text)
        ),
    ]


def reported_error(text: str) -> ReportedError:
    (found,) = reported_errors(text)
    return found
