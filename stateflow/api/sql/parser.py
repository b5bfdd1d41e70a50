"""Parses statements, with limits of size and depth, and makes errors with a position in the text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn, TypeVar

from sqlglot import ErrorLevel, ParseError, TokenError, exp
from sqlglot import parser as parsers
from sqlglot import tokens as lexical
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from stateflow.errors import JobDefinitionError

LONGEST = 100_000
"""Characters of a text."""
_MOST_NODES = 20_000
_DEEPEST = 100
"""Levels of a parsed statement: later steps call themselves for each level."""
_WINDOWS = ("TUMBLE", "HOP", "SESSION", "CUMULATE")
E = TypeVar("E", bound=exp.Expr)
_PARSED = ("CAST", "TRY_CAST", "EXTRACT", "POSITION", "SUBSTRING", "TRIM")


class FlinkDialect(Dialect):
    """The lexical rules of Flink SQL. All functions are left to the analysis, which knows those that exist."""

    class Tokenizer(lexical.Tokenizer):
        """Names in backquotes, texts in single quotes."""

        IDENTIFIERS = ["`"]
        QUOTES = ["'"]
        STRING_ESCAPES = ["'"]

    class Parser(parsers.Parser):
        """Leaves functions by name, and adds positions and the tables of window functions."""

        FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}
        FUNCTION_PARSERS = {
            **{name: parsers.Parser.FUNCTION_PARSERS[name] for name in _PARSED},
            **{name: lambda self: self._window_function() for name in _WINDOWS},
            **{name: lambda self: self._whole() for name in ("FLOOR", "CEIL", "CEILING")},
        }
        # The first phrase that matches counts. By default, all of them mean the same, also without AS OF.
        VERSION_PHRASES: ClassVar[dict[tuple[str, ...], str]] = {
            ("FOR", "SYSTEM_TIME", "AS", "OF"): "SYSTEM_TIME AS OF",
            **dict.fromkeys([("FOR", "SYSTEM_TIME"), ("FOR", "TIMESTAMP"), ("FOR", "VERSION")], "OTHER"),
        }
        FUNC_TOKENS = {*parsers.Parser.FUNC_TOKENS, TokenType.SESSION}

        def expression(self, instance: E, token: Token | None = None, comments: list[str] | None = None) -> E:
            """Adds the position of the last token to constructs that have none."""
            if token is None and "start" not in instance.meta and self._prev:
                instance.update_positions(self._prev)
            return super().expression(instance, token, comments)

        def _whole(self) -> exp.Anonymous:
            name, args = self._tokens[self._index - 2], [*self._parse_csv(self._parse_assignment)]
            if self._match_text_seq("TO"):
                args.append(self._parse_var(any_token=True) or exp.Var(this=""))
            return self.expression(exp.Anonymous(this=name.text, expressions=args), token=name)

        def _window_function(self) -> exp.Anonymous:
            name = self._tokens[self._index - 2]
            args: list[exp.Expr] = []
            self._argument_name()
            if self._match(TokenType.TABLE):
                args.append(self.expression(exp.Table(this=self._parse_id_var())))
                if self._match(TokenType.PARTITION_BY):
                    # Keys and the other arguments follow each other with the same commas.
                    args.append(self.expression(exp.Tuple(expressions=self._parse_csv(self._window_argument))))
                    return self.expression(exp.Anonymous(this=name.text, expressions=args), token=name)
                self._match(TokenType.COMMA)
            args += self._parse_csv(self._window_argument)
            return self.expression(exp.Anonymous(this=name.text, expressions=args), token=name)

        def _window_argument(self) -> exp.Expr | None:
            name = self._argument_name()
            value = self._parse_assignment()
            return self.expression(exp.Kwarg(this=exp.Var(this=name), expression=value)) if name else value

        def _argument_name(self) -> str:
            """Returns the name of ``NAME => value``, and takes it with the arrow; empty without one."""
            if self._curr is None or self._next is None or self._next.token_type is not TokenType.FARROW:
                return ""
            name: str = self._curr.text.upper()
            self._advance(2)
            return name


def parse_statements(text: str) -> list[exp.Expr]:
    """Returns the statements of a text.

    Raises:
        JobDefinitionError: the text cannot be parsed, is too long or nested too deeply, or has no statement.
    """
    source = SqlText(text)
    if not isinstance(text, str) or len(text) > LONGEST:
        raise error_at(
            SqlText(str(text)[:100]).at(0, 100),
            "a statement is not a text, or is too long",
            f"pass a text of at most {LONGEST} characters",
            characters=len(str(text)),
        )
    dialect = FlinkDialect()
    tokens: list[Token] = []
    try:
        tokens = dialect.tokenize(text)
        _check_match_recognize(source, tokens)
        found = dialect.parser(error_level=ErrorLevel.IMMEDIATE, max_nodes=_MOST_NODES).parse(tokens, text)
    except TokenError as e:
        raise error_at(
            source.at(0, len(text)), "could not read the statement", "close all quotes", reason=str(e)
        ) from e
    except ParseError as e:
        raise error_at(
            source.at(*_failed(e, tokens, text)), "could not parse the statement", "correct it", reason=_reason(e)
        ) from e
    except RecursionError:
        raise _too_deep(source, len(text)) from None
    statements = [each for each in found if each is not None]
    if not statements:
        raise error_at(source.at(0, len(text)), "the text contains no statement", "pass the text of a statement")
    for each in statements:
        if _depth(each) > _DEEPEST:
            raise _too_deep(source, len(text))
    return statements


def _check_match_recognize(source: SqlText, tokens: list[Token]) -> None:
    """Refuses patterns of rows before sqlglot, which parses a part of them."""
    for token in tokens:
        is_word = token.token_type in (TokenType.VAR, TokenType.MATCH_RECOGNIZE)
        if is_word and token.text.upper() == "MATCH_RECOGNIZE":
            raise error_at(
                source.at(token.start, token.end + 1),
                "MATCH_RECOGNIZE is not supported",
                "use match_pattern of the stream, and register the result with register_table",
            )


def _depth(root: exp.Expr) -> int:
    """Returns the number of levels, without calling itself."""
    level, depth = [root], 0
    while level:
        depth += 1
        level = [child for node in level for child in node.iter_expressions()]
    return depth


def _failed(error: ParseError, tokens: list[Token], text: str) -> tuple[int, int]:
    first = error.errors[0] if error.errors else {}
    line, column = first.get("line"), first.get("col")
    for token in tokens:
        if (token.line, token.col) == (line, column):
            return token.start, token.end + 1
    return 0, len(text)


def _reason(error: ParseError) -> str:
    return str(error.errors[0].get("description") or error)[:200] if error.errors else str(error)[:200]


def _too_deep(source: SqlText, end: int) -> Exception:
    return error_at(
        source.at(0, end),
        "a statement is nested too deeply",
        f"use at most {_DEEPEST} levels: name parts of it with WITH or CREATE TEMPORARY VIEW, or use IN for many OR",
    )


_SHOWN = 80
"""Characters of a construct that an error shows."""


@dataclass(frozen=True)
class SqlPosition:
    """Where a construct begins in a statement.

    Attributes:
        line, column: from 1.
        text: its beginning.
    """

    line: int
    column: int
    text: str


@dataclass(frozen=True)
class SqlText:
    """The text of statements."""

    text: str

    def at(self, start: int, end: int) -> SqlPosition:
        """Returns the position of the characters from `start` to before `end`."""
        line = self.text.count("\n", 0, start) + 1
        column = start - (self.text.rfind("\n", 0, start) + 1) + 1
        shown = " ".join(self.text[start : min(end, start + _SHOWN)].split())
        return SqlPosition(line, column, shown)

    def of(self, node: exp.Expr) -> SqlPosition:
        """Returns the position of a parsed construct."""
        # Positions in a hint are relative to the hint.
        parts = (each for each in node.walk(prune=_is_hint) if not _is_hint(each))
        found = [(each.meta["start"], each.meta["end"]) for each in parts if "start" in each.meta]
        if not found:
            return self.of(node.parent) if node.parent is not None else self.at(0, len(self.text))
        return self.at(min(start for start, _ in found), max(end for _, end in found) + 1)

    def fail(self, node: exp.Expr, message: str, hint: str, **facts: object) -> NoReturn:
        """Raises JobDefinitionError with the position of a construct."""
        raise error_at(self.of(node), message, hint, **facts)

    def check_parts(self, node: exp.Expr, known: Collection[str], ways_out: Mapping[str, str] | None = None) -> None:
        """Raises JobDefinitionError if a construct has a part that its caller does not read, and so would ignore.

        Args:
            known: the names of the parts that the caller reads.
            ways_out: hints for others.
        """
        for name, value in node.args.items():
            if value and name not in known:
                part = value[0] if isinstance(value, list) else value
                where = part if isinstance(part, exp.Expr) else node
                hint = (ways_out or {}).get(name, "leave it out")
                self.fail(where, "a clause is not supported", hint, clause=name.upper())


def _is_hint(node: exp.Expr) -> bool:
    return isinstance(node, exp.Hint)


def error_at(position: SqlPosition, message: str, hint: str, **facts: object) -> JobDefinitionError:
    """Returns the error of a statement."""
    at = {"line": position.line, "column": position.column, "sql": position.text}
    return JobDefinitionError(message, hint=hint, **at, **facts)
