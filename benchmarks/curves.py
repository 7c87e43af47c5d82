"""How the curves of `benchmarks.scaling` look: a drawing each, and the tables of docs/scaling.md."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import msgspec

from benchmarks.table import milliseconds

_PLAIN: Final = {"background": "white", "plot_background": "white", "font_family": "sans-serif"}


class Point(msgspec.Struct, frozen=True):
    """One point of a curve: processor time in milliseconds, of the servers and of PostgreSQL."""

    x: int
    server: float
    postgres: float
    rate: float
    """Turns, or events delivered, per second on this machine."""


class Growth(msgspec.Struct, frozen=True):
    """What a turn leaves behind: bytes of write-ahead log, and of tables with their indexes."""

    wal: float
    table: float


class Capacity(msgspec.Struct, frozen=True):
    """What a PostgreSQL of so many cores carries, all else being there."""

    cores: int
    turns: float
    """Per second."""
    servers: int
    """Server processes, of which each uses one core."""
    wal: float
    """Bytes of write-ahead log a second."""
    table: float
    """Bytes of tables a day."""


class Curve(msgspec.Struct, frozen=True):
    """What a curve is of, and its points."""

    x: str
    per: str
    points: Sequence[Point]


def drawn(curve: Curve) -> str:
    """The curve as SVG: one line for the servers, one for PostgreSQL, from nothing up."""
    pygal: Any = import_module("pygal")  # it has no types
    style: Any = import_module("pygal.style")
    chart = pygal.Line(
        style=style.Style(**_PLAIN),
        width=720,
        height=360,
        js=[],
        range=(0, 1.1 * max(max(point.server, point.postgres) for point in curve.points)),
        x_title=curve.x,
        y_title=f"ms of processor time per {curve.per}",
    )
    chart.x_labels = [f"{point.x:,}" for point in curve.points]
    chart.add("servers", [round(point.server, 4) for point in curve.points])
    chart.add("PostgreSQL", [round(point.postgres, 4) for point in curve.points])
    return chart.render(is_unicode=True)


def written(
    about: Sequence[str], curves: Mapping[str, Curve], growth: Growth, of_postgres: Sequence[Capacity]
) -> str:
    """The figures as the page shows them."""
    parts = ["".join(f"- {line}\n" for line in about)]
    for name, curve in curves.items():
        rows = "".join(
            f"| {point.x:,} | {milliseconds(point.server / 1000)} | {milliseconds(point.postgres / 1000)}"
            f" | {point.rate:,.0f}/s |\n"
            for point in curve.points
        )
        parts.append(
            f"![{name}](images/scaling-{name}.svg)\n\n"
            f"| {curve.x} | servers, per {curve.per} | PostgreSQL, per {curve.per} | {curve.per}s |\n"
            f"| --- | --- | --- | --- |\n{rows}"
        )
    parts.append(
        f"A turn leaves {growth.wal / 1024:.0f} KiB of write-ahead log and {growth.table / 1024:.1f} KiB of"
        " tables and indexes behind.\n"
    )
    rows = "".join(
        f"| {each.cores} | {each.turns:,.0f} | {each.servers} | {each.wal / 2**20:,.1f} MiB/s"
        f" | {each.table / 2**30:,.1f} GiB |\n"
        for each in of_postgres
    )
    parts.append(
        "| cores of PostgreSQL | turns a second | server processes | write-ahead log | tables, a day |\n"
        f"| --- | --- | --- | --- | --- |\n{rows}"
    )
    return "\n".join(parts)
