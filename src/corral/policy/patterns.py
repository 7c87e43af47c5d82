"""Patterns of policy files, and the texts that they are held against. All matching is linear in the text.

Expressions are RE2's, which has no backtracking: no pattern and no input can make a match take long. A value
that is too long to be looked at is neither here nor there: `texts` says None, and the rule decides (it counts
against the call).
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, cast
from urllib.parse import urlsplit

import msgspec

LONGEST_PATTERN: Final = 2_000
"""Characters of one pattern."""
LONGEST_TEXT: Final = 262_144
"""Characters of one value of a call; more than a model writes in one answer, as a rule."""
MOST_VALUES: Final = 10_000
"""Values that one field of a rule may stand for in a call."""
WORKSPACE: Final = "/workspace"
"""Where relative paths start."""
ANYWHERE: Final = "**"
"""The field that stands for every text in the input, keys included."""


class PatternError(ValueError):
    """A pattern cannot be used; the message says why."""


class Matcher(Protocol):
    """A compiled expression."""

    def search(self, text: bytes, /) -> object | None:
        """A match anywhere in the text, or None."""
        ...


def expression(pattern: str) -> Matcher:
    """An RE2 expression, found anywhere in a text; `.` matches line breaks too. Raises `PatternError`."""
    if len(pattern) > LONGEST_PATTERN:
        raise PatternError(f"is longer than {LONGEST_PATTERN} characters")
    import re2

    engine = cast("Any", re2)
    options: Any = engine.Options()
    options.dot_nl = True
    options.log_errors = False
    options.never_capture = True
    try:
        return cast("Matcher", engine.compile(pattern.encode(), options))
    except engine.error as error:
        reason = error.args[0] if error.args else "no RE2 expression"
        said = reason.decode() if isinstance(reason, bytes) else str(reason)
        raise PatternError(
            f"is no RE2 expression: {said} (look-around and back-references do not exist)"
        ) from (None)


def glob(pattern: str, *, within_segments: bool = False) -> Matcher:
    """A glob for a whole text. `*` is any characters, `?` one; `within_segments`, neither is a `/`, and `**`
    goes across them. Raises `PatternError`.
    """
    one = "[^/]" if within_segments else "."
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**", at):
            parts.append(".*")
            at += 2
            continue
        letter = pattern[at]
        parts.append(f"{one}*" if letter == "*" else one if letter == "?" else _escaped(letter))
        at += 1
    return expression(rf"\A(?:{''.join(parts)})\z")


def _escaped(letter: str) -> str:
    return letter if letter.isalnum() or letter == "_" else f"\\x{{{ord(letter):x}}}"


Test = Literal["matches", "glob", "path", "host", "equals", "present"]


class Condition(msgspec.Struct, frozen=True):
    """What one field of a call's input must be like."""

    field: tuple[str, ...]
    """The way to the value: keys, `*` for all entries; `**` alone for every text."""
    test: Test
    negated: bool = False
    """Where the test must fail, as it does where there is no value."""
    matchers: tuple[Matcher, ...] = ()
    wanted: tuple[Any, ...] = ()

    def holds(self, given: Any, *, strict: bool) -> bool:
        """Whether the input meets it. Of several values one is enough for a `strict` rule, which stops calls;
        a rule that lets them run needs all. So it is with values too long to be looked at.
        """
        if self.test in ("equals", "present"):
            values = _values(given, self.field)
            results = None if values is None else [_same(value, self.wanted) for value in values]
        else:
            found = texts(given, self.field)
            results = None if found is None else [self._passes(text) for text in found]
        if results is None:
            return strict
        if self.test == "present":
            return bool(results) is not self.negated
        met = [passes is not self.negated for passes in results]
        return (any(met) if strict else all(met)) if met else self.negated

    def _passes(self, text: str) -> bool:
        match self.test:
            case "path":
                text = normal_path(text)
            case "host":
                text = host_of(text)
            case _:
                pass
        encoded = text.encode("utf-8", "replace")
        return any(matcher.search(encoded) is not None for matcher in self.matchers)


def normal_path(text: str) -> str:
    """A path without `.`, `..` and doubled slashes, from the workspace if relative. Links are unseen."""
    return "/" + posixpath.normpath(posixpath.join(WORKSPACE, text)).lstrip("/")


def host_of(url: str) -> str:
    """The host that a URL leads to, in lower case; empty if it is no URL that has one."""
    try:
        parts = urlsplit(url.strip())
        host = parts.hostname if parts.scheme in ("http", "https") else None
    except ValueError:
        return ""
    # Browsers and clients take a backslash for a slash; where they disagree, nothing is the host.
    return "" if host is None or "\\" in url else host.rstrip(".").lower()


def field_path(name: str) -> tuple[str, ...]:
    """The way that a field's name describes: a key, or a JSON pointer, in which `*` is every entry."""
    if not name.startswith("/"):
        return (name,)
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in name[1:].split("/"))


def texts(given: Any, field: Sequence[str]) -> list[str] | None:
    """The values of a field as texts: strings as they are, numbers and truth values as JSON, others not at
    all. None if there are too many of them, or one is too long.
    """
    values = _every(given) if tuple(field) == (ANYWHERE,) else _values(given, field)
    if values is None:
        return None
    found: list[str] = []
    for value in values:
        if isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                return None
            found.append(value)
        elif isinstance(value, bool | int | float):
            found.append(msgspec.json.encode(value).decode())
    return found


def _values(given: Any, field: Sequence[str]) -> list[Any] | None:
    values: list[Any] = [given]
    for part in field:
        values = [inner for value in values for inner in _entries(value, part)]
        if len(values) > MOST_VALUES:
            return None
    return values


def _entries(value: Any, part: str) -> Iterable[Any]:
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        if part == "*":
            return entries.values()
        return (entries[part],) if part in entries else ()
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if part == "*":
            return items
        return (items[int(part)],) if part.isascii() and part.isdecimal() and int(part) < len(items) else ()
    return ()


def _every(given: Any) -> list[Any] | None:
    """Every scalar and every key, however deep."""
    found: list[Any] = []
    left: list[Any] = [given]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, Any]", value)
            found += entries.keys()
            left += entries.values()
        elif isinstance(value, list):
            left += cast("list[Any]", value)
        else:
            found.append(value)
        if len(found) + len(left) > MOST_VALUES:
            return None
    return found


def _same(value: Any, wanted: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in wanted)
