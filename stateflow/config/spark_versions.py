"""What differs between versions of Spark. Code that depends on Spark's version asks this module, and no other does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING

from stateflow.errors import EnvironmentUnsupported

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

PINNED = "4.2.0"
"""The release of Spark in requirements.txt, with which all tests run."""

TESTED = ("4.0.5", "4.1.4", PINNED, "4.2.1", "4.3.0")
"""Releases of Spark that at least the smoke tests have run with; others are warnings. docs/design/0032 has dates."""

FIRST, AFTER_LAST = (4, 0), (5, 0)
"""The first minor version that is supported, and the first one that is refused untried."""

_SCALA = "2.13"
DELTA = "4.4.0"
"""The version of Delta's JARs."""
_CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.{}FileSystemBasedCheckpointFileManager"

_CHECKSUMS = {
    # Without them, after an executor is lost, the tasks of a level may read different attempts of an earlier task.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
_NO_STAGE_RETRY = {
    # Spark 4.0 has no checksums of a shuffle. A batch whose shuffle files are lost fails, instead of being computed
    # again in part, and the run restarts from the last checkpoint.
    "spark.stage.maxConsecutiveAttempts": "1"
}


@dataclass(frozen=True)
class SparkVersion:
    """How a minor version of Spark differs from the others.

    Attributes:
        minor: the version, such as ``(4, 2)``.
        required: settings without which a batch may have rows of two attempts of one task. They are checked at start.
        checkpoint_manager: class that writes Spark's checkpoint location without checksum files.
        has_repartition_by_id: whether a DataFrame has `repartitionById`.
        has_available_now_readers: whether a stream reader in Python can end a run by itself (Spark's AvailableNow
            trigger), and is told where a batch begins.
        has_one_input_partition: whether a partition of a source's RDD reads at most one part of the source, as Java's
            Option, and not a list of them.
        has_arrow_time_zones: whether PySpark's Arrow schemas have the time zone that the caller gives, and not UTC.
        has_time_type: whether Spark has columns with a time of day.
        has_delta: whether Delta has JARs for it.
    """

    minor: tuple[int, int]
    required: Mapping[str, str] = field(default_factory=lambda: dict(_CHECKSUMS))
    checkpoint_manager: str = _CHECKPOINT_MANAGER.format("checkpointing.")
    has_repartition_by_id: bool = True
    has_available_now_readers: bool = True
    has_one_input_partition: bool = True
    has_arrow_time_zones: bool = True
    has_time_type: bool = True
    has_delta: bool = True

    @property
    def text(self) -> str:
        """The minor version as text: ``4.2``."""
        return ".".join(map(str, self.minor))

    @property
    def delta_package(self) -> str:
        """Maven coordinate of Delta for this Spark; empty if there is none."""
        return f"io.delta:delta-spark_{self.text}_{_SCALA}:{DELTA}" if self.has_delta else ""


_VERSIONS = (
    SparkVersion(
        (4, 0),
        required=dict(_NO_STAGE_RETRY),
        checkpoint_manager=_CHECKPOINT_MANAGER.format(""),
        has_repartition_by_id=False,
        has_available_now_readers=False,
        has_one_input_partition=False,
        has_arrow_time_zones=False,
        has_time_type=False,
    ),
    SparkVersion((4, 1), has_available_now_readers=False, has_one_input_partition=False, has_arrow_time_zones=False),
    SparkVersion((4, 2)),
    SparkVersion((4, 3), has_delta=False),
)
"""Every minor version that is known. A later one is taken to be like the last of them."""


def version_of(release: str) -> SparkVersion:
    """Returns how a release differs from others.

    Args:
        release: such as ``4.2.0``, or a vendor's ``4.0.1-amzn-0``.

    Raises:
        EnvironmentUnsupported: it is older than the first supported version, of another major version, or unreadable.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    minor = (int(found[1]), int(found[2])) if found else (0, 0)
    if not FIRST <= minor < AFTER_LAST:
        raise EnvironmentUnsupported(
            "this version of Spark is not supported",
            hint=f"install the release that all tests run with: pyspark=={PINNED}. Others from 4.0 on are accepted",
            found=release,
        )
    known = {version.minor: version for version in _VERSIONS}
    last = _VERSIONS[-1]
    return known.get(minor, SparkVersion(minor, has_delta=last.has_delta))


def warn_of_untested(release: str) -> tuple[str, ...]:
    """Returns a warning if the tests have not run with a release that is supported."""
    if release in TESTED:
        return ()
    return (f"Spark {release} was not tested with this version of stateflow; tested: {', '.join(TESTED)}",)


def kafka_package(release: str) -> str:
    """Returns the Maven coordinate of Spark's Kafka source for a release."""
    return f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{release}"


def find_release() -> str:
    """Returns the version of the PySpark that this process would import, without importing it.

    It may be the PySpark of a Spark distribution, which pip has not installed.

    Raises:
        EnvironmentUnsupported: there is none, or it is the client of Spark Connect only.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentUnsupported(
            "PySpark is not installed", hint="pip install 'stateflow[spark]'", package="pyspark"
        )
    read = getattr(spec.loader, "get_data", None)
    assert read is not None, "a package has a loader that can read its files"
    folder = PurePath(spec.origin).parent
    try:
        # pyspark-client has the same modules, except those that start Java.
        read(str(folder / "core" / "context.py"))
    except OSError as e:
        raise EnvironmentUnsupported(
            "the installed PySpark is the client of Spark Connect, which cannot run a driver",
            hint="pip install 'stateflow[spark]', or run by the spark-submit of a Spark distribution",
            package="pyspark-client",
            folder=str(folder),
        ) from e
    found = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", read(str(folder / "version.py")).decode())
    return found[1] if found else ""


@cache
def running_version() -> SparkVersion:
    """Returns the version of the PySpark that this process has imported."""
    import pyspark

    return version_of(pyspark.__version__)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema of Spark's columns, whose timestamps have the time zone UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if running_version().has_arrow_time_zones:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def partition_by_id(frame: DataFrame, partitions: int, number: Column | str) -> DataFrame:
    """Returns the rows, each in the partition that a column names.

    Spark keeps empty partitions, also with adaptive execution.

    Args:
        number: an INT column with values from 0 to `partitions` - 1, never null.
    """
    if running_version().has_repartition_by_id:
        return frame.repartitionById(partitions, number)
    return _partition_by_hash(frame, partitions, number)


def _partition_by_hash(frame: DataFrame, partitions: int, number: Column | str) -> DataFrame:
    """Does the same with `repartition`: hashes, instead of each number, an integer whose hash has that partition."""
    from pyspark.sql import functions as F

    values = F.expr(f"array({', '.join(map(str, preimages_of_partitions(partitions)))})")
    position = (F.col(number) if isinstance(number, str) else number) + F.lit(1)
    return frame.repartition(partitions, F.element_at(values, position))


@cache
def preimages_of_partitions(partitions: int) -> tuple[int, ...]:
    """Returns for each partition the smallest INT that Spark's `repartition` sends there."""
    found: dict[int, int] = {}
    value = 0
    while len(found) < partitions:
        found.setdefault(hash_of_int(value) % partitions, value)
        value += 1
    return tuple(found[partition] for partition in range(partitions))


_SEED, _BITS = 42, 0xFFFFFFFF


def hash_of_int(value: int) -> int:
    """Returns the hash of an INT by which Spark's `repartition` places rows: Murmur3 of four bytes, seed 42, signed."""
    mixed = _rotate(value * 0xCC9E2D51 & _BITS, 15) * 0x1B873593 & _BITS
    state = (_rotate(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _BITS
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _BITS
    state = (state ^ state >> 13) * 0xC2B2AE35 & _BITS
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _BITS
