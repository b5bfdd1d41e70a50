"""Names and texts in Spark SQL: no character of them ends a literal or is replaced."""

from __future__ import annotations

import pytest

from stateflow.types.declared_types import literal, quoted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "'a'"),
        ("a'b", "'a\\'b'"),
        ("a\\", "'a\\\\'"),
        ("${env:HOME}", "'\\u0024{env:HOME}'"),
        ("a\nb\0\x7f", "'a\\u000ab\\u0000\\u007f'"),
    ],
)
def test_a_text_is_one_literal_without_variables(text: str, expected: str) -> None:
    assert literal(text) == expected


def test_a_name_is_one_quoted_name() -> None:
    assert (quoted("a b"), quoted("a`b")) == ("`a b`", "`a``b`")
