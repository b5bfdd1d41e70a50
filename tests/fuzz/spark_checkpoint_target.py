"""The fuzz target for checkpoints of Spark's Structured Streaming, from which a savepoint takes positions."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from stateflow import DeltaSource, FileSource, KafkaSource, SparkCheckpoint
from stateflow.errors import StateflowError
from tests.fuzz.mutations import changed_bytes, changed_json
from tests.fuzz.target import Target


class Order(msgspec.Struct):
    shop: str
    amount: int


_WRITTEN = Path(__file__).parents[1] / "bootstrap" / "spark_checkpoints"
_SOURCES = (
    FileSource("/tmp/orders/in", schema=Order, format="json"),
    DeltaSource("/tmp/orders/table", schema=Order),
    KafkaSource("broker:9092", schema=Order, topics=["orders", "returns"]),
)
_OFFSETS = (b'{"orders":{"0":7,"1":-2},"returns":{"0":9223372036854775807}}', b'{"logOffset":2}', b"-", b"v1", b"v99")


@contextmanager
def spark_checkpoint(folder: Path) -> Iterator[Target]:
    """Changes a line of a file of a checkpoint; reads the position of each kind of source."""
    root = Path(shutil.copytree(_WRITTEN, folder / "spark-checkpoints", dirs_exist_ok=True))
    intact = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file() and path.suffix != ".crc"}
    lines = [*_OFFSETS, *(line for data in intact.values() for line in data.splitlines())]
    documents = [line for line in lines if line.startswith(b"{")]

    def mutate(rng: random.Random) -> tuple[Path, bytes, int | None]:
        path = rng.choice(list(intact))
        data = intact[path]
        if rng.random() < 0.2:
            return path, changed_bytes(rng, data, lines), None
        changed = data.split(b"\n")
        at = rng.randrange(len(changed))
        changed[at] = rng.choice(lines) if rng.random() < 0.3 else _changed_line(rng, changed[at], documents)
        return path, b"\n".join(changed), rng.choice([None, None, 0, 1, 5])

    def read(given: tuple[Path, bytes, int | None]) -> None:
        path, data, batch = given
        path.write_bytes(data)
        try:
            checkpoint = SparkCheckpoint(root / path.relative_to(root).parts[0], batch=batch)
            for number in range(len(checkpoint.offsets)):
                _convert(checkpoint, number)
        finally:
            path.write_bytes(intact[path])

    yield Target(mutate, read)


def _convert(checkpoint: SparkCheckpoint, number: int) -> None:
    """Converts an offset for each source; raises the last error if it is the offset of none."""
    error = None
    for source in _SOURCES:
        try:
            checkpoint.source_position(source, number)
            return
        except StateflowError as e:
            error = e
    assert error is not None
    raise error


def _changed_line(rng: random.Random, line: bytes, documents: list[bytes]) -> bytes:
    try:
        json.loads(line)
    except ValueError:
        return changed_bytes(rng, line, documents)
    return changed_json(rng, line, documents)
