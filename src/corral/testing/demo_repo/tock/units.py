"""The units of time, largest first, and the names that people give them."""

from __future__ import annotations

SECONDS: dict[str, int] = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
"""Length of each unit in seconds, by symbol."""

_NAMES: dict[str, tuple[str, ...]] = {
    "w": ("w", "wk", "wks", "week", "weeks"),
    "d": ("d", "day", "days"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}

SYMBOL_OF: dict[str, str] = {name: symbol for symbol, names in _NAMES.items() for name in names}
"""The symbol of every name that `parse` takes."""
