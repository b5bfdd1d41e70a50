"""Expressions have the values of Flink's tests, and the same in Spark as in Python."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pytest

from stateflow import precision
from stateflow.api.schema import RowSchema
from stateflow.api.sql.analysis import Analysis
from stateflow.api.sql.calls import _SPECIAL, resolve_call
from stateflow.api.sql.expressions import BIGINT, BOOLEAN, STRING, Call, Constant, Expression, SqlType, Value, fields_of
from stateflow.api.sql.parser import SqlText, parse_statements
from stateflow.api.sql.plan import FromTable, RelationScope
from stateflow.api.sql.renderings import evaluation, spark_sql
from stateflow.api.sql.sql_functions import CONVERSIONS, FUNCTIONS, Function
from stateflow.api.sql.text_patterns import java_pattern, like_pattern, normal_like
from stateflow.errors import JobDefinitionError, SchemaMismatch
from stateflow.runtime.task.row_conversion import check_declared
from tests.sql.sql_jobs import data
from tests.support.errors import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Values(msgspec.Struct, frozen=True):
    i: int | None
    j: int | None
    x: float | None
    y: float
    s: str | None
    t: str
    b: bool | None
    d: Annotated[Decimal, precision(9, scale=3)] | None
    at: datetime | None
    utc: Annotated[datetime, msgspec.Meta(tz=True)]
    day: date | None


NAN = float("nan")
AT = datetime.fromisoformat("2026-02-28T23:59:58.123456")
ROWS = [
    Values(
        7, -3, 2.5, 2.0, "aBc/d e/f", "%a_'\\", True, Decimal("-1.255"), AT, AT.replace(tzinfo=UTC), date(2024, 2, 29)
    ),
    Values(
        -7,
        3,
        -2.5,
        NAN,
        "",
        "",
        False,
        Decimal("999999.999"),
        datetime.fromisoformat("1969-12-31T01:00:00"),
        datetime(1960, 5, 6, tzinfo=UTC),
        None,
    ),
    Values(None, 5, None, -0.0, None, "x", None, None, None, datetime(2026, 1, 1, tzinfo=UTC), None),
    Values(0, 1 << 40, NAN, 1e300, "  äöü/ ", " é ", None, Decimal(0), AT, AT.replace(tzinfo=UTC), date(1900, 1, 1)),
]
EXPRESSIONS = data("expressions.txt").splitlines()
VALUES = {"inf": math.inf, "nan": math.nan, "Decimal": Decimal, "datetime": datetime, "date": date}
FLINK: list[tuple[str, Any]] = [
    (text, eval(value, dict(VALUES)))
    for text, arrow, value in (line.partition(" => ") for line in data("flink_values.txt").splitlines())
    if arrow
]
# Of characters that a text file does not show.
FLINK += [
    ("TRIM('\u00a0\ta ')", "\u00a0\ta"), ("'a\nc' LIKE 'a_c'", True), ("REGEXP_EXTRACT('x\u0661y7', '\\d')", "7"),
    ("REGEXP_EXTRACT('\u00a0 a', '\\s+')", " "), ("REGEXP_EXTRACT('a\rb', 'a.b')", None),
    ("REGEXP_EXTRACT('a\u2028b', 'a.b')", None), ("REGEXP_EXTRACT('\u212a', '(?i)k')", None),
    ("REGEXP_EXTRACT('ab\r\n', 'b$')", "b"), ("TRY_CAST('\uff11' AS BIGINT)", None),
    ("TRY_CAST('\t1' AS BIGINT)", None),
]  # fmt: skip
APPROXIMATE = ("LN", "LOG", "EXP", "POWER")
"""Functions whose last bit depends on the mathematical library."""


def analysed(text: str) -> Expression:
    (node,) = parse_statements(f"SELECT {text} AS c")
    columns = {each.name: each for each in fields_of(RowSchema.of(Values))}
    return Analysis(SqlText(text), RelationScope(SqlText(text), (FromTable("t", columns),))).of(
        node.expressions[0].unalias()
    )


def in_python(expression: Expression, row: Values) -> object:
    """Returns the value for a row; the class of an error, which is an error in Spark as well."""
    try:
        return evaluation(expression)(row)
    except (ArithmeticError, ValueError):
        return Exception


def functions_of(expression: Expression) -> Iterator[str]:
    if isinstance(expression, Call):
        yield expression.function
        for each in expression.args:
            yield from functions_of(each)


class InSpark:
    def __init__(self, session: SparkSession, rows: Sequence[Values]) -> None:
        schema = RowSchema.of(Values).arrow
        table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], schema=schema)
        ddl = f"{RowSchema.of(Values).ddl}, row bigint"
        self._frame = session.createDataFrame(table.append_column("row", pa.array(range(len(rows)))), ddl)
        self._rows = rows

    def check(self, texts: Sequence[str]) -> int:
        """Compares the types and values with Python's; returns the number of values."""
        made = [analysed(text) for text in texts]
        wanted = [[in_python(each, row) for row in self._rows] for each in made]
        columns = []
        for n, (each, values) in enumerate(zip(made, wanted, strict=True)):
            failing = ", ".join(str(at) for at, value in enumerate(values) if value is Exception)
            sql = spark_sql(each)
            columns.append(f"{f'CASE WHEN row NOT IN ({failing}) THEN {sql} END' if failing else sql} AS c{n}")
        selected = self._frame.selectExpr("row", *columns).orderBy("row")
        assert dict(selected.dtypes) | {"row": ""} == {"row": "", **{f"c{n}": e.type.spark for n, e in enumerate(made)}}
        found = selected.toArrow()
        for n, (text, values) in enumerate(zip(texts, wanted, strict=True)):
            exact = not any(name in text for name in APPROXIMATE)
            given = [plain(value, exact=exact) for value in found.column(f"c{n}").to_pylist()]
            expected = [None if value is Exception else plain(value, exact=exact) for value in values]
            assert given == expected, (text, spark_sql(made[n]))
            assert made[n].type.nullable or None not in [v for v in values if v is not Exception], text
        return sum(map(len, wanted))


