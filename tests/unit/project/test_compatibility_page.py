"""docs/compatibility.md is up to date, covers every method, and every test that it names exists."""

import ast

import pytest

from tests.conformance.compatibility import DOCUMENT, ROOT, methods, own_tests, render, rules


def functions(path: str) -> set[str]:
    """The names of all functions of a test module."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_page_is_up_to_date() -> None:
    assert DOCUMENT.read_text("utf-8") == render(), "run `make format`"


def test_every_method_of_the_sdk_has_its_route_and_most_have_tests_of_ours() -> None:
    known = methods()
    assert len(known) > 100
    assert {method.name for method in known if method.route is None} <= {
        *("poller", "worker", "tool_runner", "unwrap", "parse_unverified")
    }
    assert len(own_tests()) > len(known) * 0.75


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["says"][:50])
def test_every_rule_is_held_by_tests_that_exist(rule: dict[str, object]) -> None:
    assert rule["evidence"] in ("documented", "observed", "own")
    tests = rule["tests"]
    assert isinstance(tests, list)
    assert tests
    for named in tests:  # pyright: ignore[reportUnknownVariableType]
        path, _, name = str(named).partition("::")  # pyright: ignore[reportUnknownArgumentType]
        assert name in functions(path), named
