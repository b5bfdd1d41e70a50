"""Hostile input takes at most 100 MB beyond the process, and at most 2 s of CPU time; it never waits."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.checkpoint.log.documents import Ancestry, CheckpointRecord
from stateflow.state.handles import ClassSchema, OperatorContent, StateSchema, TypeNode
from stateflow.types.decoders import largest_size
from tests.servers.hostile import hostile_server
from tests.support import attacks
from tests.support.memory import CPU_SECONDS, LIMIT

get_context("forkserver").set_forkserver_preload(["tests.support.attacks"])
PAGES = 16 << 20
"""Pages of libraries that a fork maps anew."""


def _measure(name: str, folder: Path, result: Path) -> None:
    with result.open("w") as file, redirect_stdout(file):
        attacks.main(name, folder)


def _check(name: str, folder: Path, *, alone: bool = False) -> None:
    """Measures an attack in a new process that shares nothing, or else in a fork."""
    result = folder / "result.json"
    context = get_context("spawn") if alone else get_context("forkserver")
    process = context.Process(target=_measure, args=(name, folder, result))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    found = json.loads(result.read_text())
    assert found["code"] == attacks.ATTACKS[name].code
    assert found["memory"] <= LIMIT + (0 if alone else PAGES) and found["cpu"] <= CPU_SECONDS, found


QUICK = {
    *("savepoint watermarks", "history object", "history brackets", "operator part pieces", "operator part inline"),
    *("operator parts", "raw keyed pieces, rekeyed", "raw keyed state of a hostile length, rekeyed"),
    *("Delta line of 400 MB", "TOML of 400 MB", "TOML parts of a key", "MANIFEST of 48 MB", "varint of 10 MB"),
    *("LZ4 value of 4 GB", "value of lists in a hash map, corrupt-file", "value of sets in LZ4, corrupt-file"),
    *("value of text in an error in a plain store, corrupt-file", "value of lists in verification in LZ4, accepted"),
    *attacks.FIFOS,
}
"""One or two of each kind, which the other tests try with other bytes."""


@pytest.mark.long(reason="another process reads the input, with its memory measured")
@pytest.mark.parametrize("name", sorted(QUICK))
def test_hostile_input_takes_bounded_memory_and_time(tmp_path: Path, name: str) -> None:
    attacks.ATTACKS[name].prepare(tmp_path)
    _check(name, tmp_path)


@pytest.mark.slow(reason="a new process and up to 100 MB of input each")
@pytest.mark.parametrize("name", [name for name in attacks.ATTACKS if name != attacks.LISTING])
def test_any_hostile_input_takes_bounded_memory_and_time(tmp_path: Path, name: str) -> None:
    attacks.ATTACKS[name].prepare(tmp_path)
    _check(name, tmp_path, alone=True)


@pytest.mark.parametrize("size", [31 << 20, 64 << 20])
def test_an_answer_of_webhdfs_takes_bounded_memory_and_time(tmp_path: Path, size: int) -> None:
    body = attacks.listing(size)
    with hostile_server(lambda _: body) as server:
        (tmp_path / "host").write_text(server.host)
        _check(attacks.LISTING, tmp_path)


UNITS: list[tuple[Any, str]] = [
    (TypeNode, '{"kind":""}'), (TypeNode, '{"kind":"","limits":{"aa":300},"parts":[{"kind":""}],"choices":["aa"]}'),
    (ClassSchema, '{"name":"","fields":[{"name":"","type":{"kind":""}}]}'),
    (StateSchema, '{"name":"","kind":"","value_type":"","type":{"root":{"kind":""}}}'),
    (Ancestry, '{"since":0,"restores":[{"seq":300,"base":300}]}'), (OperatorContent, "{}"),
    (
        CheckpointRecord,
        '{"checkpoint_id":1,"generation":1,"ordinal":1,"run":1,"ended_at":"","duration_ms":1,"increment_bytes":1,'
        '"full_bytes":1,"files":1,"rows_in":1,"rows_out":{},"driver":""}',
    ),
    (list[int], "[300]"), (int, "300"), (str, '"aa"'), (str, '"\U0001f600"'), (str, '"\\u0100"'),
    (dict[str, str], "{}"), (dict[str, str], '{"aa":"aa"}'),
    (dict[str, int], '{"aa":300,"ab":300,"ac":300,"ad":300,"ae":300,"af":300,"ag":300,"ah":300,"ai":300}'),
    (tuple[int, bytes], '[300,"AAAA"]'), (Any, '[{"a":[{}]}]'), (Any, "[[[[[[]]]]]]"),
    (str, f'"\\ud83d\\ude00{"a" * 200}"'),
]  # fmt: skip


@pytest.mark.long(reason="traces each allocation of a decoder")
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