def plain(value: Any, *, exact: bool) -> object:
    if isinstance(value, datetime):
        return str(value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value)
    if isinstance(value, float) and not exact and math.isfinite(value):
        return f"{value:.12g}"
    return repr(value) if isinstance(value, float | Decimal) else value


@pytest.mark.parametrize(("text", "expected"), FLINK, ids=[text for text, _ in FLINK])
def test_values_in_python_are_those_of_flinks_tests(text: str, expected: object) -> None:
    found = in_python(analysed(text), ROWS[0])
    assert plain(found, exact=False) == plain(expected, exact=False)


@pytest.mark.spark
def test_values_in_spark_are_those_in_python(spark_session: SparkSession) -> None:
    InSpark(spark_session, ROWS).check([*EXPRESSIONS, *(text for text, _ in FLINK)])


ERRORS = ["i / 0", "MOD(i, 0)", "1.5 % 0.0", "9223372036854775807 + i", "ABS(-9223372036854775807 - 1)"]
ERRORS += ["CAST(3000000000 AS INT)", "CAST(1E300 AS BIGINT)", "CAST('x' AS BIGINT)", "CAST('1_0' AS DOUBLE)"]
ERRORS += ["CAST('1_0' AS DECIMAL(5, 2))", "CAST('maybe' AS BOOLEAN)", "CAST(t AS BIGINT)", "d / 0"]


@pytest.mark.slow(reason="a job of Spark for each error")
@pytest.mark.spark
def test_values_that_flink_does_not_have_are_errors_in_spark_and_in_python(spark_session: SparkSession) -> None:
    frame = spark_session.createDataFrame([(7, "%a", Decimal("1.5"))], "i bigint, t string, d decimal(9, 3)")
    for text in ERRORS:
        assert in_python(analysed(text), ROWS[0]) is Exception
        with pytest.raises(Exception, match=r"\[[A-Z_.]+\]"):
            frame.selectExpr(spark_sql(analysed(text))).collect()


BEYOND = [
    "CEIL(TIMESTAMP '9999-12-31 00:00:01' TO YEAR)", "CEIL(TIMESTAMP '9999-12-31 23:59:59' TO HOUR)",
    "FLOOR(TIMESTAMP '0001-01-01 00:00:00' TO WEEK)", "TIMESTAMPADD(MONTH, 1, TIMESTAMP '9999-12-01 00:00:00')",
    "TIMESTAMPADD(SECOND, -1, TIMESTAMP '0001-01-01 00:00:00')",
    "TIMESTAMP '9999-12-31 23:59:59' + INTERVAL '1' SECOND", "TIMESTAMP '0001-01-01 00:00:00' - INTERVAL '1' DAY",
]  # fmt: skip


