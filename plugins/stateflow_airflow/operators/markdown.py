"""Texts of others in Markdown that Airflow renders for an approver."""

from __future__ import annotations

import re

_SPECIAL = re.compile(
    r"[\\`*\[\]|~]"
    # An underscore within a word is no emphasis.
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    # Addresses would become links.
    r"|:(?=//)|(?<=www)\.|@"
    # Headings, lists and quotations.
    r"|^[#>+-]|(?<=^[0-9])[.)]|(?<=^[0-9][0-9])[.)]"
)
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_LONGEST = 4000


def escaped(text: object) -> str:
    """Returns a text as one line that Markdown shows as it is: no format, no link, no HTML, no control characters."""
    line = " ".join(_CONTROLS.sub(" ", str(text)).split())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return _SPECIAL.sub(r"\\\g<0>", line.replace("&", "&amp;").replace("<", "&lt;"))


def quoted(text: object) -> str:
    """Returns a text of several lines as a quotation in plain text; an empty one as a dash."""
    lines = str(text).strip().splitlines()[:50] or ["-"]
    # Two spaces at its end keep a line from being joined with the next one.
    return "\n".join(f"> {escaped(line)}  " for line in lines)
