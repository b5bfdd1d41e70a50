"""The matches of a pattern by definition: all sequences of rows that keep its rules, without an automaton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stateflow import AfterMatchSkipStrategy, MatchedRows, Pattern

Accepts = Callable[["Numbered", "Path"], bool]
"""Whether a row is accepted after those that are matched."""
Path = tuple[tuple[int, "Numbered"], ...]
"""The number of its stage, and each row."""


@dataclass(frozen=True)
class Numbered:
    """A row of a key: its position in the order of time, and its time."""

    position: int
    at: int
    name: str
    price: float


@dataclass(frozen=True)
class Rule:
    """A stage.

    Attributes:
        follows: ``next``, ``followed_by``, ``followed_by_any``, ``not_next`` or ``not_followed_by``.
        inner: ``consecutive``, ``allow_combinations``, or empty for relaxed.
        rises: whether the price of a row is at least that of the matched row before it.
    """

    follows: str
    names: str
    least: int = 1
    most: int | None = 1
    optional: bool = False
    inner: str = ""
    greedy: bool = False
    rises: bool = False

    @property
    def is_single(self) -> bool:
        return self.most == 1

    @property
    def is_negative(self) -> bool:
        return self.follows.startswith("not")

    @property
    def plain(self) -> Rule:
        """The stage for one row."""
        return replace(self, least=1, most=1, optional=False, inner="", greedy=False)

    def declarable(self, before: Rule | None) -> Rule:
        """The stage without what cannot be declared after another one."""
        made = self
        if made.is_single:
            made = replace(made, least=1, inner="", greedy=False)
        if made.most is not None and made.least > made.most:
            made = replace(made, least=made.most)
        if made.inner == "allow_combinations":
            made = replace(made, greedy=False)
        return replace(made, optional=False) if before is not None and before.greedy else made

    def accepts(self, row: Numbered, path: Path) -> bool:
        return row.name in self.names and not (self.rises and path and path[-1][1].price > row.price)

    def declared(self, pattern: Pattern | None, name: str, skip: AfterMatchSkipStrategy) -> Pattern:
        condition = self._rising if self.rises else (lambda row, names=self.names: row.name in names)
        if pattern is None:
            made = Pattern.begin(name, condition, skip=skip)
        else:
            made = getattr(pattern, self.follows)(name, condition)
        if not self.is_single:
            made = made.times_or_more(self.least) if self.most is None else made.times(self.least, self.most)
            made = getattr(made, self.inner)() if self.inner else made
        made = made.greedy() if self.greedy else made
        return made.optional() if self.optional else made

    def _rising(self, row: Numbered, matched: MatchedRows[Numbered]) -> bool:
        last = [each for number in range(9) if (each := matched.last(f"s{number}")) is not None]
        newest = max(last, key=lambda each: (each.at, each.number), default=None)  # type: ignore[attr-defined]
        return row.name in self.names and not (newest is not None and newest.price > row.price)


@dataclass(frozen=True)
class Search:
    rules: tuple[Rule, ...]
    rows: tuple[Numbered, ...]
    within: int | None

    def matches(self) -> list[Path]:
        return [path for path in self._from(0, ()) if path and not self._is_stopped(path)]

    def _is_stopped(self, path: Path) -> bool:
        """Whether a row must not be there: only the last one of a match may be, as in Flink's `NFA.doProcess`."""
        befores = [(self.rules[number - 1], at) for at, (number, _) in enumerate(path[:-1]) if number]
        return any(
            before.follows == "not_followed_by" and before.accepts(path[at][1], path[:at]) for before, at in befores
        )

    def _from(self, number: int, path: Path) -> Iterator[Path]:
        if number == len(self.rules):
            yield path
            return
        rule = self.rules[number]
        if rule.is_negative:
            yield from self._from(number + 1, path)
            return
        if rule.optional:
            yield from self._from(number + 1, path)
        yield from self._repeat(number, path, 0)

    def _repeat(self, number: int, path: Path, count: int) -> Iterator[Path]:
        rule = self.rules[number]
        for row in self._next_rows(number, path, count):
            longer = (*path, (number, row))
            if count + 1 >= rule.least:
                yield from self._from(number + 1, longer)
            if rule.most is None or count + 1 < rule.most:
                yield from self._repeat(number, longer, count + 1)

    def _next_rows(self, number: int, path: Path, count: int) -> Iterator[Numbered]:
        rule = self.rules[number]
        before = path[-1][1].position if path else -1
        for row in self.rows[before + 1 :]:
            if path and self.within is not None and row.at - path[0][1].at >= self.within:
                return
            between = self.rows[before + 1 : row.position] if path else ()
            if rule.accepts(row, path) and self._follows(number, path, count, between, row):
                yield row

    def _follows(self, number: int, path: Path, count: int, between: tuple[Numbered, ...], row: Numbered) -> bool:
        rule = self.rules[number]
        if path:
            first = {"next": "consecutive", "followed_by_any": "allow_combinations"}.get(rule.follows, "")
            mode = rule.inner if count else first
            if mode == "consecutive" and between:
                return False
            if mode == "" and any(rule.accepts(each, path) for each in between):
                return False
        if count or not number:
            return True
        previous, until_row = self.rules[number - 1], (*between, row)
        if previous.follows == "not_followed_by":
            return not any(previous.accepts(each, path) for each in between)
        if previous.follows == "not_next":
            return not previous.accepts(until_row[0], path)
        if previous.greedy and previous.least != previous.most:
            return not any(previous.accepts(each, path) for each in until_row)
        return True


def kept(paths: list[Path], skip: AfterMatchSkipStrategy) -> list[Path]:
    """The matches that a strategy leaves."""
    found: list[Path] = []
    first_kept = -1
    for path in sorted(paths, key=lambda path: (path[0][1].position, path[-1][1].position)):
        first = path[0][1].position
        if first < first_kept:
            continue
        found.append(path)
        of_stage = [row.position for number, row in path if f"s{number}" == skip.stage]
        first_kept = {
            "no skip": -1, "next row": first + 1, "past last row": path[-1][1].position + 1,
            "first": of_stage[0] if of_stage else first, "last": of_stage[-1] if of_stage else first,
        }[skip.to]  # fmt: skip
    return found
