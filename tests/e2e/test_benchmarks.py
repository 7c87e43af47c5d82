"""Every benchmark runs and gives the rows of its questions; how fast anything was is not looked at."""

import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import pytest_asyncio

from benchmarks import scaling
from benchmarks.__main__ import BEGIN, END, PAGE, QUESTIONS, page
from benchmarks.curves import Curve, Growth, Point, written
from benchmarks.machine import described
from benchmarks.scaling import capacity
from benchmarks.table import Row, Sample, at_least, interleaved, not_run, plain, under
from benchmarks.world import SHORT, World, world

ROWS = {
    "sessions": 4,
    "streams": 3,
    "turns": 6,
    "log": 3,
    "tool_calls": 5,
    "memory": 3,
    "takeover": 1,
    "cold_turn": 2,
    "long_session": 2,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everything() -> AsyncIterator[World]:
    async with world(SHORT, rivals=False) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_benchmark_answers_its_questions(everything: World, name: str) -> None:
    rows = await QUESTIONS[name](everything)
    assert len(rows) == ROWS[name], plain(rows)
    for row in rows:
        if row.ratio is None:
            assert row.peer.endswith("left out of this run")
            assert row.met == "-"
        else:
            assert math.isfinite(row.ratio)
            assert any(character.isdigit() for character in row.corral)
        assert not any("|" in cell for cell in row.cells())


@pytest.mark.asyncio(loop_scope="module")
async def test_the_page_says_on_which_machine_and_keeps_its_text(everything: World) -> None:
    about = await described(everything.postgres.url, everything.folder)
    assert any("fsync on" in line for line in about)
    old = PAGE.read_text("utf-8")
    new = page(old, [Row("how fast?", "1 ms", "8 ms, another", 8.0, at_least(5))], about)
    assert "| how fast? | 1 ms | 8 ms, another | 8x | at least 5x | yes |" in new
    assert all(f"- {line}\n" in new for line in about)
    assert new.split(BEGIN)[0] == old.split(BEGIN)[0]
    assert new.split(END)[1] == old.split(END)[1]


def test_a_curve_is_drawn_and_the_page_keeps_its_text(tmp_path: Path) -> None:
    points = [Point(1, 2.0, 1.0, 10.0), Point(10, 2.5, 1.5, 9.0)]
    curves = {"servers": Curve("servers", "turn", points)}
    growth = Growth(wal=20 * 1024, table=14 * 1024)
    carried = capacity(points[-1], growth, 4)
    assert (carried.turns, carried.servers) == (1600, 7)
    text = written(["taken today"], curves, growth, [carried])
    old = scaling.PAGE.read_text("utf-8")
    page = tmp_path / "scaling.md"
    page.write_text(old, "utf-8")
    scaling.write(text, curves, page)
    new = page.read_text("utf-8")
    assert "| 10 | 2.5 ms | 1.5 ms | 9/s |" in new
    assert "| 4 | 1,600 | 7 | 31.2 MiB/s |" in new
    assert new.split(scaling.BEGIN)[0] == old.split(scaling.BEGIN)[0]
    assert new.split(scaling.END)[1] == old.split(scaling.END)[1]
    drawing = ElementTree.fromstring((tmp_path / "images" / "scaling-servers.svg").read_text("utf-8"))
    assert drawing.tag.endswith("svg")
    assert "PostgreSQL" in {text.strip() for text in drawing.itertext()}


async def test_the_curves_can_be_taken() -> None:
    text, curves = await scaling.scaling(short=True)
    assert list(curves) == ["servers", "sessions", "history", "subscribers"]
    every = [point for curve in curves.values() for point in curve.points]
    assert all(point.server > 0 and point.rate > 0 for point in every)
    assert "cores of PostgreSQL" in text


def test_a_bar_is_met_or_missed_and_never_by_what_was_not_measured() -> None:
    def met(rows: Sequence[Row]) -> list[str]:
        return [row.met for row in rows]

    assert met([Row("", "", "", ratio, at_least(0.7)) for ratio in (0.69, 0.7)]) == ["NO", "yes"]
    assert met([Row("", "", "", ratio, under(1, "s")) for ratio in (0.99, 1)]) == ["yes", "NO"]
    assert met([not_run("", "a rival", "cannot be had", at_least(1)), Row("", "", "", 2, None)]) == ["-", "-"]


async def test_contestants_take_turns_in_both_orders() -> None:
    order: list[str] = []

    def contestant(name: str, taken: float) -> Sample:
        async def sample() -> float:
            order.append(name)
            return taken

        return sample

    taken = await interleaved({"a": contestant("a", 1), "b": contestant("b", 2)}, 2)
    assert taken == {"a": [1, 1], "b": [2, 2]}
    assert order == ["b", "a", "a", "b", "b", "a"]
