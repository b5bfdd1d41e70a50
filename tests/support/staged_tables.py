"""A table whose sink stages rows in a job root, and what tests do with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import msgspec

from stateflow.api.sink import SinkContext, Writing
from stateflow.clock import SystemClock
from stateflow.connectors.staged_output import StagedSink
from stateflow.state.handles import Committable
from tests.support import delta_tables

S = TypeVar("S", bound=StagedSink)


@dataclass(frozen=True)
class StagedSinkTable(Generic[S]):
    """A table, its sink, and the storage of a job root.

    Attributes:
        name: with its namespace or schema.
    """

    name: str
    sink: S
    about: SinkContext

    def prepare(self) -> Self:
        self.sink.prepare(self.about)
        return self

    def stage(self, ordinal: int, *parts: Iterable[msgspec.Struct]) -> list[Committable]:
        files: list[Committable] = []
        for subtask, part in enumerate(parts):
            writing = Writing(1, ordinal, subtask, SystemClock().new_id())
            files += delta_tables.write(self.sink, self.about, part, writing)
        return files

    def put(self, token: int, *parts: Iterable[msgspec.Struct]) -> None:
        assert self.sink.open_table(self.about).commit(token, self.stage(token, *parts)) is not None

    @property
    def token(self) -> int | None:
        return self.sink.open_table(self.about).token
