"""Runs the benchmarks and writes the table of docs/performance.md: ``python -m benchmarks [QUESTION]``."""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.cold_turn import cold_turn
from benchmarks.log import log
from benchmarks.long_session import long_session
from benchmarks.machine import between, described, today, waiting
from benchmarks.memory import memory
from benchmarks.sandbox_start import tool_calls
from benchmarks.sessions import sessions
from benchmarks.streams import streams
from benchmarks.table import Row, markdown, plain
from benchmarks.takeover import takeover
from benchmarks.turns import turns
from benchmarks.world import FULL, SHORT, Question, Size, quietly, world

QUESTIONS: Final[Mapping[str, Question]] = {
    "sessions": sessions,
    "streams": streams,
    "turns": turns,
    "log": log,
    "tool_calls": tool_calls,
    "memory": memory,
    "takeover": takeover,
    "cold_turn": cold_turn,
    "long_session": long_session,
}
"""In the order of the table. Each meets fresh processes of its own."""

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN: Final = "<!-- written by make bench -->"
END: Final = "<!-- end of what make bench writes -->"


async def answers(names: Sequence[str], size: Size, *, rivals: bool) -> tuple[list[Row], list[str]]:
    """The rows of the questions, and what the page says above them."""
    rows: list[Row] = []
    about: list[str] = []
    loads = [waiting()]
    for name in names:
        began = time.monotonic()
        async with world(size, rivals=rivals) as everything:
            if not about:
                about = await described(everything.postgres.url, everything.folder)
            found = await QUESTIONS[name](everything)
        loads.append(waiting())
        print(f"{name} ({time.monotonic() - began:.0f} s)\n{plain(found)}", file=sys.stderr, flush=True)
        rows += found
    about.append(
        f"processes that wanted each core at the start: {loads[0]:.1f}"
        " (above 1 something else was running, and ratios are less sure)"
    )
    return rows, about


def page(old: str, rows: Sequence[Row], about: Sequence[str]) -> str:
    """The page with a new table between its marks."""
    lines = "".join(f"- {line}\n" for line in (f"taken on {today()}", *about))
    return between(old, BEGIN, END, f"{lines}\n{markdown(rows)}")


def main() -> None:
    """Run, print, and unless told otherwise write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "questions",
        nargs="*",
        choices=[*QUESTIONS, []],
        metavar="question",
        help="which; all of them by default",
    )
    parser.add_argument("--short", action="store_true", help="a moment's run, which measures nothing")
    parser.add_argument("--without-rivals", action="store_true", help="leave out what has to be installed")
    given = parser.parse_args()
    quietly()
    names = given.questions or list(QUESTIONS)
    size = SHORT if given.short else FULL
    rows, about = asyncio.run(answers(names, size, rivals=not given.without_rivals))
    print(plain(rows), end="")
    if names == list(QUESTIONS) and size is FULL and not given.without_rivals:
        PAGE.write_text(page(PAGE.read_text("utf-8"), rows, about), "utf-8")
        print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
