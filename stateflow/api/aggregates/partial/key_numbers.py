"""The keys of rows as numbers, before the shuffle divides rows by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from stateflow.api.functions.vectorized import Array
from stateflow.api.schema import Column

ROWS_AT_ONCE = 1 << 19
BYTES_AT_ONCE = 64 << 20


def held_together(
    batches: Iterable[pa.RecordBatch], rows_at_once: int = ROWS_AT_ONCE, bytes_at_once: int = BYTES_AT_ONCE
) -> Iterator[list[pa.RecordBatch]]:
    """Yields the batches of a partition in groups that are in memory at once; a larger batch is a group of its own."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + len(batch) > rows_at_once or size + batch.nbytes > bytes_at_once):
            yield held
            held, rows, size = [], 0, 0
        if len(batch):
            held.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
    if held:
        yield held


def are_grouped_alike(keys: Iterable[Column]) -> bool:
    """Returns whether Arrow and Spark's shuffle agree on which rows have equal keys.

    A float has several binary forms (NaN, -0.0), which they may group differently.
    """
    return not any(key.spark_type == "double" for key in keys)


def key_numbers(rows: pa.Table, keys: Sequence[str]) -> Array:
    """Returns the number of each row's key: 0 for that of the first row, 1 for the next key, and so on.

    Null is a value like others.
    """
    numbers: Array = np.zeros(len(rows), np.int64)
    for key in keys:
        encoded = rows.column(key).combine_chunks().dictionary_encode(null_encoding="encode")
        # Both factors are at most the number of rows, so the product fits into 64 bits.
        codes = numbers * len(encoded.dictionary) + encoded.indices.to_numpy()
        numbers = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def ranks(counts: Array) -> Array:
    """Returns the number of each row among those of its key, from 0, for rows in the order of keys.

    Args:
        counts: number of rows of each key.
    """
    first = np.cumsum(counts) - counts
    found: Array = np.arange(int(counts.sum())) - np.repeat(first, counts)
    return found