@pytest.mark.spark
def test_times_out_of_the_years_from_1_to_9999_are_errors_in_spark_and_in_python(spark_session: SparkSession) -> None:
    frame, schema = spark_session.range(1), RowSchema.of(msgspec.defstruct("At", [("at", datetime)]))
    for text in BEYOND:
        assert in_python(analysed(text), ROWS[0]) is Exception
        with raises(SchemaMismatch, column="at"):
            check_declared(frame.selectExpr(f"{spark_sql(analysed(text))} AS at").toArrow().columns, schema)


# -- random expressions -----------------------------------------------------------------------------------------------

LONG = 1 << 63
WHOLE = [0, 1, -1, 7, -13, 100, (1 << 31) - 1, -(1 << 31), LONG - 1, -LONG, 1 << 53, None]
BROKEN = [0.0, -0.0, 0.5, -2.5, 1e300, -1e-300, 5e-324, 1e7, 123456.789, math.inf, -math.inf, math.nan, None]
TEXTS = [
    "", " ", "a", "aBc/d e/f", " 12 ", "-1.9", "1_0", "\uff11", "NaN", "1e3", "ß İ ΑΣ", "😀\u0301", "%_\\'", "{0}{",
    "$1",
]  # fmt: skip
TEXTS += ["$1", "${env:HOME}", "\x00\n\t", "\u2028\r\n", "true", "a" * 300, "\u00a0", None]  # type: ignore[list-item]
TIMES = ["0001-01-02", "1500-02-28T23:59:59.999999", "1582-10-10", "1969-12-31T23:59:59.000001", "1970-01-01"]
TIMES += ["2024-02-29T12:30:15.5", "9998-12-30T01:02:03"]
EXACT = [Decimal(text) for text in ("0.000", "-0.001", "999999.999", "-999999.999", "1.500", "2.345")]


def edges(seed: int) -> list[Values]:
    """Rows of edge values in random combinations."""
    of = random.Random(seed)
    times = [datetime.fromisoformat(text) for text in TIMES]

    def row() -> Values:
        some = Values(
            i=of.choice(WHOLE),
            j=of.choice([*WHOLE, 3]),
            x=of.choice(BROKEN),
            y=of.choice([value for value in BROKEN if value is not None]),
            s=of.choice(TEXTS),
            t=of.choice([text for text in TEXTS if text is not None]),
            b=of.choice([True, False, None]),
            d=of.choice([*EXACT, None]),
            at=of.choice([*times, None]),
            utc=of.choice(times).replace(tzinfo=UTC),
            day=of.choice([*(each.date() for each in times), None]),
        )
        return some

    return [row() for _ in range(40)]


class Expressions:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def of(self, kind: str, depth: int = 3) -> str:
        leaves, calls = FORMS[kind]
        form = self._random.choice(calls if depth > 0 and self._random.random() < 0.8 else leaves)
        return re.sub(r"<(\w+)>", lambda found: self.of(found[1], depth - 1), form)


QUOTED = ["'" + text.replace("'", "''") + "'" for text in TEXTS if text is not None]
SAME = ["COALESCE(<{0}>, <{0}>)", "CASE WHEN <bool> THEN <{0}> ELSE <{0}> END", "IF(<bool>, <{0}>, <{0}>)"]
SAME += ["NULLIF(<{0}>, <{0}>)", "GREATEST(<{0}>, <{0}>)", "LEAST(<{0}>, <{0}>, <{0}>)"]
COMPARED = [
    f"(<{kind}> {sign} <{kind}>)"
    for kind in ("int", "double", "text", "time", "exact")
    for sign in ("=", "<>", "<", ">=")
]
PATTERNS = [r"\d+", r"^\w", r"\s.", "(?i)[a-b]+$", r"\W\b", r"\{0\}", "''", r"\$1", r"\\"]
LIKES = ["a%", "%", "_%_", "%a%b%", r"%\_%", "", "%{0}%", "%''%", r"%\\%", "%$1%", "a_c", "%s%s"]


FORMS: dict[str, tuple[list[str], list[str]]] = {}
for part in data("grammar.txt").split("\n\n"):
    # A kind with its leaves, then its calls.
    kind, leaves, forms = re.split(": |\n", part, maxsplit=2)
    FORMS[kind] = (leaves.split("; "), re.split(r";\s+", forms.strip()))
    FORMS[kind][1].extend(each.format(kind) for each in SAME[: 3 if kind == "bool" else None])
