"""Formats sizes, timestamps, source positions and tables for the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines with aligned columns; nothing is cut or wrapped, however narrow the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def offset_text(offset: str) -> str:
    """Returns a source's position without JSON punctuation: ``{"row": 120}`` becomes ``row:120``."""
    return re.sub(r'[{}"\s]', "", offset) or "-"


def short_offset(offset: str) -> str:
    """Returns a source's position like `offset_text`, cut to 58 characters."""
    text = offset_text(offset)
    return f"{text[:57]}…" if len(text) > 58 else text


def to_seconds(timestamp: str) -> str:
    """Returns an ISO timestamp to the second, without its zone: ``2026-01-31 03:00:00``."""
    return timestamp[:19].replace("T", " ")


def in_utc(timestamp: str) -> str:
    """Returns a stored timestamp to the second; stored ones are in UTC on every host."""
    return f"{to_seconds(timestamp)} UTC"


def count_of(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 file``, ``1,200 files``; batch and batches likewise."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def human_bytes(count: int) -> str:
    """Returns a number of bytes with a decimal unit."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
