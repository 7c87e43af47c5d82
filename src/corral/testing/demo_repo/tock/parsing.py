"""From text to seconds."""

from __future__ import annotations

import re

from tock.units import SECONDS, SYMBOL_OF

_TERM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*,?")
_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{2})(\.\d+)?")
_ISO = re.compile(
    r"P(?:(?P<w>\d+(?:\.\d+)?)W)?(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)


class DurationError(ValueError):
    """The text is no length of time; the message names the part that could not be read."""


def parse(text: str) -> float:
    """The length of time in seconds. A leading minus makes it negative. Raises DurationError."""
    body = text.strip()
    sign = 1.0
    if body.startswith(("-", "+")):
        sign = -1.0 if body[0] == "-" else 1.0
        body = body[1:].strip()
    if not body:
        raise DurationError("an empty text is no length of time")
    if body.startswith("P"):
        return sign * parse_iso(body)
    if ":" in body:
        return sign * parse_clock(body)
    return sign * parse_terms(body.lower())


def parse_terms(text: str) -> float:
    """Terms such as `1h 30m`, each unit at most once and larger units first."""
    total, at, before = 0.0, 0, None
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise DurationError(f"cannot read {text[at:]!r}")
        symbol = SYMBOL_OF.get(term[2])
        if symbol is None:
            raise DurationError(f"unknown unit {term[2]!r}")
        size = SECONDS[symbol]
        if before is not None and size >= before:
            raise DurationError(f"{term[0].strip()!r} is out of order")
        total, at, before = total + float(term[1]) * size, term.end(), size
    return total


def parse_clock(text: str) -> float:
    """A clock time: `minutes:seconds` or `hours:minutes:seconds`."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise DurationError(f"cannot read {text!r} as a clock time")
    hours, minutes, seconds = int(found[1] or 0), int(found[2]), int(found[3])
    if seconds > 59 or (found[1] is not None and minutes > 59):
        raise DurationError(f"{text!r} has more than 59 minutes or seconds")
    return hours * 3600 + minutes * 60 + seconds + float(found[4] or 0)


def parse_iso(text: str) -> float:
    """An ISO 8601 duration in weeks, days, hours, minutes and seconds."""
    found = _ISO.fullmatch(text)
    if found is None or not any(found.groupdict().values()) or text.endswith("T"):
        raise DurationError(f"cannot read {text!r} as an ISO 8601 duration")
    return sum(float(value) * SECONDS[symbol] for symbol, value in found.groupdict().items() if value)
