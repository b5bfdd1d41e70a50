"""Texts of others in Markdown that Airflow renders for an approver."""

from __future__ import annotations

import re

_SPECIAL = re.compile(
    r"[\\`*\[\]|~]"
    # An underscore within a word is no emphasis.
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    # Headings, lists, quotations, and the second line of a table with one column.
    r"|^[#>+=:-]|" + "|".join(rf"(?<=^[0-9]{{{digits}}})[.)]" for digits in range(1, 10))
)
_ADDRESS = re.compile(r"(?<=http:)/|(?<=https:)/|(?<=www)\.|@", re.IGNORECASE)
"""The first character at which GitHub's Markdown recognizes an address, even if it is escaped."""
_ZERO_WIDTH_SPACE = "\u200b"
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]+"
)
"""Control characters, invisible ones, changes of direction, and lone surrogates."""
_LONGEST = 4000


def escaped(text: object) -> str:
    """Returns a text as one line that Markdown shows as it is: no format, no link, no HTML, no control characters."""
    line = " ".join(_CONTROLS.sub(" ", str(text)).split())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    line = _SPECIAL.sub(r"\\\g<0>", line.replace("&", "&amp;").replace("<", "&lt;"))
    return _ADDRESS.sub(rf"{_ZERO_WIDTH_SPACE}\g<0>", line)


def quoted(text: object) -> str:
    """Returns a text of several lines as a quotation in plain text; an empty one as a dash."""
    lines = str(text).strip().splitlines()[:50] or ["-"]
    # Two spaces at its end keep a line from being joined with the next one.
    return "\n".join(f"> {escaped(line)}  " for line in lines)