FORMS["text"][0].extend(QUOTED)
FORMS["text"][1].extend(f"REGEXP_EXTRACT(<text>, '{pattern}')" for pattern in PATTERNS)
FORMS["bool"][1].extend([*COMPARED, *(f"(<text> LIKE '{pattern}')" for pattern in LIKES)])


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow(reason="Spark compiles each random expression")
def test_random_expressions_have_the_same_values_in_spark(spark_session: SparkSession, seed: int) -> None:
    made = Expressions(seed)
    texts = [made.of(kind) for _ in range(12) for kind in FORMS]
    InSpark(spark_session, edges(seed)).check(texts)


# -- texts of an attacker ---------------------------------------------------------------------------------------------

HOSTILE = ["{", "{0}", "}", "%s", "\\", "\\'", "'", "\n", "\x00", "$1", "${env:HOME}", "`", "') OR true --", "\\u0027"]
OF_TEXTS = data("of_texts.txt")


def takes_texts(accepts: Callable[[Sequence[SqlType]], object]) -> bool:
    """Returns whether a function accepts arguments of which one is a text. Units of time are words of a statement."""
    kinds = (STRING, BIGINT, BOOLEAN)
    return any(accepts(types) for n in range(1, 5) for types in product(kinds, repeat=n) if STRING in types)


@pytest.mark.long(reason="analyses hundreds of expressions")
def test_each_function_that_takes_texts_is_tested_with_those_of_an_attacker() -> None:
    def by_types(function: Function) -> Callable[[Sequence[SqlType]], object]:
        def accepts(types: Sequence[SqlType]) -> object:
            with suppress(IndexError, ValueError):
                return function.result(types)
            return None

        return accepts

    def by_name(name: str) -> Callable[[Sequence[SqlType]], object]:
        values: dict[SqlType, Value] = {STRING: "x", BIGINT: 1, BOOLEAN: True}
        return lambda types: isinstance(resolve_call(name, [Constant(values[each], each) for each in types]), Call)

    tested = {name for text in hostile_texts() for name in functions_of(analysed(text))}
    assert {name for name, function in FUNCTIONS.items() if takes_texts(by_types(function))} <= tested
    names = {name for name in {*FUNCTIONS, *_SPECIAL} if takes_texts(by_name(name))}
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"\b{name}\(", OF_TEXTS)] == []
    casts = {of for name, of in CONVERSIONS if name == "string"}
    assert [of for of in casts if not re.search(rf"CAST\(<> AS {of}\b", OF_TEXTS, re.IGNORECASE)] == []


def hostile_texts() -> Iterator[str]:
    for text in HOSTILE:
        quoted = text.replace("'", "''")
        for form in OF_TEXTS.splitlines():
            # A backslash is the escape character of LIKE.
            inner = quoted.replace("\\", "\\\\") if "LIKE '{}'" in form or "LIKE '%" in form else quoted
            if "'''{}" in form:
                inner = text.replace("'", "''''")
            yield form.strip().replace("<>", f"'{quoted}'").replace("{}", inner)


@pytest.mark.spark
@pytest.mark.slow(reason="Spark compiles each hostile text")
def test_texts_are_never_read_as_spark_sql(spark_session: SparkSession) -> None:
    InSpark(spark_session, ROWS[:2]).check([*hostile_texts()])


def test_texts_are_constants_of_the_values_that_a_statement_gives() -> None:
    for text in HOSTILE:
        quoted = text.replace("'", "''")
        assert in_python(analysed(f"COALESCE(NULLIF('a', 'a'), '{quoted}')"), ROWS[0]) == text
        assert in_python(analysed(f"REGEXP_EXTRACT('x{quoted}y', '\\Q{quoted}\\E')"), ROWS[0]) == text


