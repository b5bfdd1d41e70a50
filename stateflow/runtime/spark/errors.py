"""What goes wrong in Spark, told as errors of ours: whether a row function failed, a batch, or Spark as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stateflow.api.input_files import unreadable_in
from stateflow.errors import BatchFailed, SparkGone, StateflowError
from stateflow.runtime.restarts import can_mend
from stateflow.runtime.row_steps import failure_in


@contextmanager
def told_of_spark(lives: Callable[[], bool]) -> Iterator[None]:
    """Around everything that a run does by Spark: errors of Spark's become errors of ours.

    Args:
        lives: whether Spark can still be asked for something; asked behind a failure only.

    Raises:
        SparkGone: it cannot, whatever the failure looked like: a lost connection, a batch that failed, a timeout.
        BatchFailed, UserCodeError: Spark failed at what it was asked for.
    """
    try:
        yield
    except Exception as e:
        # What a source of the job has in the driver may lose a connection of its own: that is not Spark's.
        of_spark = isinstance(e, (Py4JError, PySparkException))
        may_be_gone = (
            of_spark or isinstance(e, ConnectionError) or (isinstance(e, StateflowError) and can_mend(e))
        )
        if may_be_gone and not lives():
            raise SparkGone("Spark is gone", hint="was its process killed, or out of memory? a new run has a Spark of "
                            "its own, and starts from the last checkpoint",
                            reason=f"{type(e).__name__}: {e}"[:500]) from e  # fmt: skip
        if not of_spark:
            raise
        raise as_ours(e) from e


def is_alive(spark: SparkSession) -> bool:
    """Whether the session's process answers, and has not been stopped: what a lost master does to it, or a signal."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - only the JVM's own knows it
    except (Py4JError, OSError):
        return False


def as_ours(error: BaseException) -> StateflowError:
    """An error of Spark's as one of ours: a new run may do better, unless a row function or an input file is bad."""
    failure = failure_in(str(error))
    if failure is not None:
        return failure
    unreadable = unreadable_in(str(error))
    if unreadable is not None:
        return unreadable.error()
    text = re.split(r"\n\s+at |JVM stacktrace:", str(error), maxsplit=1)[0].strip()
    return BatchFailed(f"Spark failed a micro-batch: {type(error).__name__}", hint="the driver's log has the whole "
                       "story; a new run starts from the last checkpoint", reason=text[:2000])  # fmt: skip
