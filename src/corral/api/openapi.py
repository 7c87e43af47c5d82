"""The OpenAPI 3.1 document of the whole API, made from the routes and from the structs of the wire.

``python -m corral.api.openapi`` writes docs/openapi.json in the current folder, ``corral admin openapi``
prints the document, and every server serves its own at ``/openapi.json``.
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

import corral
from corral.api import describe
from corral.api.call import Call
from corral.api.principals import OPEN
from corral.api.refusals import headers, refusals, responses
from corral.api.routing import Route
from corral.api.schemas import Schemas
from corral.api.security import schemes, security

DOCUMENT: Final = Path("docs/openapi.json")
PATH: Final = "/openapi.json"
_JSON: Final = "application/json"
_FORM: Final = "multipart/form-data"
_ID: Final = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:-]+$"}
_HEADERS: Final = {
    name: {"$ref": f"#/components/headers/{name}"} for name in ("request-id", "corral-version")
}
_ABOUT: Final = """\
The Managed Agents API as this server speaks it, and what it adds for its own workers below `/corral/v1`.

A request carries its credential as `Authorization: Bearer …` or as `x-api-key: …`. Errors come in one
envelope, with the request's id, which the `request-id` header has too. Lists take the cursor of the page
before as `page`.
"""


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document of these routes."""
    known = sorted(routes, key=lambda route: (route.path, route.method))
    names = Counter(_name(route) for route in known)
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in known:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, names)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Corral",
            "version": corral.__version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server"}],
        "paths": paths,
        "components": {
            "schemas": schemas.components(),
            "headers": headers(),
            "responses": responses(),
            "securitySchemes": schemes(),
        },
    }


def _operation(route: Route, schemas: Schemas, names: Counter[str]) -> dict[str, Any]:
    name = _name(route)
    if names[name] > 1:
        # One handler answers several routes.
        name += "_" + re.sub(r"\W+", "_", f"{route.method} {route.path}").lower().strip("_")
    operation: dict[str, Any] = {
        "operationId": name,
        "tags": [_family(route)],
        "summary": route.says,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _ID}
            for name in re.findall(r"{(\w+)}", route.path)
        ],
    }
    operation["parameters"] += [_parameter(parameter) for parameter in route.query]
    if route.callers:
        operation["security"] = security(route.callers)
    if route.takes is not None:
        operation["requestBody"] = _body(route.takes, schemas)
    operation["responses"] = {**_answers(route.gives, schemas), **refusals(route)}
    return operation


def _family(route: Route) -> str:
    return route.handler.__module__.rpartition(".")[2]


def _name(route: Route) -> str:
    return f"{_family(route)}.{route.handler.__name__}"


def _parameter(parameter: describe.Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.about,
        "required": parameter.required,
        "schema": dict(parameter.schema),
    }


def _body(takes: Any, schemas: Schemas) -> dict[str, Any]:
    match takes:
        case describe.Form():
            return {"required": True, "content": {_FORM: {"schema": _form(takes)}}}
        case describe.Bytes():
            anything = {"schema": {"type": "string", "format": "binary"}}
            return {"required": True, "content": {"application/octet-stream": anything}}
        case describe.Optional(type=type_):
            return {"required": False, "content": {_JSON: {"schema": schemas.of(type_)}}}
        case _:
            return {"required": True, "content": {_JSON: {"schema": schemas.of(takes)}}}


def _form(form: describe.Form) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "string", "format": "binary"}
    part = {"type": "array", "minItems": 1, "items": part} if form.repeated else part
    return {
        "type": "object",
        "properties": {**dict.fromkeys(form.files, part), **form.fields},
        "required": list(form.required),
        "additionalProperties": False,
    }


def _answers(gives: Any, schemas: Schemas) -> dict[str, Any]:
    match gives:
        case describe.Never():
            return {}
        case describe.Site(statuses=statuses):
            page = {
                "description": "A page for people.",
                "headers": _HEADERS,
                "content": {"text/html": {"schema": {"type": "string"}}},
            }
            return {str(status): page for status in statuses}
        case _:
            return {"200": _answer(gives, schemas)}


def _answer(gives: Any, schemas: Schemas) -> dict[str, Any]:
    match gives:
        case None:
            return {"description": "Done.", "headers": _HEADERS}
        case describe.Bytes():
            content: dict[str, Any] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
            return {"description": "The bytes.", "headers": _HEADERS, "content": content}
        case describe.Stream(item=item):
            # OpenAPI 3.1 has no word for the type of a stream's items; 3.2 calls it so.
            content = {"text/event-stream": {"schema": {"type": "string"}, "x-item-schema": schemas.of(item)}}
            return {"description": "Server-sent events.", "headers": _HEADERS, "content": content}
        case _:
            content = {_JSON: {"schema": _shape(gives, schemas)}}
            return {"description": "Done.", "headers": _HEADERS, "content": content}


def _shape(gives: Any, schemas: Schemas) -> dict[str, Any]:
    match gives:
        case describe.PageOf(item=item, cursors=cursors, flags=flags, extra=extra):
            fields: dict[str, Any] = {"data": {"type": "array", "items": schemas.of(item)}}
            fields |= {name: {"type": ["string", "null"]} for name in cursors}
            fields |= {name: {"type": "boolean"} for name in flags}
            return _closed({**fields, **(extra or {})}, tuple(fields))
        case describe.Deleted(type=name):
            return _closed({"id": {"type": "string"}, "type": {"const": name}}, ("id", "type"))
        case _:
            return schemas.of(gives)


def _closed(fields: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def render(routes: Iterable[Route]) -> bytes:
    """The document as JSON text for people: indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(document(routes)), indent=1) + b"\n"


def described(routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """The routes, and the one that serves the document of them all."""

    @cache
    def text() -> bytes:
        return msgspec.json.encode(document(every))

    async def openapi(_: Call) -> ASGIApp:
        """``GET /openapi.json``: this document."""
        return Response(text(), media_type=_JSON)

    own = Route("GET", PATH, OPEN, openapi, "The OpenAPI document of this API", gives=dict[str, Any])
    every = (*routes, own)
    return every


def main() -> None:
    """Renew docs/openapi.json."""
    from corral.api.app import ROUTES  # the application serves the document, so it imports this module

    DOCUMENT.write_bytes(render(ROUTES))


if __name__ == "__main__":
    main()
