"""Regular expressions of JSON schemas, on foreign texts: Python's `re` holds the interpreter's lock
while it matches, and some expressions take it longer than a process lives.

The form of an expression and the length of the text bound its work. If that is small, `re` matches
it; otherwise RE2, which Arrow has: its work grows with the length only, and it does not hold the
lock. `\\d`, `\\w` and `\\s` are ASCII to it, as in ECMAScript.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.schema_registry.work import TooMuchWork, spend

PATTERN_CHARS_MAX = 10_000
PATTERNS_WORK_MAX = 5_000_000
"""What Python takes to read the expressions of a schema: 25 for each character, and the characters
up to the end of each range, such as the 40,869 of `[\u4e00-\u9fa5]`. About a second.
"""
_WORK_PER_CHARACTER = 25
_RANGE_MAX = 65_536
_RANGE_END = re.compile(r"(?=-(\\[xuUN]?|[^\\])([0-9a-fA-F]{0,8}))", re.DOTALL)
_WORK_MAX = 2_000_000
"""Steps of `re` for one match: about 50 ms."""
_CLASS_SIZE = 10
_STEPS_PER_MATCH = 200  # by which a match of many steps counts as one step of a check
_STEPS_OF_RE2 = 3
_SIZE_PER_STEP = 16  # which RE2 reads in this time
_WORK_PER_STEP = 4_000  # the size and characters that RE2 goes through in this time, at worst
_PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?<?[=!:>]|\(\?|[()|]|(?:[*+?]|\{(\d*)(,?)(\d*)\})[?+]?",
    re.DOTALL,
)
"""What of an expression decides about its work."""
_CHARACTER = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^0-9A-Za-z])(?![*+?{])", re.DOTALL)
"""One character that has to be there."""
_CLASS = re.compile(r"\[|\\[dDsSwW]")
_ANCHOR = re.compile(r"\^(?![*+?{])")
_FLAGS = re.compile(r"\(\?[^:]")
"""Such as those for white space and case, which change what characters mean."""


@dataclass(frozen=True, slots=True)
class _PatternForm:
    """The work of an expression. `power`: its steps grow at most with this power of the length of
    the text. `choices` is the product of what repetitions with a bound allow. `is_nested`: a loop
    goes over a part that can match in more than one way. `size` is that of the automaton of RE2,
    approximately. `is_anchored`: it matches at the start of the text or nowhere.
    """

    power: int
    choices: int
    is_nested: bool
    size: int
    is_anchored: bool

    def work(self, length: int) -> int:
        """The steps on a text of this many characters, at most."""
        exponential = 2 ** min(length, 64) if self.is_nested else 1
        return int(min(length + 1, 10**6) ** min(self.power, 12)) * self.choices * exponential

    def steps_of_re2(self, length: int) -> int:
        """What RE2 takes, in steps of a check."""
        reading = _STEPS_OF_RE2 + self.size // _SIZE_PER_STEP
        return reading + self.size * length // _WORK_PER_STEP


def check_pattern(pattern: str) -> None:
    """Raises ValueError for what is no regular expression of Python, or too long."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ValueError(f"a regular expression has more than {PATTERN_CHARS_MAX} characters")
    try:
        _compiled(pattern)
    except (re.error, OverflowError) as error:
        raise ValueError(f"{pattern!r:.200} is no regular expression of Python: {error}") from error


def work_to_read(pattern: str) -> int:
    """What Python takes to read an expression, at most. It walks through each range."""
    ends = sum(_end_of_range(*match.groups()) for match in _RANGE_END.finditer(pattern))
    return _WORK_PER_CHARACTER * len(pattern) + ends


def _end_of_range(start: str, digits: str) -> int:
    if start in ("\\x", "\\u", "\\U"):
        return min(int(digits or "0", 16), _RANGE_MAX)
    return _RANGE_MAX if start == "\\N" else min(ord(start[-1]), _RANGE_MAX)


