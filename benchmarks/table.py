"""What a benchmark says: rows of a table, each with a ratio and the bar that it is held against."""

import math
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec


class Bar(msgspec.Struct, frozen=True):
    """What a ratio has to reach, or to stay under."""

    kind: Literal["at least", "under"]
    value: float
    unit: str = "x"

    def met(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio >= self.value if self.kind == "at least" else ratio < self.value

    def __str__(self) -> str:
        return f"{self.kind} {_short(self.value, self.unit)}"


def at_least(value: float) -> Bar:
    """A bar for "so many times as good"."""
    return Bar("at least", value)


def under(value: float, unit: str = "x") -> Bar:
    """A bar for "no more than so many times as much", or for a plain quantity in `unit`."""
    return Bar("under", value, unit)


class Row(msgspec.Struct, frozen=True):
    """One answer. Without a peer, `ratio` is the quantity itself, in the unit of the bar.

    `ratio` is None where nothing could be measured; then `peer` says why.
    """

    question: str
    corral: str
    peer: str
    ratio: float | None
    bar: Bar | None

    @property
    def met(self) -> str:
        """``yes`` or ``NO``; a dash if there is no bar or nothing was measured."""
        if self.bar is None or self.ratio is None:
            return "-"
        return "yes" if self.bar.met(self.ratio) else "NO"

    def cells(self) -> tuple[str, ...]:
        """The row as the table shows it."""
        unit = "x" if self.bar is None else self.bar.unit
        ratio = "-" if self.ratio is None else _short(self.ratio, unit)
        return (
            self.question,
            self.corral,
            self.peer,
            ratio,
            "-" if self.bar is None else str(self.bar),
            self.met,
        )


HEAD: Final = ("question", "corral", "peer", "ratio", "bar", "met")


def not_run(question: str, peer: str, why: str, bar: Bar | None) -> Row:
    """A row for what could not be measured."""
    # It may be the last line of another program's log.
    return Row(question, "-", f"{peer}: {why.replace('|', '/')[:200]}", None, bar)


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def plain(rows: Sequence[Row]) -> str:
    """The rows as a table for a terminal."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def milliseconds(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds * 1000:.3g} ms"


def p95(samples: Sequence[float]) -> float:
    """The 95th percentile; of very few samples, the largest."""
    if len(samples) < 20:
        return max(samples)
    return statistics.quantiles(samples, n=20, method="inclusive")[-1]


Sample = Callable[[], Awaitable[float]]
"""Does one thing and returns how long it took, in seconds, or how many of it were done in a second."""


async def interleaved(contestants: Mapping[str, Sample], rounds: int) -> dict[str, list[float]]:
    """Samples of all contestants, taken in turn, so that each meets the same machine; the first is dropped.

    The order is turned round in every other round, so that nobody always comes after the same other.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        names = list(contestants) if number % 2 else list(contestants)[::-1]
        for name in names:
            sample = await contestants[name]()
            if number:
                taken[name].append(sample)
    return taken


def _short(value: float, unit: str) -> str:
    if value and math.isfinite(value) and abs(value) < 100:
        shown = f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
        shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    else:
        shown = f"{value:.0f}"
    return f"{shown}x" if unit == "x" else f"{shown} {unit}"
