"""A server for the proxy's own tests: makes whatever is asked for, and keeps every request."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_METHODS = ["GET", "POST", "DELETE"]


@dataclass(frozen=True)
class Heard:
    """A request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    content: bytes

    @property
    def name(self) -> str:
        """Its method and path."""
        return f"{self.method} {self.path}"

    @property
    def key(self) -> str:
        """Its credential."""
        return self.headers["authorization"].removeprefix("Bearer ")

    @property
    def body(self) -> Any:
        """Its JSON body."""
        return msgspec.json.decode(self.content)


@dataclass
class RecordingServer:
    """``answers`` are given by method and path; anything else is made with an id that counts up."""

    answers: dict[str, Response] = field(default_factory=dict[str, Response])
    heard: list[Heard] = field(default_factory=list[Heard])

    @property
    def last(self) -> Heard:
        """The last request: the test's own, after those that prepared it."""
        return self.heard[-1]

    @property
    def names(self) -> list[str]:
        """All requests, by method and path."""
        return [one.name for one in self.heard]

    @property
    def app(self) -> Starlette:
        """The server as an ASGI application."""
        return Starlette(routes=[Route("/{path:path}", self._serve, methods=_METHODS)])

    async def _serve(self, request: Request) -> Response:
        heard = Heard(
            request.method, request.url.path, request.url.query, dict(request.headers), await request.body()
        )
        self.heard.append(heard)
        return self.answers.get(heard.name) or json_answer(self._made(heard.path))

    def _made(self, path: str) -> dict[str, Any]:
        family = path.rstrip("/").rsplit("/", 1)[-1]
        thing = {"id": f"{family}_{len(self.heard)}", "status": "idle"}
        return {**thing, "data": [thing], "next_page": None}


def json_answer(value: Any, status: int = 200, **headers: str) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
