"""docs/robustness.md names a test for each fault; each of them exists, and no fault is left out."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLE = (ROOT / "docs" / "robustness.md").read_text("utf-8")
THERE, NOT_YET = TABLE.split("## Not there yet")
# Numbers of the collected faults: history, concurrency, stuck sessions, streaming, tools.
FAULTS = {
    *(1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 14, 16, 17, 18, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30),
    *range(31, 41),
    *(42, 43, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 57, 58, 59, 60),
    *(61, 62, 63, 64, 66, 68, 69, 70, 71, 73, 74, 75, 76),
    *(77, 78, 79, 80, 81, 82, 84, 86, 87, 88, 89),
}


def rows(table: str) -> list[list[str]]:
    """The cells of each row, without heads and rules."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("no.", "---")]


def numbers(table: str) -> set[int]:
    return {int(number) for row in rows(table) for number in re.findall(r"\d+", row[0])}


def functions(path: str) -> set[str]:
    """The names of all functions of a test module."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_table_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", THERE)
    assert len(named) > 80
    missing = [f"{path}::{name}" for path, name in named if name not in functions(path)]
    assert missing == []


def test_every_fault_that_corral_answers_has_a_test() -> None:
    assert [row for row in rows(THERE) if len(row) != 4 or "::test_" not in row[3]] == []


def test_no_fault_is_left_out() -> None:
    assert FAULTS - numbers(TABLE) == set()
    assert all(len(row) == 3 and row[2] for row in rows(NOT_YET))