def test_nested_functions_have_texts_in_proportion_to_their_depth() -> None:
    def length(depth: int) -> int:
        return len(spark_sql(analysed("SUBSTRING(" * depth + "s" + ", 2, j)" * depth)))

    assert length(24) < 3 * length(12)
    # A binding computes its arguments, which CASE must not do before its conditions.
    whens = "WHEN i = 0 THEN 1 / i " * 9
    assert "transform" not in spark_sql(analysed(f"CASE {whens} ELSE 1 / (i + 1) + {'j + ' * 40} 1 END"))
    times = "CEIL(" * 12 + "at" + " TO HOUR)" * 12
    assert len(spark_sql(analysed(f"TIMESTAMPDIFF(DAY, {times}, {times})"))) < 20_000


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (re.compile(like_pattern("%a%a%a%a%a%a%b")).search, "a" * 20_000),
        (re.compile(like_pattern("%_a_a_a%b_")).search, "a" * 20_000),
        (java_pattern("^(a+)+$").extractor(0), "a" * 5_000 + "!"),
        (java_pattern("(a|aa|a?b)+c").extractor(0), "a" * 5_000),
        (java_pattern(r"(\w+\s?)+!").extractor(0), "a " * 2_500),
        (java_pattern(".*a.*a.*a.*b").extractor(0), "a" * 5_000),
    ],
)
def test_patterns_take_a_time_linear_in_the_text(found: Callable[[str], object], text: str) -> None:
    begin = time.process_time()
    assert found(text) is None
    assert time.process_time() - begin < 3


REFUSED_PATTERNS = [
    r"(?u)a", r"\G", r"\R", r"\X", r"\p{L}", "[a&&b]", "[a[b]]", "a**", "{0}", "(a", "a)", r"\2(a)", r"\q",
]  # fmt: skip
REFUSED_PATTERNS += ["(a?)*", "(?!(a))b", r"(?i)(a)\1", "(?<=a+)b", "[b-a]", "(?<n>a)(?<n>b)", "a{2,1}", r"[\d-z]", "("]
ATOMS = r"a b A x 1 _ - \d \w \s \D \W \S . ^ $ \A \z \Z [a-c] [^a] [\d_] [\W] []a] [a-] [A-z] \. \x41 \u00e4 ä".split()
ATOMS += [
    r"\p{Alpha}", r"\P{Alpha}", r"\h", r"\v", r"\t", r"\n", "😀", "[a😀]", r"\Qa.b\E", r"\1", r"\011", r"\cA", " ",
]  # fmt: skip
OPENED = ["(", "(", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?s:", "(?m:", "(?i)("]
REPEATED = ["*", "+", "?", "*?", "+?", "??", "*+", "++", "{2}", "{1,2}", "{0,}", "{1,2}?"]
LETTERS = [*"abABx1_ -äéÄ😀\n\r\x85\u2028\t.!\x01٣\u017f", "\r\n", "\u212a"]


def random_pattern(of: random.Random, depth: int) -> str:
    made = ""
    for _ in range(of.randint(1, 3)):
        if depth and of.random() < 0.25:
            inner = random_pattern(of, depth - 1)
            inner += f"|{random_pattern(of, depth - 1)}" if of.random() < 0.4 else ""
            made += f"{of.choice(OPENED)}{inner})"
        else:
            made += of.choice(ATOMS)
        made += of.choice(REPEATED) if of.random() < 0.35 else ""
    return made


@pytest.mark.parametrize("text", REFUSED_PATTERNS)
def test_patterns_that_java_and_python_do_not_share_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        java_pattern(text)
    with pytest.raises(JobDefinitionError):
        analysed(f"REGEXP_EXTRACT(s, '{text}')")


@pytest.mark.spark
def test_regular_expressions_find_in_python_and_in_re2_what_java_finds(spark_session: SparkSession) -> None:
    java, of, tried = spark_session._jvm.java.util.regex.Pattern, random.Random(1), 0  # type: ignore[union-attr]
    while tried < 200:
        text = of.choice(["", "", "", "(?i)", "(?s)", "(?m)", "(?x)"]) + random_pattern(of, 2)
        try:
            pattern = java_pattern(text)
        except ValueError:
            continue
        tried += 1
        given, own = java.compile(text), java.compile(pattern.text)
        for _ in range(3):
            value, group = "".join(of.choices(LETTERS, k=of.randint(0, 6))), of.randint(0, pattern.groups)
            matchers = [each.matcher(value) for each in (given, own)]
            found = [each.group(group) if each.find() else None for each in matchers]
            found += [p.extractor(group)(value) for p in (pattern, replace(pattern, is_risky=True))]
            assert found == found[:1] * 4, (text, value, group)


@pytest.mark.parametrize("text", ["a!b", "a!"])
def test_an_escape_character_of_like_precedes_a_wildcard_or_itself(text: str) -> None:
    with pytest.raises(ValueError, match="escape"):
        normal_like(text, "!")


def test_each_function_of_the_table_is_in_a_test() -> None:
    tested = {name for text in [*EXPRESSIONS, *(text for text, _ in FLINK)] for name in functions_of(analysed(text))}
    assert set(FUNCTIONS) <= tested
