"""Parts of operator state: inline or in a file, reused when nothing has changed, refused when damaged."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.errors import CorruptFile, StateError
from stateflow.runtime.task import operator_state
from stateflow.runtime.task.operator_state import INLINE_BYTES, OperatorBase, OperatorParts, read_part
from stateflow.runtime.task_spec import BatchId, BatchInfo, TaskEnvironment, TaskSettings
from stateflow.state.handles import OperatorContent, OperatorPart
from stateflow.storage import PosixStorage
from tests.support.errors import raises

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SMALL = OperatorContent(lists={"a": [b"1", b"2"]})
LARGE = OperatorContent(lists={"a": [bytes(INLINE_BYTES)]}, raw=[b"x"])


class Root:
    """A job root, and subtasks of one operator that write there."""

    def __init__(self, folder: Path) -> None:
        self.storage = PosixStorage(folder)
        self.parts: list[OperatorPart] = []

    def subtask(self, number: int, ordinal: int, parallelism: int = 2) -> OperatorParts:
        environment = TaskEnvironment(self.storage.uri, Path("unused"))
        batch = BatchInfo(BatchId("job", 1, ordinal, NOW), TaskSettings(128), environment)
        base = OperatorBase(parallelism=2, states=[], parts=self.parts) if self.parts else None
        return OperatorParts("op", number, parallelism, batch, base)

    def write(self, content: OperatorContent, ordinal: int) -> OperatorPart:
        """Writes the part of subtask 1, and makes it the base of the next barrier."""
        part = self.subtask(1, ordinal).write(content, f"t{ordinal}")
        assert part is not None
        self.parts = [part]
        return part


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_a_small_part_is_inline_and_a_large_one_a_file(root: Root) -> None:
    small = root.write(SMALL, 1)
    assert small.handle is None and read_part(None, small) == SMALL
    large = root.write(LARGE, 2)
    assert large.handle is not None and large.content == b""
    assert read_part(root.storage, large) == LARGE
    assert [blob.key for blob in root.storage.list("data/")] == [large.handle.key]
    assert large.handle.key.endswith("2-t2/op-1-operator")


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_a_part_that_has_not_changed_is_reused(root: Root, content: OperatorContent) -> None:
    before = root.write(content, 1)
    assert root.write(content, 2) == before
    assert root.subtask(1, 3).carry_over("t3") == before
    assert root.write(msgspec.structs.replace(content, raw=[b"more"]), 4) != before


def test_a_subtask_without_state_has_no_part(root: Root) -> None:
    for number in (0, 1):
        assert root.subtask(number, 1).carry_over("t") is None
        assert root.subtask(number, 1).write(OperatorContent(), "t") is None
    root.write(SMALL, 1)
    assert root.subtask(0, 2).carry_over("t") is None
    assert root.subtask(1, 2).write(OperatorContent(), "t") is None


def test_a_subtask_without_rows_gets_its_share_at_another_parallelism(root: Root) -> None:
    root.write(SMALL, 1)
    parts = [root.subtask(number, 2, parallelism=3).carry_over("t") for number in range(3)]
    found = [part and (part.subtask, read_part(None, part).lists) for part in parts]
    assert found == [(0, {"a": [b"1"]}), (1, {"a": [b"2"]}), None]


def test_a_part_above_the_limit_is_refused(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_state, "LIMIT_BYTES", INLINE_BYTES)
    with raises(StateError, operator="op", limit=INLINE_BYTES):
        root.write(LARGE, 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"\x91\x01", msgspec.msgpack.encode({"lists": {"a": [1]}}), b"\xdd\xff\xff\xff\xff", b"\x81" * 5000],
)
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with raises(CorruptFile, subtask=3) as refused:
        read_part(None, OperatorPart(subtask=3, content=data))
    assert refused.value.facts["reason"]


@pytest.mark.parametrize(
    "pieces", [[(0, b"")] * (1 << 15) + [(0, b"")], [(-1, b"")], [(1 << 15, b"")]], ids=["too many", "below", "above"]
)
def test_raw_keyed_state_has_as_many_key_groups_as_a_job_may_have(root: Root, pieces: list[tuple[int, bytes]]) -> None:
    # A piece takes four bytes here, and twenty times as many once it is decoded.
    data = msgspec.msgpack.encode({"raw_keyed": pieces})
    part = OperatorPart(subtask=3, handle=write_bytes(root.storage, "data/x/operator", data))
    with raises(CorruptFile, subtask=3, file="data/x/operator"):
        read_part(root.storage, part)


def test_a_part_in_the_manifest_is_as_small_as_those_that_are_written_there() -> None:
    data = msgspec.msgpack.encode({"lists": {"a": [bytes(INLINE_BYTES)]}})
    with raises(CorruptFile, subtask=3, bytes=len(data)):
        read_part(None, OperatorPart(subtask=3, content=data))


def test_a_file_with_another_hash_is_corrupt(root: Root) -> None:
    part = root.write(LARGE, 1)
    assert part.handle is not None
    wrong = msgspec.structs.replace(part, handle=msgspec.structs.replace(part.handle, sha256="0" * 64))
    with raises(CorruptFile, file=part.handle.key, expected="0" * 64, found=part.handle.sha256):
        read_part(root.storage, wrong)
