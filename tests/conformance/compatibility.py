"""docs/compatibility.md, made from what there is: the SDK's methods, the tests of each, and the rules kept.

``python -m tests.conformance.compatibility`` renews it; a test fails when it is behind.
"""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from anthropic import AsyncAnthropic

from tests.conformance.sdk.families import FAMILIES

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "compatibility.md"
_EXCLUSIONS: Final = Path(__file__).parent / "sdk" / "exclusions.toml"
_RULES: Final = Path(__file__).with_name("behaviour")
_ROUTE: Final = re.compile(r'path_template\(\s*"([^"?]+)|self\._(?:get|post|delete)\w*\(\s*f?"([^"?]+)')
_TAILS: Final = ("with_raw_response", "with_streaming_response")
_SHOWN: Final = 2

_HEAD: Final = """\
# Compatibility

What the official Python SDK can call, and what shows that Corral answers it as documented. The SDK's own API
tests run against a live Corral with `make conformance`; ours are below `tests/`. The rules further down are
those that a client can see; each names its evidence and the tests that hold it. Where Corral does otherwise
than documented: [differences](differences.md). `make format` renews this page.
"""


class Method(NamedTuple):
    """A method of the SDK: the resource's path, its name, the route that it calls (None if none)."""

    resource: tuple[str, ...]
    name: str
    route: str | None

    @property
    def dotted(self) -> str:
        """As a program writes it, from ``beta`` on."""
        return ".".join((*self.resource, self.name))


def methods() -> list[Method]:
    """Every public method of the families that Corral serves."""
    beta = AsyncAnthropic(api_key="none", base_url="http://localhost").beta
    served = sorted({files.split("/")[0].removeprefix("test_").removesuffix(".py") for files in _files()})
    return [method for name in served for method in _of(getattr(beta, name), (name,))]


def _files() -> Iterator[str]:
    for files in FAMILIES.values():
        yield from files


def _of(resource: Any, path: tuple[str, ...]) -> Iterator[Method]:
    members: dict[str, Any] = dict(resource.__class__.__dict__)
    for name, member in sorted(members.items()):
        if name.startswith("_") or name in _TAILS:
            continue
        if inspect.isfunction(member):
            yield Method(path, name, _route(member))
        else:
            yield from _of(getattr(resource, name), (*path, name))


def _route(member: Any) -> str | None:
    found = _ROUTE.search(inspect.getsource(member))
    return (found[1] or found[2]) if found else None


def own_tests() -> dict[str, list[str]]:
    """Which of our tests call a method, by its dotted name; as ``path::name``."""
    known = {method.dotted for method in methods()}
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name[:5] != "test_":
                continue
            for name in sorted(_called(node) & known):
                found.setdefault(name, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _called(test: ast.AST) -> set[str]:
    names = {ast.unparse(node) for node in ast.walk(test) if isinstance(node, ast.Attribute)}
    return {name.rpartition("beta.")[2] for name in names if "beta." in name}


def _official(method: Method, excluded: list[dict[str, Any]]) -> str:
    *above, last = method.resource
    file = "/".join((*above, f"test_{last}.py"))
    if not any(file == part or file.startswith(f"{part}/") for part in _files()):
        return "none"
    for entry in excluded:
        if file in entry["files"] and method.name in entry.get("operations", [method.name]):
            return f"left out: {entry['reason']}"
    return f"`{file}`"


def render() -> str:
    """The page."""
    return "\n".join([_HEAD.rstrip("\n"), *_method_lines(), "", *_rule_lines()]) + "\n"


def _method_lines() -> Iterator[str]:
    excluded = tomllib.loads(_EXCLUSIONS.read_text("utf-8")).get("exclude", [])
    ours = own_tests()
    family = ""
    for method in methods():
        if method.resource[0] != family:
            family = method.resource[0]
            yield from ("", f"## {family}", "", "| `client.beta.` | route | the SDK's tests | ours |")
            yield "| --- | --- | --- | --- |"
        tests = ours.get(method.dotted, [])
        shown = "<br>".join(f"`{name}`" for name in tests[:_SHOWN])
        more = f"<br>and {len(tests) - _SHOWN} more" if len(tests) > _SHOWN else ""
        route = f"`{method.route}`" if method.route else "none: it works in the client"
        official = _official(method, excluded)
        yield f"| `{method.dotted}` | {route} | {official} | {shown + more or 'by plain HTTP'} |"


def rules() -> list[dict[str, Any]]:
    """The rules of behaviour/, a file for each area."""
    areas = [tomllib.loads(path.read_text("utf-8")) for path in sorted(_RULES.glob("*.toml"))]
    return [{"area": area["area"], **rule} for area in areas for rule in area["rule"]]


def _rule_lines() -> Iterator[str]:
    yield from ("# Rules that a client can see", "")
    yield "Evidence: *documented* by the hosted service or its SDK, *observed* there, or our *own* decision."
    area = ""
    for rule in rules():
        if rule["area"] != area:
            area = rule["area"]
            yield from ("", f"## Rules of {area}", "", "| rule | evidence | held by |", "| --- | --- | --- |")
        tests = "<br>".join(f"`{name}`" for name in rule["tests"])
        yield f"| {rule['says']} | {rule['evidence']} | {tests} |"


if __name__ == "__main__":
    DOCUMENT.write_text(render(), "utf-8")
