"""Parts of operator state: inline or in a file, reused when nothing has changed, refused when damaged."""

from __future__ import annotations

import datetime
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.log.manifest_files import check_operator_memory, write_bytes
from stateflow.errors import CorruptFile, StateError
from stateflow.runtime.executor import BatchId, BatchInfo, OperatorBase, TaskEnvironment, TaskSettings
from stateflow.runtime.task.operator_state import INLINE_BYTES, OperatorParts
from stateflow.state.handles import OperatorContent, OperatorPart
from stateflow.state.operator_content import StoredContent, read_parts
from stateflow.storage import PosixStorage, Storage
from stateflow.types.decoders import MEMORY_LIMIT
from tests.support.errors import raises

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SMALL = OperatorContent(lists={"a": [b"1", b"2"]})
LARGE = OperatorContent(lists={"a": [bytes(INLINE_BYTES)]}, raw=[b"x"])


def read_part(storage: Storage | None, part: OperatorPart) -> OperatorContent:
    ((_, content),) = read_parts(storage, [part])
    return content


class Root:
    def __init__(self, folder: Path) -> None:
        self.storage = PosixStorage(folder)
        self.parts: list[OperatorPart] = []

    def subtask(self, number: int, ordinal: int, parallelism: int = 2, *, is_full: bool = False) -> OperatorParts:
        environment = TaskEnvironment(self.storage.uri, Path("unused"))
        settings = TaskSettings(128, full_snapshot=is_full)
        batch = BatchInfo(BatchId("job", 1, ordinal, NOW), settings, environment)
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


def test_a_full_snapshot_has_a_file_of_its_own_whether_or_not_the_subtask_has_rows(root: Root) -> None:
    before = root.write(LARGE, 1)
    subtask = root.subtask(1, 2, is_full=True)
    for part in (subtask.carry_over("t2"), subtask.write(LARGE, "t3")):
        assert part is not None and part.handle is not None and before.handle is not None
        assert part.handle.key != before.handle.key and read_part(root.storage, part) == LARGE


def test_a_subtask_without_rows_gets_its_share_at_another_parallelism(root: Root) -> None:
    root.write(SMALL, 1)
    parts = [root.subtask(number, 2, parallelism=3).carry_over("t") for number in range(3)]
    found = [part and (part.subtask, read_part(None, part).lists) for part in parts]
    assert found == [(0, {"a": [b"1"]}), (1, {"a": [b"2"]}), None]


def test_the_operator_state_of_a_subtask_above_the_limit_is_refused(root: Root) -> None:
    with raises(StateError, operator="op", subtask=1, limit_bytes=MEMORY_LIMIT):
        root.write(OperatorContent(raw=[bytes(MEMORY_LIMIT // 2)]), 1)
    with raises(StateError, operator="op", subtask=1, limit_bytes=MEMORY_LIMIT):
        root.write(OperatorContent(raw=[b""] * 2_000_000), 1)
    assert not list(root.storage.list("data/"))


def test_the_largest_operator_state_of_all_subtasks_is_read_again(root: Root) -> None:
    """What is written can be read: the limit is the same for both, and is for all parts together."""
    parts = [
        msgspec.structs.replace(root.write(OperatorContent(raw=[bytes(size)]), subtask + 1), subtask=subtask)
        for subtask, size in enumerate([30 << 20, (20 << 20) - 1000])
    ]
    operator = OperatorState(uid="op", parallelism=3, key_types=[], key_names=[], states=[], subtasks=[], parts=parts)
    check_operator_memory([operator])
    assert sum(len(content.raw[0]) for _, content in read_parts(root.storage, parts)) == (50 << 20) - 1000
    parts.append(msgspec.structs.replace(root.write(OperatorContent(raw=[bytes(1000)]), 3), subtask=2))
    with raises(StateError, operator="op", limit_bytes=MEMORY_LIMIT):
        check_operator_memory([operator])
    with raises(CorruptFile, subtask=2):
        list(read_parts(root.storage, parts))


NAMES = [f"{n:06x}" for n in range(20_000)]


@pytest.mark.parametrize(
    "content",
    [
        OperatorContent(lists={name: [] for name in NAMES}),
        OperatorContent(lists={name: [b"ab"] for name in NAMES}),
        OperatorContent(unions={"a": [b"ab"] * len(NAMES)}),
        OperatorContent(broadcasts={name: {} for name in NAMES}),
        OperatorContent(broadcasts={name: {b"ab": b"ab"} for name in NAMES}),
        OperatorContent(broadcasts={"a": {name.encode(): b"ab" for name in NAMES}}),
        OperatorContent(raw_keyed=[(300, b"ab")] * len(NAMES)),
        OperatorContent(raw=[bytes(10 << 20)]),
    ],
    ids=["lists", "lists of one", "unions", "broadcasts", "broadcasts of one", "entries", "raw-keyed", "raw"],
)
def test_the_bound_of_decoded_operator_state_is_above_its_size(content: OperatorContent) -> None:
    data = msgspec.msgpack.encode(content)
    tracemalloc.start()
    try:
        stored = StoredContent.of(data, MEMORY_LIMIT)
        decoded = stored.decode()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded == content and peak + len(data) <= stored.memory + 10_000


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"\x91\x01", msgspec.msgpack.encode({"lists": {"a": [1]}}), b"\xdd\xff\xff\xff\xff",
        b"\x81" * 5000, b"\x81\xa5lists\x81\xa1\xff\x90",
    ],
)  # fmt: skip
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with raises(CorruptFile, subtask=3) as refused:
        read_part(None, OperatorPart(subtask=3, memory=0, content=data))
    assert refused.value.facts["reason"]


@pytest.mark.parametrize(
    "pieces", [[(0, b"")] * (1 << 15) + [(0, b"")], [(-1, b"")], [(1 << 15, b"")]], ids=["too many", "below", "above"]
)
def test_raw_keyed_state_has_as_many_key_groups_as_a_job_may_have(root: Root, pieces: list[tuple[int, bytes]]) -> None:
    # A piece takes four bytes here, and twenty times as many once it is decoded.
    data = msgspec.msgpack.encode({"raw_keyed": pieces})
    part = OperatorPart(subtask=3, memory=0, handle=write_bytes(root.storage, "data/x/operator", data))
    with raises(CorruptFile, subtask=3, file="data/x/operator"):
        read_part(root.storage, part)


def test_a_file_with_another_hash_is_corrupt(root: Root) -> None:
    part = root.write(LARGE, 1)
    assert part.handle is not None
    wrong = msgspec.structs.replace(part, handle=msgspec.structs.replace(part.handle, sha256="0" * 64))
    with raises(CorruptFile, file=part.handle.key, expected="0" * 64, found=part.handle.sha256):
        read_part(root.storage, wrong)
