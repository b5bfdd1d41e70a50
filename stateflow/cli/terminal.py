"""Output to the terminal, in which characters that control it are visible.

Names, reasons, positions and paths come from job roots, savepoints and servers. An escape sequence in one of them could
erase or rewrite what the user sees, and a character that changes the direction of writing could reorder it.
"""

from __future__ import annotations

import re

import click

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
"""Control characters except tab and line feed, invisible ones, changes of direction, and lone surrogates."""


def print_text(text: str = "", *, err: bool = False) -> None:
    """Prints a text to stdout, or to stderr."""
    click.echo(visible(text), err=err)


def visible(text: str) -> str:
    r"""Returns the text with control characters as ``\u001b``, which also means the character in a string of JSON."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
