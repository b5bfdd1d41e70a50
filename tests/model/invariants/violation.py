"""A broken rule."""

from __future__ import annotations


class Violation(BaseException):
    """The protocol broke a rule. No `Exception`: code under test that catches those must not hide it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule} {text}")
        self.rule = rule
