"""The OpenAPI document tells the truth: of every route, its parameters, body, answers and events."""

import ast
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args

import httpx
import jsonschema_rs
import msgspec
import pytest
import pytest_asyncio
from anthropic.types.beta.sessions import BetaManagedAgentsStreamSessionEvents
from click.testing import CliRunner

from corral.api.app import ROUTES
from corral.api.describe import Optional, Parameter
from corral.api.openapi import DOCUMENT as COMMITTED
from corral.api.openapi import render
from corral.api.routing import Route
from corral.cli import main
from corral.wire.events import PERSISTED_TYPES
from corral.wire.shown_spans import StreamEvent
from tests.conforming import DOCUMENT, conforming
from tests.contract.conftest import Api, serving
from tests.populated import World, populated

ROOT = Path(__file__).parents[2]
READERS = {"text", "integer", "limit", "boolean", "order", "values", "texts", "moment", "times", "page"}


@pytest_asyncio.fixture
async def world(api: Api) -> AsyncIterator[World]:
    yield await populated(api)


def test_every_route_describes_itself() -> None:
    bare = [
        f"{route.method} {route.path} ({route.handler.__module__}): give its Route `says=` and `gives=`, and "
        "what it takes and refuses (corral/api/describe.py has the words)"
        for route in ROUTES
        if not route.says or route.gives is None
    ]
    assert bare == [], "\n".join(bare)


def test_the_committed_document_is_up_to_date() -> None:
    assert (ROOT / COMMITTED).read_bytes() == render(ROUTES), "run `make format`"


async def test_the_document_is_served_and_printed(api: Api) -> None:
    served = await api.http.get("/openapi.json", headers={"x-api-key": ""})
    assert served.status_code == 200
    assert served.json() == DOCUMENT
    printed = CliRunner().invoke(main, ["admin", "openapi"])
    assert printed.exit_code == 0
    assert msgspec.json.decode(printed.stdout) == DOCUMENT


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid({"$schema": _DIALECT, **schema}), name
    for reference in _references(DOCUMENT):
        found: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
    ids = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) == len(ROUTES)


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():  # pyright: ignore[reportUnknownVariableType]
            if key == "$ref":
                yield str(value)  # pyright: ignore[reportUnknownArgumentType]
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:  # pyright: ignore[reportUnknownVariableType]
            yield from _references(value)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_handler_decodes_the_body_that_its_route_declares(route: Route) -> None:
    takes = route.takes.type if isinstance(route.takes, Optional) else route.takes
    tree = ast.parse(dedent(inspect.getsource(route.handler)))
    decoded = {
        (node.func.attr, ast.unparse(node.args[0]))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("decode", "decode_optional")
        and ast.unparse(node.func.value) == "call"
    }
    if isinstance(takes, type):
        reader = "decode_optional" if isinstance(route.takes, Optional) else "decode"
        assert decoded == {(reader, takes.__name__)}
    else:
        assert decoded == set()


def test_every_parameter_that_a_handler_reads_is_declared() -> None:
    modules = {route.handler.__module__ for route in ROUTES}
    for module in sorted(modules - {"corral.api.openapi"}):
        declared = {
            parameter.name.partition("[")[0]
            for route in ROUTES
            if route.handler.__module__ == module
            for parameter in route.query
        }
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        read = set(_read_parameters(tree))
        assert read - declared == set(), f"{module} reads parameters that none of its routes declares"


