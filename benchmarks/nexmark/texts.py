"""Random texts: pieces of a long random text, cut out for many rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.nexmark.randomness import Draws, Numbers
from benchmarks.nexmark.rules import CHANNELS, HOT_CHANNELS

POOL_LENGTH = 1 << 20
_SPECIAL_ODDS = 13
_LETTERS = 26
_SHORTEST = 3
_URL_PART = 5
_CHANNEL_ID_ODDS = 10


@dataclass(frozen=True)
class Spans:
    """For each row, where its text starts in a pool, and how long it is."""

    starts: Numbers
    lengths: Numbers


@dataclass(frozen=True)
class Pool:
    """A long text, and for each position the next and the previous one that is not a space."""

    text: npt.NDArray[np.uint8]
    next_letter: Numbers
    after_letter: Numbers

    def cut(self, spans: Spans) -> pa.StringArray:
        """Returns the texts of spans."""
        offsets = np.zeros(len(spans.lengths) + 1, np.int32)
        np.cumsum(spans.lengths, out=offsets[1:])
        shift = (spans.starts - offsets[:-1]).astype(np.int32)
        at = np.repeat(shift, spans.lengths) + np.arange(offsets[-1], dtype=np.int32)
        return pa.StringArray.from_buffers(len(spans.lengths), pa.py_buffer(offsets), pa.py_buffer(self.text[at]))

    def trimmed(self, spans: Spans) -> Spans:
        """Returns the spans without spaces at their ends."""
        ends = spans.starts + spans.lengths
        starts = np.minimum(self.next_letter[spans.starts], ends)
        return Spans(starts, np.maximum(self.after_letter[ends] - starts, 0))


@cache
def letters(seed: int) -> Pool:
    """Returns a pool of letters only."""
    return _pool(_letters(seed, 0))


@cache
def words(seed: int) -> Pool:
    """Returns a pool in which one character of 13 is a space."""
    return _pool(np.where(_specials(seed), np.uint8(ord(" ")), _letters(seed, 1)))


def _letters(seed: int, draw: int) -> npt.NDArray[np.uint8]:
    drawn = Draws(seed, np.arange(POOL_LENGTH)).below(draw, _LETTERS)
    return (drawn + ord("a")).astype(np.uint8)


def _specials(seed: int) -> npt.NDArray[np.bool_]:
    special: npt.NDArray[np.bool_] = Draws(seed, np.arange(POOL_LENGTH)).below(2, _SPECIAL_ODDS) == 0
    return special


def _pool(text: npt.NDArray[np.uint8]) -> Pool:
    at = np.arange(POOL_LENGTH)
    filled = text != ord(" ")
    following = np.minimum.accumulate(np.where(filled, at, POOL_LENGTH)[::-1])[::-1]
    # Element n is for a text that ends before position n.
    after = np.concatenate([[0], np.maximum.accumulate(np.where(filled, at + 1, 0))])
    return Pool(text, following, after)


def spans(draws: Draws, first_draw: int, lengths: Numbers) -> Spans:
    """Returns spans of given lengths at random positions."""
    return Spans(draws.below(first_draw, POOL_LENGTH - lengths), lengths)


def short_spans(draws: Draws, first_draw: int, longest: int) -> Spans:
    """Returns spans of 3 to below `longest` characters; takes two draws."""
    lengths = _SHORTEST + draws.below(first_draw + 1, longest - _SHORTEST)
    return spans(draws, first_draw, lengths)


@cache
def channels(seed: int) -> tuple[pa.StringArray, pa.StringArray]:
    """Returns the names and URLs of all channels, the hot ones first."""
    draws = Draws(seed, -1 - np.arange(len(HOT_CHANNELS) + CHANNELS))
    underscored = _pool(np.where(_specials(seed), np.uint8(ord("_")), _letters(seed, 1)))
    parts = [underscored.cut(short_spans(draws, 2 * n, _URL_PART)).to_pylist() for n in range(3)]
    urls = [f"https://www.nexmark.com/{a}/{b}/{c}/item.htm?query=1" for a, b, c in zip(*parts, strict=True)]
    with_id = draws.below(6, _CHANNEL_ID_ODDS) > 0
    for number in range(CHANNELS):
        if with_id[len(HOT_CHANNELS) + number]:
            urls[len(HOT_CHANNELS) + number] += f"&channel_id={_channel_id(number)}"
    return pa.array([*HOT_CHANNELS, *(f"channel-{n}" for n in range(CHANNELS))]), pa.array(urls)


def _channel_id(number: int) -> int:
    """The absolute value of the number with its 32 bits reversed, in Java's arithmetic: -2³¹ has none."""
    reversed_bits = int(f"{number:032b}"[::-1], 2)
    if reversed_bits == 1 << 31:
        return -reversed_bits
    return reversed_bits if reversed_bits < 1 << 31 else (1 << 32) - reversed_bits
