"""Expected failures of tasks, by what is stable of them: class, code and facts. Words may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from stateflow_airflow.failures import StateflowTaskFailed

F = TypeVar("F", bound=StateflowTaskFailed)


@contextmanager
def fails(kind: type[F], code: str, /, **facts: object) -> Iterator[pytest.ExceptionInfo[F]]:
    """Expects a task to fail with exactly this class and code.

    Args:
        facts: values that the failure must name; it may name more.
    """
    with pytest.raises(kind) as caught:
        yield caught
    failed = caught.value
    assert (type(failed), failed.code) == (kind, code), repr(failed)
    assert {name: failed.facts.get(name, "not there") for name in facts} == facts, repr(failed)
