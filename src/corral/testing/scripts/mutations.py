"""Small changes to Python source that may repair it: one operator or one number."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_BOUNDARY: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
}


@dataclass(frozen=True)
class Change:
    """A replacement of one unique piece of text; `line` counts from 1, `before` and `after` are that line's
    code.
    """

    line: int
    before: str
    after: str
    old: str
    new: str


def candidates(source: str, functions: set[str]) -> list[Change]:
    """Changes to the named functions and to those of the same file that they call, likeliest first.

    Boundaries between two variables come first, then other comparisons and arithmetic, then whole numbers one
    up and one down. Source that does not parse has no candidates.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    lines = source.split("\n")
    found: list[tuple[int, int, Change]] = []
    for node in _suspect_nodes(tree, functions):
        for rank, line, start, end, replacement in _edits(node, lines):
            before = lines[line]
            after = before[:start] + replacement + before[end:]
            old, new = _unique(lines, line, after)
            found.append((rank, line, Change(line + 1, before.strip(), after.strip(), old, new)))
    found.sort(key=lambda item: item[:2])
    return [change for _, _, change in found]


def _suspect_nodes(tree: ast.Module, names: set[str]) -> Iterator[ast.AST]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    waiting = [name for name in functions if name in names]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for node in ast.walk(functions[name]):
            yield node
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                waiting.append(node.func.id)


def _edits(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, int, str]]:
    """Edits of one node as (rank, line from 0, start, end, replacement)."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BOUNDARY:
            old, new = _BOUNDARY[type(op)]
            fixed = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
            rank = 0 if old not in ("==", "!=") and not fixed else 1
            yield from _between(rank, left, right, old, new, lines)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield from _between(1, left, right, *_ARITHMETIC[type(op)], lines)
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and node.end_col_offset:
            for rank, other in ((2, value - 1), (2, value + 1)):
                if other >= 0:
                    yield rank, node.lineno - 1, node.col_offset, node.end_col_offset, str(other)
        case _:
            return


def _between(
    rank: int, left: ast.expr, right: ast.expr, old: str, new: str, lines: list[str]
) -> Iterator[tuple[int, int, int, int, str]]:
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    line = right.lineno - 1
    at = lines[line].find(old, left.end_col_offset, right.col_offset)
    if at >= 0 and lines[line].isascii():
        yield rank, line, at, at + len(old), new


def _unique(lines: list[str], line: int, after: str) -> tuple[str, str]:
    """The changed line with as many of the lines before it as make the text unique in the file."""
    source = "\n".join(lines)
    for first in range(line, -1, -1):
        old = "\n".join(lines[first : line + 1])
        if source.count(old) == 1:
            return old, "\n".join([*lines[first:line], after])
    return source, "\n".join([*lines[:line], after, *lines[line + 1 :]])
