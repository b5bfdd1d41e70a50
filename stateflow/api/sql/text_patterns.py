"""Patterns of texts: LIKE, and Java's regular expressions, as texts with the same meaning in Java and in Python."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

END = "(?!(?s:.))"
"""A regular expression of the end of a text, which Python and Java read alike."""
_ANY, _TERMINATORS = "(?s:.)", "\x85\u2028\u2029"
_DIGIT, _WORD, _SPACE = "0-9", "0-9A-Z\\x5fa-z", "\\x09-\\x0d\\x20"
_BLANK = "\\x09\\x20\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
_VERTICAL = f"\\x0a-\\x0d{_TERMINATORS}"
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE, "h": _BLANK, "v": _VERTICAL}
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": "\\x00-\\x7f",
    "Alpha": "A-Za-z",
    "Digit": _DIGIT,
    "Alnum": "0-9A-Za-z",
    "Punct": "\\x21-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7e",
    "Graph": "\\x21-\\x7e",
    "Print": "\\x20-\\x7e",
    "Blank": "\\x09\\x20",
    "Cntrl": "\\x00-\\x1f\\x7f",
    "XDigit": "0-9A-Fa-f",
    "Space": _SPACE,
}
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_BOUNDARY = f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))"
_LINE_END = f"(?:(?=\\x0d\\x0a{END})|(?<!\\x0d)(?=\\x0a{END})|(?=[\\x0d{_TERMINATORS}]{END})|{END})"
_ANY_LINE_END = f"(?:(?<!\\x0d)(?=\\x0a)|(?=[\\x0d{_TERMINATORS}])|{END})"
_ANY_LINE_START = f"(?:(?={_ANY})(?:\\A|(?<=[\\x0a{_TERMINATORS}])|(?<=\\x0d)(?!\\x0a)))"
_CLOSED = f")(?:\\x0d\\x0a|[\\x0a\\x0d{_TERMINATORS}])?\\z(?:"
"""The end of a pattern, after its match: RE2 cannot look ahead."""
_QUANTIFIER = re.compile(r"[*+?]|\{(\d{1,9})(,(\d{1,9})?)?\}")
_LONG_TEXT = 256
"""Characters, from which on a pattern that Arrow knows is left to Arrow: Python may take the square of their number."""
_UNBOUNDED = 1 << 31


# -- LIKE -------------------------------------------------------------------------------------------------------------


def normal_like(pattern: str, escape: str) -> str:
    """Returns a pattern of LIKE in which a backslash precedes a character that is not a wildcard.

    Raises:
        ValueError: the escape character is not followed by a wildcard or by itself.
    """
    made, letters = "", iter(pattern)
    for letter in letters:
        is_escaped = letter == escape
        literal = next(letters, "") if is_escaped else letter
        if is_escaped and literal not in ("%", "_", escape):
            raise ValueError("an escape character is followed by another character than %, _ or itself")
        made += f"\\{literal}" if literal == "\\" or (is_escaped and literal in "%_") else literal
    return made


def like_pattern(normal: str) -> str:
    """Returns the regular expression of a pattern of LIKE, which a search finds in time linear in the text.

    Each part between two ``%`` is found at its first place, and never again at a later one: no later place can help.
    """
    parts, letters = [""], iter(normal)
    for letter in letters:
        if letter == "%":
            parts.append("")
        else:
            parts[-1] += _ANY if letter == "_" else _character(next(letters) if letter == "\\" else letter)
    first, *others = parts
    if not others:
        return rf"\A{first}{END}"
    middle = "".join(f"(?>(?s:.*?){each})" for each in others[:-1] if each)
    return rf"\A{first}{middle}(?s:.*){others[-1]}{END}" if others[-1] else rf"\A{first}{middle}"


def is_simple_like(normal: str) -> bool:
    """Returns whether Spark compares a begin, an end or a part of a text for a pattern of LIKE, without a search."""
    if "_" in normal or "\\" in normal:
        return False
    return "%" not in normal.strip("%") or (normal.count("%") == 1)


# -- regular expressions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JavaPattern:
    """A regular expression of Java in a form that has the same meaning in Java and in Python.

    Attributes:
        text: without flags; classes and ends of lines are spelled out.
        linear: the same for RE2, which takes linear time; empty if RE2 does not have it.
        groups: the number of groups.
        certain: the groups that have a value whenever the pattern is found.
        is_risky: whether the time that Python takes may grow with more than the square of the text.
    """

    text: str
    linear: str
    groups: int
    certain: frozenset[int]
    is_risky: bool

    def extractor(self, group: int) -> Callable[[str], str | None]:
        """Returns a function that returns a group of the first place where a text has the pattern; None without one."""
        search = re.compile(self.text).search
        linear = f"(?P<found>{self.linear})" if self.linear and group in self.certain | {0} else ""
        if linear:
            # Arrow returns groups by name.
            names = (f"(?P<g{number}>" for number in range(1, self.groups + 1))
            linear = re.sub(r"\((?!\?)", lambda _: next(names), linear)
            linear = linear if _is_accepted(linear) else ""
        name, shortest = f"g{group}" if group else "found", 0 if self.is_risky else _LONG_TEXT

        def extract(text: str) -> str | None:
            if linear and len(text) >= shortest:
                found = pc.extract_regex(pa.array([text]), linear)[0].as_py()
                # RE2 finds $ in the middle of the last end of a line.
                if found is None or not (text.endswith("\r\n") and found["found"].endswith("\r")):
                    return None if found is None else str(found[name])
            matched = search(text)
            return None if matched is None else matched[group]

        return extract


def java_pattern(text: str) -> JavaPattern:
    """Returns a regular expression of Java in a form for both languages.

    Raises:
        ValueError: Java refuses it, or it has a construct that the languages do not share.
    """
    parsed = _Parser(text)
    found = parsed.alternatives()
    if parsed.rest:
        raise ValueError("a closing parenthesis has no opening one")
    try:
        re.compile(found.text)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(str(e)) from None
    is_risky = parsed.is_risky or parsed.unbounded > 2
    return JavaPattern(found.text, found.linear or "", parsed.groups, found.certain, is_risky)


def _is_accepted(linear: str) -> bool:
    try:
        pc.extract_regex(pa.array([""]), linear)
    except pa.ArrowInvalid:
        return False
    return True


@dataclass(frozen=True)
class _Part:
    """A part of a pattern.

    Attributes:
        linear: None if RE2 does not have it.
        certain: the groups that have a value whenever the part is found.
        varies: whether one text may be matched in several ways, or at several lengths.
        loops: whether these lengths have no limit.
        is_empty: whether it matches the empty text.
    """

    text: str
    linear: str | None
    certain: frozenset[int] = frozenset()
    varies: bool = False
    loops: bool = False
    is_empty: bool = False


def _same(text: str, *, is_empty: bool = False) -> _Part:
    return _Part(text, text, is_empty=is_empty)


_FIXED = {
    "A": _same(r"\A", is_empty=True),
    "z": _Part(END, r"\z", is_empty=True),
    "Z": _Part(_LINE_END, None, is_empty=True),
    "b": _Part(_BOUNDARY, r"\b", is_empty=True),
    "B": _Part(f"(?!{_BOUNDARY})", r"\B", is_empty=True),
}


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._flags: frozenset[str] = frozenset()
        self._names: dict[str, int] = {}
        self._depth = 0
        self.groups = 0
        self.unbounded = 0
        self.is_risky = False

    @property
    def rest(self) -> str:
        """The characters that are not read yet."""
        return self._text[self._at :]

    def _take(self, wanted: str) -> bool:
        """Reads a text if it follows."""
        found = self._text.startswith(wanted, self._at)
        self._at += len(wanted) if found else 0
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise ValueError("the pattern ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str) -> str:
        at = self._text.find(end, self._at)
        if at < 0:
            raise ValueError(f"{end} is missing")
        found, self._at = self._text[self._at : at], at + len(end)
        return found

    # -- sequences ----------------------------------------------------------------------------------------------------

    def alternatives(self) -> _Part:
        """Returns what is read up to the end of the group; flags that are set in it end with it."""
        flags, choices = self._flags, [self._sequence()]
        while self._take("|"):
            choices.append(self._sequence())
        self._flags = flags
        if len(choices) == 1:
            return choices[0]
        has_all = all(each.linear is not None and not each.linear.endswith(_CLOSED) for each in choices)
        return _Part(
            "|".join(each.text for each in choices),
            "|".join(str(each.linear) for each in choices) if has_all else None,
            varies=True,
            loops=any(each.loops for each in choices),
            is_empty=any(each.is_empty for each in choices),
        )

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._skipped() and self._text[self._at] not in "|)":
            found = list(self._item())
            parts += [*found[:-1], *map(self._repeated, found[-1:])]
        linear = None if any(each.linear is None for each in parts) else "".join(str(each.linear) for each in parts)
        return _Part(
            "".join(each.text for each in parts),
            linear,
            frozenset[int]().union(*(each.certain for each in parts)),
            any(each.varies for each in parts),
            any(each.loops for each in parts),
            all(each.is_empty for each in parts),
        )

    def _skipped(self) -> bool:
        """Reads white space and comments with the flag x; returns whether there is more of the pattern."""
        while "x" in self._flags and self._at < len(self._text):
            letter = self._text[self._at]
            if letter == "#":
                self._until("\n") if "\n" in self.rest else self._until(self.rest)
            elif letter in " \t\n\v\f\r":
                self._at += 1
            else:
                break
        return self._at < len(self._text)

    def _item(self) -> Iterator[_Part]:
        letter = self._next()
        if letter == "(":
            yield from self._group()
        elif letter == "[":
            made = f"[{self._set()}]"
            yield _same(made)
        elif letter == ".":
            yield _same(_ANY if "s" in self._flags else f"[^\\x0a\\x0d{_TERMINATORS}]")
        elif letter == "^":
            yield _Part(_ANY_LINE_START, None, is_empty=True) if "m" in self._flags else _FIXED["A"]
        elif letter == "$":
            yield _Part(_ANY_LINE_END, None, is_empty=True) if "m" in self._flags else self._end()
        elif letter == "\\":
            yield from self._escaped()
        elif letter in "*+?{":
            raise ValueError(f"{letter} repeats nothing")
        else:
            yield self._literal(letter)

    def _end(self) -> _Part:
        if self.rest or self._depth:
            return _FIXED["Z"]
        # What follows the match is in no group of the caller.
        return _Part(_LINE_END, _CLOSED, is_empty=True)

    def _literal(self, letter: str) -> _Part:
        if "i" in self._flags and letter in string.ascii_letters:
            return _same(f"[{letter.upper()}{letter.lower()}]")
        return _same(_character(letter))

    def _repeated(self, part: _Part) -> _Part:
        self._skipped()
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return part
        self._at = found.end()
        sign = found[0]
        low = 1 if sign == "+" else int(found[1] or 0)
        high = 1 if sign == "?" else _UNBOUNDED if found[1] is None or found[2] == "," else int(found[3] or low)
        kind = "?" if self._take("?") else "+" if self._take("+") else ""
        if high < low or _QUANTIFIER.match(self._text, self._at) or self._text.startswith("{", self._at):
            raise ValueError("a repetition is repeated, or has no valid numbers")
        if part.is_empty and high > 1:
            raise ValueError("a part that may be empty is repeated, which Java and Python do differently")
        loops = high == _UNBOUNDED and kind != "+"
        self.is_risky |= (loops and part.varies) or (high > 1 and part.loops)
        self.unbounded += loops
        linear = None if kind == "+" or part.linear is None else f"{part.linear}{sign}{kind}"
        certain = part.certain if low else frozenset[int]()
        varies = part.varies or (low != high and kind != "+")
        is_empty = part.is_empty or low == 0
        return _Part(f"{part.text}{sign}{kind}", linear, certain, varies, part.loops or loops, is_empty)

    # -- groups -------------------------------------------------------------------------------------------------------

    def _group(self) -> Iterator[_Part]:
        if not self._take("?"):
            yield self._captured()
            return
        for opened in ("<=", "<!", "=", "!", ">"):
            if self._take(opened):
                before, inner = self.groups, self._inner()
                if "!" in opened and self.groups > before:
                    raise ValueError("a group in a part that must not match, which Java and Python do differently")
                is_empty = inner.is_empty if opened == ">" else True
                yield _Part(f"(?{opened}{inner.text})", None, is_empty=is_empty)
                return
        if self._take("<"):
            name = self._until(">")
            if not re.fullmatch("[A-Za-z][A-Za-z0-9]*", name) or name in self._names:
                raise ValueError("the name of a group is not valid, or is used twice")
            self._names[name] = self.groups + 1
            yield self._captured()
            return
        found = re.compile(r"([ismx]*)(?:-([ismx]+))?([:)])").match(self._text, self._at)
        if found is None:
            raise ValueError("a group has flags other than i, m, s and x, or an unknown form")
        self._at = found.end()
        flags = (self._flags | set(found[1])) - set(found[2] or "")
        if found[3] == ")":
            self._flags = flags
            return
        outer, self._flags = self._flags, flags
        inner = self._inner()
        self._flags = outer
        linear = None if inner.linear is None else f"(?:{inner.linear})"
        yield replace(inner, text=f"(?:{inner.text})", linear=linear)

    def _captured(self) -> _Part:
        self.groups += 1
        number, inner = self.groups, self._inner()
        linear = None if inner.linear is None else f"({inner.linear})"
        return replace(inner, text=f"({inner.text})", linear=linear, certain=inner.certain | {number})

    def _inner(self) -> _Part:
        self._depth += 1
        if self._depth > 100:
            raise ValueError("groups are nested too deeply")
        found = self.alternatives()
        self._depth -= 1
        if not self._take(")"):
            raise ValueError("a group is not closed")
        return found

    # -- escapes and sets ---------------------------------------------------------------------------------------------

    def _escaped(self) -> Iterator[_Part]:
        letter = self._next()
        if letter in _FIXED:
            yield _FIXED[letter]
        elif letter == "Q":
            quoted = self._until("\\E") if "\\E" in self.rest else self._until_end()
            yield from map(self._literal, quoted[:-1])
            if quoted:
                yield self._literal(quoted[-1])
        elif letter == "k" and self._take("<"):
            yield self._reference(self._names.get(self._until(">"), 0))
        elif letter in "123456789":
            number = int(letter)
            # As in Java, a further digit belongs to the number if there is such a group.
            while self._at < len(self._text) and self._text[self._at] in string.digits:
                longer = number * 10 + int(self._text[self._at])
                if longer > self.groups:
                    break
                number, self._at = longer, self._at + 1
            yield self._reference(number)
        else:
            self._at -= 1
            members = self._class()
            yield self._literal(self._escaped_character()) if members is None else _same(f"[{members}]")

    def _until_end(self) -> str:
        found, self._at = self.rest, len(self._text)
        return found

    def _reference(self, number: int) -> _Part:
        if not 0 < number <= self.groups or "i" in self._flags:
            raise ValueError("a reference to a later group, or one that ignores case")
        return _Part(f"(?:\\{number})", None, varies=True, is_empty=True)

    def _class(self) -> str | None:
        r"""Returns the members of a class such as \d; None if the escape is a character."""
        letter = self._text[self._at : self._at + 1]
        if letter.lower() in _CLASSES and letter:
            self._at += 1
            members = _CLASSES[letter.lower()]
            return members if letter.islower() else f"^{members}"
        if letter not in ("p", "P"):
            return None
        self._at += 1
        name = self._until("}") if self._take("{") else ""
        if name not in _POSIX or ("i" in self._flags and name in ("Lower", "Upper")):
            raise ValueError(f"a class of characters is not one of {', '.join(_POSIX)}")
        return _POSIX[name] if letter == "p" else f"^{_POSIX[name]}"

    def _escaped_character(self) -> str:
        letter = self._next()
        if letter in _CHARACTERS:
            return _CHARACTERS[letter]
        if letter == "c":
            return chr(ord(self._next()) ^ 64)
        forms = {"0": r"[0-3]?[0-7]{1,2}", "x": r"[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]{1,6}\}", "u": "[0-9A-Fa-f]{4}"}
        if letter in forms:
            found = re.compile(forms[letter]).match(self._text, self._at)
            code = int(found[0].strip("{}"), 8 if letter == "0" else 16) if found else -1
            if found is None or code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise ValueError(f"\\{letter} needs the number of a character")
            self._at = found.end()
            return chr(code)
        if letter in string.ascii_letters or letter in string.digits:
            raise ValueError(f"\\{letter} is not a construct that Java and Python share")
        return letter

    def _set(self) -> str:
        members, is_negated = list[str](), self._take("^")
        while not (members and self._ends_set()):
            letter = self._next()
            if letter == "[" or (letter == "&" and self._take("&")):
                raise ValueError("a set of characters in a set, or an intersection of sets")
            if letter == "\\":
                found = self._class()
                if found is not None:
                    members.append(_complement(found) if found.startswith("^") else found)
                    if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                        raise ValueError("a range begins with a class")
                    continue
                if self._take("Q"):
                    raise ValueError("a quotation in a set")
                letter = self._escaped_character()
            members.append(self._range(letter))
        return f"{'^' if is_negated else ''}{''.join(members)}"

    def _ends_set(self) -> bool:
        while "x" in self._flags and self._at < len(self._text) and self._text[self._at] in " \t\n\v\f\r#":
            if self._text[self._at] == "#":
                raise ValueError("a comment in a set")
            self._at += 1
        if not self._text.startswith("]", self._at):
            return False
        self._at += 1
        return True

    def _range(self, first: str) -> str:
        last = first
        if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
            self._at += 1
            last = self._next()
            if last == "\\":
                if self._class() is not None:
                    raise ValueError("a range ends with a class")
                last = self._escaped_character()
            if last == "[" or last < first:
                raise ValueError("a range of characters has no valid end")
        made = _between(first, last)
        if "i" in self._flags:
            for letters, swapped in ((string.ascii_lowercase, str.upper), (string.ascii_uppercase, str.lower)):
                low, high = max(first, letters[0]), min(last, letters[-1])
                made += _between(swapped(low), swapped(high)) if low <= high else ""
        return made


def _character(letter: str) -> str:
    return letter if letter.isalnum() or ord(letter) > 127 else f"\\x{ord(letter):02x}"


def _between(first: str, last: str) -> str:
    return _character(first) if first == last else f"{_character(first)}-{_character(last)}"


def _complement(members: str) -> str:
    r"""Returns the members of a set for a negated class such as \D."""
    inside = re.compile(f"[{members.removeprefix('^')}]")
    # All classes consist of characters below this one.
    limit = 0x3001
    codes = [code for code in range(limit) if not inside.match(chr(code))]
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    ranges[-1][1] = 0xD7FF
    return "".join(_between(chr(low), chr(high)) for low, high in [*ranges, [0xE000, 0x10FFFF]])
