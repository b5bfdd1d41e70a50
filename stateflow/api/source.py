"""What a source is, for Spark and for the runner without Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.api.input_files import OnCorruptFile
from stateflow.api.schema import RowSchema
from stateflow.settings import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Source(ABC):
    """Where a stream begins. Spark reads it; positions are Spark's own, kept as they are."""

    schema: RowSchema
    bounded: bool = False
    """Whether it ends: when a run has read all that it holds, every event-time timer fires, as in Flink."""
    ends_by_itself: bool = True
    """Whether Spark's AvailableNow trigger reads everything that was there at the start. A source that does not
    support it is asked again until it has nothing."""
    on_corrupt_file: OnCorruptFile = "fail"
    """Whether a file that cannot be read ends the run, or is skipped as a whole and recorded."""

    @property
    def unchecked(self) -> str:
        """What of its input neither `check` nor `warnings` looks at; empty when they look at all of it."""
        return ""

    def warnings(self, spark: SparkSession) -> Sequence[str]:
        """What is likely to make a run fail and is no reason to refuse it, a sentence each."""
        return ()

    @property
    @abstractmethod
    def description(self) -> str:
        """What it reads; compared on restore, so that two sources are not mixed up."""

    @abstractmethod
    def check(self, spark: SparkSession) -> None:
        """Raises ConfigError or SchemaMismatch when it cannot be read as declared."""

    @abstractmethod
    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        """The streaming frame, with the columns of `schema`."""

    def check_settings(self, limits: SourceSettings) -> None:  # noqa: B027 - most sources have none
        """Checks what can be checked without Spark, such as limits and folders. Raises ConfigError."""

    @property
    def has_files(self) -> bool:
        """Whether `read_files` can read the source's rows of a batch again."""
        return type(self).read_files is not Source.read_files

    def read_files(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """The rows of some of the source's own files, with the columns of `schema`; for a source whose
        `on_corrupt_file` is ``"quarantine"``.

        Args:
            files: percent-encoded URIs, as the source's log has them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no files")

    def truncated(self, files: Sequence[str]) -> dict[str, str]:
        """Those of the files that a look at their ends shows to be corrupt, each with the reason. Others may be
        corrupt, too."""
        return {}

    def holds(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Whether everything behind a position that was read once can be read again; None when it cannot be told.

        Args:
            offset: the position, as Spark's offset log has it.
            logs: what Spark noted of this source since then, file by file.
        """
        return None

    def files_since(self, offset: str, logs: Sequence[bytes]) -> int | None:
        """Number of files that were read since a position; None when the source reads none. Arguments: see `holds`."""
        return None


@dataclass(frozen=True)
class Slice:
    """Rows of one micro-batch, and the position behind them."""

    rows: Sequence[Any]
    position: str


class LocalSource(ABC):
    """A source that the runner without Spark can read."""

    schema: RowSchema
    bounded: bool = False
    """As `Source.bounded`."""
    may_use_spark: bool = False
    """Whether a job that has Spark expressions, and no source that Spark reads, may run on Spark to read this one."""

    @property
    @abstractmethod
    def description(self) -> str:
        """As `Source.description`."""

    @abstractmethod
    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        """The next micro-batch after `position` (None: from the start); None when there is nothing."""

    def holds(self, position: str) -> bool | None:
        """Whether everything behind `position` can be read again; None when it cannot be told."""
        return None
