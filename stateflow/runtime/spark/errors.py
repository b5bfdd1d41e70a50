"""Translates Spark's exceptions into errors of stateflow: a row function, a batch or Spark itself failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stateflow.api.input_files import unreadable_in
from stateflow.api.schema import parse_rejection
from stateflow.checkpoint.barriers import error_in_text
from stateflow.errors import BatchFailed, SparkGone, StateflowError, UserCodeError
from stateflow.helpers import line_in_traceback
from stateflow.runtime.restart_strategy import is_restartable

_OF_VALUE = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]\s*(?P<reason>(?:(?!SQLSTATE: ).)*?)"
    r"SQLSTATE: (?:2[123]\w{3}|P0\w{3}|42K0B)",
    re.DOTALL,
)
"""An error of an expression because of its values, by the classes of SQLSTATE: each try would fail on the same rows."""
_CALLED_FROM = re.compile(r"was called from\s+(?P<where>\S+:[0-9]+)")
_EXPRESSION = re.compile(r"^== SQL[^\n]*==\n(?P<expression>[^\n]+)", re.MULTILINE)


_log_file: list[Path] = []
"""Where Spark logs in this process, if stateflow has configured it."""


def note_log_file(file: Path | None) -> None:
    """Lets later errors name Spark's log file; None if Spark logs elsewhere."""
    _log_file[:] = [file] if file is not None else []


def log_with_stack_trace() -> str:
    """Returns what has the stack traces of Spark's errors."""
    return str(_log_file[0]) if _log_file else "the driver's log"


@contextmanager
def translate_spark_errors(lives: Callable[[], bool]) -> Iterator[None]:
    """Translates the Spark exceptions of its body.

    Args:
        lives: returns whether Spark still responds; called only after a failure.

    Raises:
        SparkGone: Spark no longer responds, whatever the failure was: a lost connection, a failed batch, a timeout.
        BatchFailed, UserCodeError: Spark failed to do what it was asked for.
    """
    try:
        yield
    except Exception as e:
        # A source that runs in the driver may lose a connection of its own, which is not Spark's.
        of_spark = isinstance(e, (Py4JError, PySparkException))
        may_be_gone = (
            of_spark or isinstance(e, ConnectionError) or (isinstance(e, StateflowError) and is_restartable(e))
        )
        if may_be_gone and not lives():
            raise SparkGone(
                "Spark no longer responds",
                hint="check whether its process was killed or ran out of memory; "
                "a new run starts Spark again, and continues from the last checkpoint",
                reason=f"{type(e).__name__}: {e}"[:500],
            ) from e
        if not of_spark:
            raise
        raise to_stateflow_error(e) from e


def is_alive(spark: SparkSession) -> bool:
    """Returns whether the session's process responds and is not stopped, as after a signal or a lost master."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - only the JVM's context knows it
    except (Py4JError, OSError):
        return False


def to_stateflow_error(error: BaseException) -> StateflowError:
    """Translates an exception of Spark. A new run may succeed, unless a row function or an input file is wrong."""
    failure = error_in_text(str(error))
    if failure is not None:
        return failure
    unreadable = unreadable_in(str(error))
    if unreadable is not None:
        return unreadable.error()
    rejected = parse_rejection(str(error))
    if rejected is not None:
        return rejected
    text = re.split(r"\n\s+at |JVM stacktrace:", str(error), maxsplit=1)[0].strip()
    where = line_in_traceback(text)
    if where:
        # Of a UDF, or another function that Spark calls without stateflow.
        return UserCodeError(
            f"a function in Spark raised {text.splitlines()[-1].strip()[:1000]}",
            hint="fix the function; nothing of this batch was committed",
            where=where,
        )
    of_value = _OF_VALUE.search(text)
    if of_value is not None:
        return UserCodeError(
            f"an expression of Spark failed: {' '.join(of_value['reason'].split())[:1000]}",
            hint="correct the input, or the expression in SQL or in a transform, with functions such as try_cast and "
            "try_divide; nothing of this batch was committed",
            condition=of_value["condition"],
            **_place(text[of_value.end() :]),
        )
    causes = re.findall(r"^\s*Caused by: (.+)$", str(error), flags=re.MULTILINE)
    cause = {"cause": causes[-1][:500]} if causes and causes[-1] not in text else {}
    return BatchFailed(
        f"Spark failed a micro-batch: {type(error).__name__}",
        hint=f"{log_with_stack_trace()} has the full stack trace; a new run continues from the last checkpoint",
        reason=text[:2000],
        **cause,
    )


def _place(text: str) -> dict[str, str]:
    """Returns where an expression is, as Spark says it: a line of the job, or the text of SQL."""
    called, written = _CALLED_FROM.search(text), _EXPRESSION.search(text)
    if called is not None:
        return {"where": called["where"]}
    return {} if written is None else {"expression": written["expression"].strip()[:300]}
