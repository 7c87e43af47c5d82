"""Holds what a server is asked, and what it answers, against the OpenAPI document.

Every server that tests start is wrapped into this. What does not conform is collected, and fails the test
that the server was started for: an undeclared status or media type, an answer that is not of its schema, a
request that was taken though the document forbids it, a frame of a stream that is no event.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import jsonschema_rs
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.app import ROUTES
from corral.api.openapi import document
from corral.api.routing import Route, RouteTable
from corral.wire.decode import parse
from corral.wire.errors import MethodNotAllowed, NotFound

DOCUMENT: Final = document(ROUTES)
_TABLE: Final = RouteTable(ROUTES)
_JSON: Final = "application/json"
_LARGEST: Final = 4 * 1024 * 1024


@cache
def validator(method: str, path: str, part: str) -> jsonschema_rs.Validator | None:
    """What checks a part of an operation: ``request``, or a status, with or without ``:item``."""
    operation = DOCUMENT["paths"][path][method.lower()]
    if part == "request":
        schema = _schema(operation.get("requestBody"), _JSON, "schema")
    elif part.endswith(":item"):
        schema = _schema(response_of(operation, int(part[:3])), "text/event-stream", "x-item-schema")
    else:
        schema = _schema(response_of(operation, int(part)), _JSON, "schema")
    if schema is None:
        return None
    return jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def _schema(holder: Any, media_type: str, name: str) -> Any:
    if holder is None:
        return None
    return holder.get("content", {}).get(media_type, {}).get(name)


def response_of(operation: Any, status: int) -> Any:
    """The response that an operation declares for a status, None if it declares none."""
    response = operation["responses"].get(str(status))
    if response is not None and "$ref" in response:
        return DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    return response


@contextmanager
def conforming(app: ASGIApp) -> Generator[ASGIApp]:
    """The app, watched; raises at the end if anything did not conform."""
    watched = _Watched(app)
    yield watched
    assert watched.faults == [], "\n".join(watched.faults)


class _Watched:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.faults: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self.faults)
        await self._app(scope, exchange.receive, exchange.send)


class _Exchange:
    """One request and its answer, as they pass by."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, faults: list[str]) -> None:
        self._receive, self._send, self._faults = receive, send, faults
        self._name = f"{scope['method']} {scope['path']}"
        self._route = _route(scope)
        self._request, self._answer = b"", b""
        self._status, self._headers = 0, dict[str, str]()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and len(self._request) < _LARGEST:
            self._request += message.get("body", b"")
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            self._look_at_head()
        elif message["type"] == "http.response.body":
            self._look_at_body(message.get("body", b""), last=not message.get("more_body", False))
        await self._send(message)

    def _fault(self, text: str) -> None:
        self._faults.append(f"{self._name}: {self._status}: {text}")

    @property
    def _media_type(self) -> str:
        return self._headers.get("content-type", "").partition(";")[0]

    def _look_at_head(self) -> None:
        if "request-id" not in self._headers:
            self._fault("no request-id")
        if self._route is None:
            if self._status not in (404, 405):
                self._fault("no route has this path")
            return
        if self._route.gives is None:
            return  # it does not describe itself, for which another test fails
        declared = response_of(DOCUMENT["paths"][self._route.path][self._route.method.lower()], self._status)
        if declared is None:
            self._fault("the route does not declare this status")
        elif "*/*" not in declared.get("content", {}) and self._media_type not in declared.get("content", {}):
            self._fault(f"the route does not declare the media type {self._media_type!r}")

    def _look_at_body(self, piece: bytes, *, last: bool) -> None:
        if self._media_type == "text/event-stream":
            self._look_at_frames(piece)
        elif self._media_type == _JSON and len(self._answer) < _LARGEST:
            self._answer += piece
            if (
                last
                and len(self._answer) < _LARGEST
                and self._route is not None
                and self._route.gives is not None
            ):
                self._check(self._route, str(self._status), self._answer)
                if self._status == 200:
                    self._check(self._route, "request", self._request)

    def _look_at_frames(self, piece: bytes) -> None:
        self._answer += piece
        *frames, self._answer = self._answer.split(b"\n\n")
        for frame in frames:
            data = [line[5:] for line in frame.split(b"\n") if line.startswith(b"data:")]
            if data and self._route is not None:
                self._check(self._route, f"{self._status}:item", b"\n".join(data))

    def _check(self, route: Route, part: str, body: bytes) -> None:
        check = validator(route.method, route.path, part)
        if check is None or not body.strip():
            return
        value = parse(body) if part == "request" else msgspec.json.decode(body)
        for error in check.iter_errors(value):
            where = "/".join(str(step) for step in error.instance_path)
            self._fault(f"{part} does not conform at {where or 'its root'}: {error.message[:300]}")
            break


def _route(scope: Scope) -> Route | None:
    try:
        return _TABLE.find(scope["method"], scope["path"])[0]
    except (NotFound, MethodNotAllowed):
        return None
