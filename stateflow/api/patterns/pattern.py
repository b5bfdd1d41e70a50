"""The declaration of a pattern."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from stateflow.api.patterns.conditions import ALWAYS, AllOf, AnyOf, Condition, FunctionCondition, Predicate
from stateflow.api.patterns.skip import AfterMatchSkipStrategy
from stateflow.api.windows.window import positive_ms
from stateflow.errors import JobDefinitionError


class Contiguity(StrEnum):
    """Which rows may be between the row of a stage and the row before it."""

    NEXT = "next"
    """None."""
    FOLLOWED_BY = "followed by"
    """Rows that the stage does not accept."""
    FOLLOWED_BY_ANY = "followed by any"
    """Any rows: also rows that the stage accepts, which are then matched by other matches."""
    NOT_NEXT = "not next"
    NOT_FOLLOWED_BY = "not followed by"

    @property
    def is_negative(self) -> bool:
        """Whether the stage refuses rows in place of matching them."""
        return self in (Contiguity.NOT_NEXT, Contiguity.NOT_FOLLOWED_BY)


@dataclass(frozen=True)
class Stage:
    """A stage of a pattern.

    Attributes:
        name: unique within the pattern.
        contiguity: how its first row follows the stage before.
        condition: which rows it accepts.
        least, most: how many rows it matches; `most` is None for no bound.
        is_optional: whether it may match no row.
        inner: how its further rows follow each other.
        is_greedy: whether a row that the stage accepts is never one of the next stage.
        until: a row for which this holds ends the stage; None for no such row.
    """

    name: str
    contiguity: Contiguity
    condition: Condition = ALWAYS
    least: int = 1
    most: int | None = 1
    is_optional: bool = False
    inner: Contiguity = Contiguity.FOLLOWED_BY
    is_greedy: bool = False
    until: Condition | None = None

    @property
    def is_single(self) -> bool:
        """Whether it matches one row at most."""
        return self.most == 1

    def __str__(self) -> str:
        """The stage as text, without its condition. Stored with partial matches, so part of the stored format."""
        parts = [self.contiguity, self.name]
        if not self.is_single:
            parts += [f"{{{self.least},{'' if self.most is None else self.most}}}", f"({self.inner})"]
        parts += [word for word, given in self._options.items() if given]
        return " ".join(parts)

    @property
    def _options(self) -> dict[str, bool]:
        return {"optional": self.is_optional, "greedy": self.is_greedy, "until": self.until is not None}


NO_SKIP = AfterMatchSkipStrategy.no_skip()


@dataclass(frozen=True)
class Pattern:
    """A sequence of stages that rows of a key match, one after another, in the order of event time.

    `begin` declares the first stage. `next`, `followed_by` and `followed_by_any` add a stage; the methods after them
    change that stage. Each method returns a new pattern. Names and rules are as in Flink's CEP library.

    A condition is a function of a row, or of a row and the `MatchedRows` before it.

    Attributes:
        stages: the stages in their order.
        skip: what is discarded after a match.
        within_ms: all rows of a match are less than this many milliseconds after its first one; None for no limit.
    """

    stages: tuple[Stage, ...]
    skip: AfterMatchSkipStrategy = NO_SKIP
    within_ms: int | None = None

    @classmethod
    def begin(cls, name: str, condition: Predicate | None = None, *, skip: AfterMatchSkipStrategy = NO_SKIP) -> Pattern:
        """Returns a pattern with its first stage.

        Args:
            name: of the stage; unique within the pattern.
            condition: as for `where`; by default, the stage accepts each row.
            skip: what is discarded after a match.

        Raises:
            JobDefinitionError: an argument is malformed.
        """
        if not isinstance(skip, AfterMatchSkipStrategy):
            raise JobDefinitionError(
                "skip needs an AfterMatchSkipStrategy",
                hint="such as AfterMatchSkipStrategy.skip_past_last_row()",
                given=repr(skip)[:200],
            )
        return cls((_stage(name, Contiguity.NEXT, condition, []),), skip)

    # -- stages -------------------------------------------------------------------------------------------------------

    def next(self, name: str, condition: Predicate | None = None) -> Pattern:
        """Adds a stage whose row is the row directly after the one before. Raises JobDefinitionError."""
        return self._add(name, Contiguity.NEXT, condition)

    def followed_by(self, name: str, condition: Predicate | None = None) -> Pattern:
        """Adds a stage that matches the first row that it accepts; rows before it are ignored.

        Raises:
            JobDefinitionError: an argument is malformed.
        """
        return self._add(name, Contiguity.FOLLOWED_BY, condition)

    def followed_by_any(self, name: str, condition: Predicate | None = None) -> Pattern:
        """Adds a stage that matches each row that it accepts, each in a match of its own. Raises JobDefinitionError."""
        return self._add(name, Contiguity.FOLLOWED_BY_ANY, condition)

    def not_next(self, name: str, condition: Predicate | None = None) -> Pattern:
        """Adds a stage that the next row must not be accepted by. Raises JobDefinitionError."""
        return self._add(name, Contiguity.NOT_NEXT, condition)

    def not_followed_by(self, name: str, condition: Predicate | None = None) -> Pattern:
        """Adds a stage that no row before the next stage may be accepted by.

        As the last stage, it needs `within`: the match ends when that time has passed without such a row.

        Raises:
            JobDefinitionError: an argument is malformed.
        """
        return self._add(name, Contiguity.NOT_FOLLOWED_BY, condition)

    # -- conditions ---------------------------------------------------------------------------------------------------

    def where(self, condition: Predicate) -> Pattern:
        """Adds a condition that a row of the stage must meet, too.

        Args:
            condition: a function of the row, or of the row and the `MatchedRows` of the partial match before it.

        Raises:
            JobDefinitionError: it is not such a function.
        """
        both = FunctionCondition.of(condition, self._last.name)
        before = self._last.condition
        return self._with(replace(self._last, condition=both if before == ALWAYS else AllOf((before, both))))

    def or_where(self, condition: Predicate) -> Pattern:
        """Adds a condition that a row of the stage may meet in place of those before. Args, Raises: as `where`."""
        other, before = FunctionCondition.of(condition, self._last.name), self._last.condition
        return self._with(replace(self._last, condition=other if before == ALWAYS else AnyOf((before, other))))

    # -- how many rows ------------------------------------------------------------------------------------------------

    def times(self, least: int, most: int | None = None) -> Pattern:
        """Makes the stage match several rows: `least`, or `least` to `most`.

        Args:
            least: if it is 0, the stage is optional.
            most: by default `least`.

        Raises:
            JobDefinitionError: the numbers are invalid, or the stage has a number of rows already.
        """
        most = least if most is None else most
        if not all(isinstance(each, int) for each in (least, most)) or not 0 <= least <= most or most < 1:
            raise self._refused("a stage cannot match this many rows", "pass times(2) or times(2, 4)")
        repeated = self._repeated(max(least, 1), most)
        return repeated.optional() if least == 0 else repeated

    def times_or_more(self, least: int) -> Pattern:
        """Makes the stage match `least` rows or more. Raises JobDefinitionError, as `times`."""
        if not isinstance(least, int) or least < 1:
            raise self._refused("a stage cannot match this many rows", "pass times_or_more(2)")
        return self._repeated(least, None)

    def one_or_more(self) -> Pattern:
        """Makes the stage match one row or more. Raises JobDefinitionError, as `times`."""
        return self._repeated(1, None)

    def optional(self) -> Pattern:
        """Makes the stage optional: it may match no row.

        Raises:
            JobDefinitionError: it is a negative stage, or follows a greedy one.
        """
        self._check_positive("optional")
        if self._last.is_optional:
            raise self._refused("a stage is made optional twice", "call optional once")
        if len(self.stages) > 1 and self.stages[-2].is_greedy:
            raise self._refused(
                "an optional stage cannot follow a greedy one", "leave out greedy() of the stage before"
            )
        return self._with(replace(self._last, is_optional=True))

    def consecutive(self) -> Pattern:
        """Makes the rows of the stage follow each other directly, without others between them.

        Raises:
            JobDefinitionError: the stage matches one row at most, or allows combinations.
        """
        return self._with_inner(Contiguity.NEXT, "consecutive")

    def allow_combinations(self) -> Pattern:
        """Makes the stage match each combination of rows that it accepts, each in a match of its own.

        Raises:
            JobDefinitionError: the stage matches one row at most, or is consecutive.
        """
        return self._with_inner(Contiguity.FOLLOWED_BY_ANY, "allow_combinations")

    def greedy(self) -> Pattern:
        """Makes the stage match as many rows as possible: a row that it accepts is not a row of the next stage.

        Raises:
            JobDefinitionError: the stage matches one row at most, or allows combinations.
        """
        self._check_positive("greedy")
        if self._last.is_single or self._last.inner is Contiguity.FOLLOWED_BY_ANY:
            raise self._refused(
                "a greedy stage matches several rows, and not their combinations", "call one_or_more() or times() first"
            )
        return self._with(replace(self._last, is_greedy=True))

    def until(self, condition: Predicate) -> Pattern:
        """Ends the stage at a row for which a condition holds; that row does not belong to it.

        Args:
            condition: as for `where`.

        Raises:
            JobDefinitionError: the number of rows of the stage has a bound, or there is such a condition already.
        """
        if self._last.most is not None or self._last.until is not None:
            raise self._refused(
                "until is for one stage with any number of rows, once", "call one_or_more() or times_or_more() first"
            )
        return self._with(replace(self._last, until=FunctionCondition.of(condition, self._last.name)))

    def within(self, duration: timedelta) -> Pattern:
        """Limits the time from the first row of a match to each other row: it is less than `duration`.

        Partial matches are removed when the watermark shows that they cannot be completed in time. Without a limit,
        they are kept until they match.

        Raises:
            JobDefinitionError: it is not a positive timedelta.
        """
        limit = positive_ms("the time limit of a pattern", duration)
        return replace(self, within_ms=limit if self.within_ms is None else min(limit, self.within_ms))

    # -- for the operator ---------------------------------------------------------------------------------------------

    @property
    def structure(self) -> str:
        """The stages as text. Partial matches can be continued by a pattern with the same text."""
        return ", ".join(str(stage) for stage in self.stages)

    def check_whole(self) -> None:
        """Raises JobDefinitionError if the pattern cannot be matched as a whole."""
        if self._last.contiguity is Contiguity.NOT_FOLLOWED_BY and self.within_ms is None:
            raise self._refused(
                "a pattern cannot end with not_followed_by without a time limit", "add a stage, or within(…)"
            )
        if self.skip.stage and self.skip.stage not in self._positive_names:
            raise JobDefinitionError(
                "a pattern cannot skip to a stage that it does not have",
                hint="pass the name of a stage that matches rows",
                stage=self.skip.stage,
                stages=self._positive_names,
            )

    @property
    def _positive_names(self) -> list[str]:
        return [stage.name for stage in self.stages if not stage.contiguity.is_negative]

    @property
    def _last(self) -> Stage:
        return self.stages[-1]

    def _with(self, stage: Stage) -> Pattern:
        return replace(self, stages=(*self.stages[:-1], stage))

    def _add(self, name: str, contiguity: Contiguity, condition: Predicate | None) -> Pattern:
        stage = _stage(name, contiguity, condition, [stage.name for stage in self.stages])
        if contiguity.is_negative and self._last.is_optional:
            raise self._refused(
                "a negative stage cannot follow an optional one", "declare two patterns: with and without the stage"
            )
        return replace(self, stages=(*self.stages, stage))

    def _repeated(self, least: int, most: int | None) -> Pattern:
        self._check_positive("times")
        if (self._last.least, self._last.most) != (1, 1):
            raise self._refused("a stage has two numbers of rows", "call times or one_or_more once")
        return self._with(replace(self._last, least=least, most=most))

    def _with_inner(self, inner: Contiguity, called: str) -> Pattern:
        last = self._last
        fits = inner is Contiguity.NEXT or not last.is_greedy
        if last.is_single or last.inner is not Contiguity.FOLLOWED_BY or not fits:
            raise self._refused(f"{called} is for a stage of several rows, once", "call one_or_more() or times() first")
        return self._with(replace(last, inner=inner))

    def _check_positive(self, called: str) -> None:
        if self._last.contiguity.is_negative:
            raise self._refused(f"{called} cannot be used with a negative stage", "leave it out")

    def _refused(self, message: str, hint: str) -> JobDefinitionError:
        return JobDefinitionError(message, hint=hint, stage=self._last.name)


def _stage(name: str, contiguity: Contiguity, condition: Predicate | None, others: list[str]) -> Stage:
    if not isinstance(name, str) or not name or name in others:
        raise JobDefinitionError(
            "a stage of a pattern needs a name of its own",
            hint="pass a text that no other stage has",
            given=repr(name)[:200],
            stages=others,
        )
    accepts: Condition = ALWAYS if condition is None else FunctionCondition.of(condition, name)
    return Stage(name, contiguity, accepts)
