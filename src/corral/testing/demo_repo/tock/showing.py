"""From seconds to text."""

from __future__ import annotations

from tock.units import SECONDS


def humanize(seconds: float, parts: int = 2) -> str:
    """The largest units of a length of time, at most `parts` of them: `1h 30m`.

    What is smaller than the last part shown is left out, not rounded. Less than a second is `0s`.
    Raises ValueError when `parts` is less than 1.
    """
    if parts < 1:
        raise ValueError("parts must be at least 1")
    sign = "-" if seconds < 0 else ""
    shown = [f"{count}{symbol}" for symbol, count in split(abs(int(seconds)))]
    return sign + " ".join(shown[:parts]) if shown else "0s"


def isoformat(seconds: float) -> str:
    """The length of time as an ISO 8601 duration, in whole seconds: `P1DT2H`."""
    sign = "-" if seconds < 0 else ""
    date, time = "", ""
    for symbol, count in split(abs(int(seconds))):
        if symbol == "w":
            date += f"{count * 7}D"
        elif symbol == "d":
            date += f"{count}D"
        else:
            time += f"{count}{symbol.upper()}"
    if not date and not time:
        return "PT0S"
    return f"{sign}P{date}{'T' + time if time else ''}"


def split(seconds: int) -> list[tuple[str, int]]:
    """Whole seconds as counts of units, largest first, without those that count nothing."""
    counts: list[tuple[str, int]] = []
    for symbol, size in SECONDS.items():
        if seconds > size:
            counts.append((symbol, seconds // size))
            seconds %= size
    return counts
