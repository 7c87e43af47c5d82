"""Query parameters: strict about the values it knows, indifferent to names it does not (contract 2.3)."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from corral.wire.errors import InvalidRequest
from corral.wire.text import is_clean
from corral.wire.times import from_wire

COMPARISONS: Final = ("gt", "gte", "lt", "lte")


class TimeRange(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on a time; each may be absent."""

    gt: datetime | None = None
    gte: datetime | None = None
    lt: datetime | None = None
    lte: datetime | None = None

    def holds(self, moment: datetime) -> bool:
        """Whether a time lies within the bounds."""
        return (
            (self.gt is None or moment > self.gt)
            and (self.gte is None or moment >= self.gte)
            and (self.lt is None or moment < self.lt)
            and (self.lte is None or moment <= self.lte)
        )


class Query:
    """The parameters of one request. Every reader raises `InvalidRequest` with the parameter's name."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def text(self, name: str, *, longest: int = 4096) -> str | None:
        """A single text, or None where it is absent or empty."""
        values = self._values.get(name, [])
        if len(values) > 1 and len(set(values)) > 1:
            raise InvalidRequest(f"{name}: given more than once")
        if not values or not values[0]:
            return None
        if len(values[0]) > longest or not is_clean(values[0]):
            raise InvalidRequest(f"{name}: Input should be a valid string of at most {longest} characters")
        return values[0]

    def integer(self, name: str, *, least: int, most: int) -> int | None:
        """A whole number within bounds, or None where it is absent."""
        text = self.text(name, longest=64)
        if text is None:
            return None
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
            raise InvalidRequest(f"{name}: Input should be a valid integer")
        number = int(text)
        if not least <= number <= most:
            raise InvalidRequest(f"{name}: must be between {least} and {most}")
        return number

    def limit(self, *, default: int, most: int) -> int:
        """The page size; 0 and absence both ask for the default."""
        return self.integer("limit", least=0, most=most) or default

    def boolean(self, name: str, *, default: bool = False) -> bool:
        """A truth value: ``true`` or ``false``."""
        match self.text(name, longest=16):
            case None:
                return default
            case "true" | "True" | "1":
                return True
            case "false" | "False" | "0":
                return False
            case _:
                raise InvalidRequest(f"{name}: Input should be a valid boolean")

    def order(self, default: Literal["asc", "desc"]) -> Literal["asc", "desc"]:
        """The sort direction."""
        match self.text("order", longest=16):
            case None:
                return default
            case "asc":
                return "asc"
            case "desc":
                return "desc"
            case other:
                raise InvalidRequest(f'order: "{other}" is not a valid value')

    def values(self, name: str, allowed: Collection[str], *, most: int = 100) -> list[str] | None:
        """A list, as ``name[]=a&name[]=b`` or ``name=a``; None where it is absent. Duplicates count once."""
        values = self._values.get(f"{name}[]", []) + self._values.get(name, [])
        if len(values) > most:
            raise InvalidRequest(f"{name}: at most {most} values")
        for value in values:
            if value not in allowed:
                raise InvalidRequest(f'{name}: "{value[:200]}" is not a valid value')
        return list(dict.fromkeys(values)) or None

    def texts(self, name: str, *, most: int, longest: int = 128) -> list[str] | None:
        """A list of any texts, given as `values` are; `most` counts them without duplicates."""
        values = list(dict.fromkeys(self._values.get(f"{name}[]", []) + self._values.get(name, [])))
        if len(values) > most:
            raise InvalidRequest(f"{name}: at most {most} values")
        if any(not value or len(value) > longest or not is_clean(value) for value in values):
            raise InvalidRequest(f"{name}: each must be a string of 1 to {longest} characters")
        return values or None

    def moment(self, name: str) -> datetime | None:
        """An RFC 3339 time, or None where it is absent."""
        text = self.text(name, longest=64)
        if text is None:
            return None
        try:
            # A "+" that was sent unencoded arrives as a blank.
            return from_wire(text.replace(" ", "+") if "T" in text.upper() else text)
        except (ValueError, OverflowError):
            raise InvalidRequest(f"{name}: Input should be a valid RFC 3339 date and time") from None

    def times(self, name: str = "created_at", allowed: Collection[str] = COMPARISONS) -> TimeRange:
        """The bounds ``name[gt]``, ``name[gte]``, ``name[lt]`` and ``name[lte]``."""
        return TimeRange(**{word: self.moment(f"{name}[{word}]") for word in COMPARISONS if word in allowed})