def _read_parameters(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        if node.func.attr not in READERS or owner not in ("call.query", "query", "call"):
            continue
        match node.func.attr, node.args:
            case "limit", _:
                yield "limit"
            case "order", _:
                yield "order"
            case "page", _:
                yield from ("limit", "page")
            case "times", []:
                yield "created_at"
            case _, [ast.Constant(value=str(name)), *_]:
                yield name
            case _:
                pass  # a helper, whose callers name the parameter


async def test_each_bound_of_each_parameter_is_the_one_that_is_kept(world: World) -> None:
    wrong: list[str] = []
    # Heartbeats and stops end the lease of the work item, and so its token: they come last.
    for route in sorted(ROUTES, key=lambda route: "/work/" in route.path):
        for parameter in route.query:
            if parameter.place != "query":
                continue
            for value, taken in _tries(parameter):
                told = await _message(world, route, parameter.name, value)
                refused = told.startswith((f"{parameter.name}:", f"{parameter.name.removesuffix('[]')}:"))
                if refused == taken:
                    wrong.append(f"{route.method} {route.path}?{parameter.name}={str(value)[:40]}: {told}")
    assert wrong == [], "\n".join(wrong)


def _tries(parameter: Parameter) -> Iterator[tuple[str | list[str], bool]]:
    """Values, and whether each is one that the parameter may have."""
    schema = parameter.schema
    match schema:
        case {"type": "integer", "minimum": least, "maximum": most}:
            yield from ((str(least), True), (str(least - 1), False), (str(most + 1), False))
            yield from (("1.5", False), ("x", False), ("9" * 5000, False), ("１", False))
            if parameter.name != "block_ms":  # which would wait for so long
                yield (str(most), True)
        case {"enum": values}:
            yield from ((value, True) for value in values)
            yield from (("nothing", False), (str(values[0]).upper(), False), ("\x00", False))
        case {"type": "boolean"}:
            yield from (("true", True), ("false", True), ("maybe", False), ("2", False))
        case {"format": "date-time"}:
            yield from (("2026-10-10T09:00:00Z", True), ("2026-10-10T09:00:00+02:00", True))
            yield from (("yesterday", False), ("9" * 40, False), ("2026-13-01T00:00:00Z", False))
        case {"type": "array", "items": {"enum": values}, "maxItems": most}:
            yield from (
                (list(values[:1]), True),
                (["nothing"], False),
                (list(values[:1]) * (most + 1), False),
            )
        case {"type": "array", "items": {"maxLength": longest}, "maxItems": most}:
            yield from ((["a"], True), (["a" * longest], True), (["a" * (longest + 1)], False))
            yield from (([f"f{n}" for n in range(most)], True), ([f"f{n}" for n in range(most + 1)], False))
        case {"type": "string", "maxLength": longest}:
            yield from (("a" * (longest + 1), False), ("a\x00b", False))
        case _:
            raise AssertionError(f"{parameter.name}: no way to try {schema}")


async def _message(world: World, route: Route, name: str, value: str | list[str]) -> str:
    """The message of the error that a request with this parameter is answered with; empty for none."""
    asked: dict[str, Any] = {"params": {name: value}, "headers": world.headers(route)}
    async with world.api.http.stream(route.method, world.path(route), **asked) as response:
        if response.status_code == 200:
            return ""
        error = msgspec.json.decode(await response.aread())["error"]
        assert response.status_code < 500, (route, name, value, error)
        return error["message"] if response.status_code == 400 else ""


def _shapes() -> dict[str, type[msgspec.Struct]]:
    return {shape.__struct_config__.tag: shape for shape in get_args(StreamEvent)}


def test_the_events_are_those_of_the_sdk_field_by_field() -> None:
    ours = _shapes()
    union = get_args(get_args(BetaManagedAgentsStreamSessionEvents)[0])
    theirs = {get_args(model.model_fields["type"].annotation)[0]: model for model in union}
    assert set(ours) - {"ping", "error"} == set(theirs)
    assert set(theirs) - {"session.deleted", "event_start", "event_delta"} == PERSISTED_TYPES
    different = {
        name: (set(ours[name].__struct_fields__) | {"type"}) ^ set(model.model_fields)
        for name, model in theirs.items()
        if set(ours[name].__struct_fields__) | {"type"} != set(model.model_fields)
    }
    assert different == {}


async def test_what_does_not_conform_is_noticed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": b'{"status":"well"}'})

    stack = ExitStack()
    async with serving(stack.enter_context(conforming(app))) as url, httpx.AsyncClient(base_url=url) as http:
        await http.get("/healthz")
    with pytest.raises(AssertionError, match=r"no request-id[\s\S]*does not conform at status"):
        stack.close()
