"""A benchmark in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def alone(measure: Callable[_P, _R], *arguments: _P.args, **more: _P.kwargs) -> _R:
    """The figures of a benchmark that starts Spark: a process has one Spark, and that of the benchmark lacks the Delta
    JARs that later tests need."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *arguments, **more).result()
