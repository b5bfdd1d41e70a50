"""Hostile input takes at most 100 MB beyond the process, and at most 2 s of CPU time; it never waits."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.checkpoint.log.documents import Ancestry, CheckpointRecord
from stateflow.state.handles import ClassSchema, OperatorContent, StateSchema, SubtaskState, TypeNode, TypeSchema
from stateflow.types.decoders import largest_size
from tests.servers.hostile import hostile_server
from tests.support.attacks import ATTACKS, LISTING, listing
from tests.support.memory import CPU_SECONDS, LIMIT

ROOT = Path(__file__).resolve().parents[2]


def _check(name: str, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.support.attacks", name, str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert found["code"] == ATTACKS[name].code
    assert found["memory"] <= LIMIT and found["cpu"] <= CPU_SECONDS, found


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != LISTING])
def test_hostile_input_takes_bounded_memory_and_time(tmp_path: Path, name: str) -> None:
    ATTACKS[name].prepare(tmp_path)
    _check(name, tmp_path)


@pytest.mark.parametrize("size", [31 << 20, 64 << 20])
def test_an_answer_of_webhdfs_takes_bounded_memory_and_time(tmp_path: Path, size: int) -> None:
    body = listing(size)
    with hostile_server(lambda _: body) as server:
        (tmp_path / "host").write_text(server.host)
        _check(LISTING, tmp_path)


UNITS: list[tuple[Any, str]] = [
    (TypeNode, '{"kind":""}'),
    (TypeNode, '{"kind":"","limits":{"aa":300},"parts":[{"kind":""}],"choices":["aa"]}'),
    (TypeSchema, '{"root":{"kind":""}}'),
    (ClassSchema, '{"name":"","fields":[{"name":"","type":{"kind":""}}]}'),
    (StateSchema, '{"name":"","kind":"","value_type":"","type":{"root":{"kind":""}}}'),
    (SubtaskState, '{"subtask":0,"first_group":0,"last_group":0,"snapshot":""}'),
    (Ancestry, '{"since":0,"restores":[{"seq":300,"base":300}]}'),
    (OperatorContent, "{}"),
    (
        CheckpointRecord,
        '{"checkpoint_id":1,"generation":1,"ordinal":1,"run":1,"committed_at":"","duration_ms":1,"increment_bytes":1,'
        '"full_bytes":1,"files":1,"rows_in":1,"rows_out":{},"by":""}',
    ),
    (list[int], "[]"),
    (list[int], "[300]"),
    (int, "300"),
    (float, "0.5"),
    (str, '"aa"'),
    (str, '"\u00e9\u20ac"'),
    (str, '"\U0001f600"'),
    (str, '"\\u0100"'),
    (bytes, '"AAAA"'),
    (dict[str, str], "{}"),
    (dict[str, str], '{"aa":"aa"}'),
    (dict[str, int], '{"aa":300,"ab":300,"ac":300,"ad":300,"ae":300,"af":300,"ag":300,"ah":300,"ai":300}'),
    (tuple[int, bytes], '[300,"AAAA"]'),
    (Any, "[[]]"),
    (Any, '[{"a":[{}]}]'),
]


@pytest.mark.parametrize(("kind", "unit"), UNITS, ids=str)
def test_the_bound_of_a_decoded_document_is_above_its_size(kind: Any, unit: str) -> None:
    text = f"[{','.join([unit] * 20_000)}]".encode()
    decoder = msgspec.json.Decoder(list[kind])
    tracemalloc.start()
    try:
        document = decoder.decode(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(document) == 20_000 and peak + len(text) <= largest_size(text)