@lru_cache(maxsize=4000)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def is_found(pattern: str, text: str) -> bool:
    """Whether a part of the text matches. Raises TooMuchWork if it could take too long to tell."""
    form = _form(pattern)
    work = form.work(len(text))
    steps, steps_of_re2 = work // _STEPS_PER_MATCH, form.steps_of_re2(len(text))
    if work <= _WORK_MAX and (
        steps <= steps_of_re2 or not _is_plain(text) or not _is_known_to_re2(pattern)
    ):
        spend(steps)
        compiled = _compiled(pattern)
        return (compiled.match if form.is_anchored else compiled.search)(text) is not None
    if not _is_known_to_re2(pattern):
        reason = (
            f"the pattern {pattern!r:.200} may take too long for a text of {len(text)} characters"
        )
        raise TooMuchWork(reason)
    spend(steps_of_re2)
    return _found_by_re2(pattern, text)


def _is_plain(text: str) -> bool:
    """Whether both matchers judge a text alike: `re` knows more letters and digits, and takes a
    line feed at the end for the end.
    """
    return text.isascii() and not text.endswith("\n")


@lru_cache(maxsize=1000)
def _is_known_to_re2(pattern: str) -> bool:
    try:
        _found_by_re2(pattern, "")
    except pa.ArrowInvalid:
        return False
    return True


def _found_by_re2(pattern: str, text: str) -> bool:
    readable = text.encode(errors="replace").decode()
    return bool(pc.match_substring_regex(pa.scalar(readable), pattern).as_py())


def is_quick(pattern: str) -> bool:
    """Whether Python takes a time that grows at most with the square of the length of a text."""
    form = _form(pattern)
    return form.power <= 2 and form.choices <= 100 and not form.is_nested


@lru_cache(maxsize=1000)
def _form(pattern: str) -> _PatternForm:
    choices, is_nested = 1, False
    # The loops, each with whether it can end at one place only, because it does not match what
    # has to follow.
    ends: list[bool] = []
    has_flags = _FLAGS.search(pattern) is not None
    is_anchored = _ANCHOR.match(pattern) is not None
    before: re.Match[str] | None = None
    # Whether the open groups, and the last closed one, can match in more than one way.
    groups = [False]
    closed = False
    # Of the open groups, and of what a repetition repeats.
    sizes, repeated, end = [0], 1, 0
    for part in _PART.finditer(pattern):
        text = part[0]
        sizes[-1] += part.start() - end
        repeated, end = 1 if part.start() > end else repeated, part.end()
        if text[0] == "(":
            groups.append(False)
            sizes.append(0)
        elif text == ")":
            closed = groups.pop() if len(groups) > 1 else True
            groups[-1] |= closed
            repeated = sizes.pop() if len(sizes) > 1 else sizes[0]
            sizes[-1] = min(sizes[-1] + repeated, _WORK_MAX)
            before = part
            continue
        elif text == "|":
            groups[-1] = True
            is_anchored &= len(groups) > 1
            choices = min(2 * choices, _WORK_MAX + 1)
        elif text[0] in "*+?{":
            least, comma, most = int(part[1] or 0), part[2], part[3]
            is_loop = text[0] in "*+" or (
                text[0] == "{" and ((comma and not most) or int(most or least) > 1)
            )
            is_nested |= is_loop and closed and pattern[part.start() - 1] == ")"
            if text[0] in "*+" or (comma and not most):
                ends.append(not has_flags and _has_one_end(pattern, before, part))
            elif text[0] == "?" or comma:
                choices = min(
                    choices * (2 if text[0] == "?" else int(most) - least + 1), _WORK_MAX + 1
                )
            groups[-1] |= text[0] != "{" or bool(comma)
            copies = repeated * (int(most or least) if text[0] == "{" else 1)
            sizes[-1] = min(sizes[-1] + copies, _WORK_MAX)
        else:
            repeated = _CLASS_SIZE if text[0] in "\\[" else 1
            sizes[-1] += repeated
        closed, before = False, part
    return _PatternForm(
        _power(ends) + (not is_anchored),
        choices,
        is_nested,
        sum(sizes) + len(pattern) - end,
        is_anchored,
    )


def _power(ends: list[bool]) -> int:
    """Each loop takes a step for each character, and goes on from each if it can end there."""
    if all(ends):
        return min(len(ends), 1)
    follows = ends[ends.index(False) :]
    return follows.count(False) + any(follows)


def _has_one_end(pattern: str, before: re.Match[str] | None, loop: re.Match[str]) -> bool:
    """Whether a loop over a class is followed by a character that the class does not have."""
    following = _CHARACTER.match(pattern, loop.end())
    if before is None or before.end() < loop.start() or not _CLASS.match(before[0]):
        return False
    return following is not None and re.match(before[0], following[0][-1]) is None
