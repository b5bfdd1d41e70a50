"""Texts of others in the Markdown that an approver reads: what an independent renderer makes of them."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from stateflow_airflow.operators.base import escape, quote

ATTACKS = [
    "**approved by security**",
    "# Approve this",
    "- nothing is lost",
    "1. nothing is lost",
    "123456789) nothing is lost",
    "===",
    ":-",
    "[click](http://evil)",
    "![](http://evil/pixel)",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "&lt;script&gt;",
    "http://evil/login",
    "HTTPS://evil/login",
    "www.evil.com",
    "a@evil.com",
    "a | b | c",
    "`code` ~~struck~~ _soft_ __strong__",
    "> quoted",
    "---",
    "\\*not escaped*",
    "\u202egnorw \x1b[2J \u200b",
]


ADDRESS = re.compile(r"(https?://|www(?=\.))[-.\w]+|[-.\w+]+@[-\w]+(\.[-\w]+)+", re.IGNORECASE)
"""What GitHub's Markdown makes a link of, in texts from which escapes have been removed: the expressions of
mdast-util-gfm-autolink-literal, which Airflow's pages use."""

_RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _rendered(text: str) -> str:
    return str(_RENDERER.render(text))


def _plain(rendered: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", rendered))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_text_of_others_has_no_format_in_markdown(attack: str) -> None:
    shown = _rendered(f"The reason: {escape(attack)}")
    assert re.findall(r"<\w+", shown) == ["<p"]
    assert re.findall(r"<\w+", _rendered(quote(attack))) == ["<blockquote", "<p"]
    cells = _rendered(f"| a |\n|---|\n| {escape(attack)} |")
    assert cells.count("<td") == 1 and not re.search(r"<(a|img|script|strong|em|code)\b", cells)
    assert not ADDRESS.search(_plain(shown))
    below = _rendered(quote(f"The reason\n{attack}"))
    assert re.findall(r"<\w+", below) == ["<blockquote", "<p", "<br"]


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=60))
def test_an_escaped_text_is_shown_unchanged(text: str) -> None:
    assert _plain(_rendered(f"x {escape(text)} x")).replace("\u200b", "").split() == ["x", *text.split(), "x"]


def test_a_quotation_keeps_its_lines_and_ends_nothing() -> None:
    shown = _rendered(quote("wrong rows\n\n---\n**Approve**: safe") + "\n\nAfter.")
    assert shown.count("<blockquote") == 1 and shown.rstrip().endswith("<p>After.</p>")
    assert "<strong" not in shown and "<hr" not in shown
    assert quote(" ") == "> \\-  "
