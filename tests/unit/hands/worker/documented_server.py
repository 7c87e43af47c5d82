"""A server that has the documented work API (contract section 12) and nothing else, no endpoint of Corral's
own. It holds one environment and one session, remembers every request, and answers as it is told.
"""

import asyncio
import base64
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from corral.server import listen, serving
from corral.settings import Worker as WorkerSettings
from corral.wire.secret import Secret

ENVIRONMENT = "env_1"
SESSION = "sesn_1"
KEY = "the-environment-key"
TOKEN = "the-sessions-token"
PAGE = 2


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    authorization: str


@dataclass
class DocumentedServer:
    """The server's state, and what a test does to it."""

    base_url: str = ""
    status: str = "running"
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    asked: list[Asked] = field(default_factory=list[Asked])
    posts: deque[int] = field(default_factory=deque[int])
    """Statuses that the next posted results are answered with, in place of 200."""
    beats: deque[dict[str, Any] | int] = field(default_factory=deque[dict[str, Any] | int])
    """What the next heartbeats are answered with: fields of the answer, or an error's status."""
    key_is_good: bool = True
    says_it_is_corral: bool = False
    session_answers: asyncio.Event = field(default_factory=asyncio.Event)
    _queue: deque[str] = field(default_factory=deque[str])
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _streams: list[asyncio.Queue[dict[str, Any] | None]] = field(
        default_factory=list[asyncio.Queue[dict[str, Any] | None]]
    )
    _beat: int = 0

    def __post_init__(self) -> None:
        self.session_answers.set()

    def offers(self, work_id: str = "work_1") -> None:
        """Queue a work item for the session."""
        self._queue.append(work_id)

    def emits(self, type: str, **fields: Any) -> str:
        """Append an event to the session's log and stream it; returns its id."""
        event = {"id": f"sevt_{len(self.events) + 1}", "type": type, **fields}
        self.events.append(event)
        for stream in self._streams:
            stream.put_nowait(event)
        return str(event["id"])

    def calls(self, name: str, permission: str = "allow", **input: Any) -> str:
        """The agent calls a tool."""
        return self.emits("agent.tool_use", name=name, input=input, evaluated_permission=permission)

    def goes_idle(self, reason: str = "end_turn") -> None:
        """The session goes idle."""
        self.emits("session.status_idle", stop_reason={"type": reason})

    def drops_streams(self) -> None:
        """Every open stream ends."""
        for stream in self._streams:
            stream.put_nowait(None)
        self._streams.clear()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; looked at after every request."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(holds)

    async def asked_for(self, ending: str, times: int = 1) -> Asked:
        """Wait until requests for a path came in so many times; the last of them."""
        await self.until(lambda: len(self.requests(ending)) >= times)
        return self.requests(ending)[times - 1]

    def requests(self, ending: str) -> list[Asked]:
        """The requests for a path that ends so."""
        return [asked for asked in self.asked if asked.path.endswith(ending)]

    @property
    def results(self) -> list[dict[str, Any]]:
        """Every result that was posted, also what was refused, in order."""
        posted = [asked for asked in self.requests("/events") if asked.method == "POST"]
        return [event for asked in posted for event in msgspec.json.decode(asked.body)["events"]]

    async def result_of(self, call_id: str) -> dict[str, Any]:
        """Wait for the first result of a call."""
        await self.until(lambda: any(result["tool_use_id"] == call_id for result in self.results))
        return next(result for result in self.results if result["tool_use_id"] == call_id)

    def app(self) -> Starlette:
        """The application."""
        work = f"/v1/environments/{ENVIRONMENT}/work"
        session = f"/v1/sessions/{SESSION}"
        return Starlette(
            routes=[
                Route(f"{work}/poll", self._noted(self._poll)),
                Route(f"{work}/{{id}}/ack", self._noted(self._ok), methods=["POST"]),
                Route(f"{work}/{{id}}/heartbeat", self._noted(self._heartbeat), methods=["POST"]),
                Route(f"{work}/{{id}}/stop", self._noted(self._ok), methods=["POST"]),
                Route(session, self._noted(self._session)),
                Route(f"{session}/events", self._noted(self._list)),
                Route(f"{session}/events", self._noted(self._post), methods=["POST"]),
                Route(f"{session}/events/stream", self._noted(self._stream)),
                Route("/{path:path}", self._noted(self._unknown), methods=["GET", "POST"]),
            ]
        )

    def _noted(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def noted(request: Request) -> Response:
            asked = Asked(
                request.method,
                request.url.path,
                dict(request.query_params),
                await request.body(),
                request.headers.get("authorization", ""),
            )
            async with self._changed:
                self.asked.append(asked)
                self._changed.notify_all()
            response: Response = await handler(request)
            if self.says_it_is_corral:
                response.headers["corral-version"] = "0"
            return response

        return noted

    async def _poll(self, request: Request) -> Response:
        if not self.key_is_good or request.headers["authorization"] != f"Bearer {KEY}":
            return _error(401)
        if not self._queue:
            return JSONResponse(None)
        payload = msgspec.json.encode({"sessions_token": TOKEN})
        return JSONResponse(
            {
                "type": "work",
                "id": self._queue.popleft(),
                "environment_id": ENVIRONMENT,
                "data": {"type": "session", "id": SESSION},
                "state": "queued",
                "secret": base64.urlsafe_b64encode(payload).decode().rstrip("="),
            }
        )

    async def _ok(self, request: Request) -> Response:
        return JSONResponse({})

    async def _heartbeat(self, request: Request) -> Response:
        answer = self.beats.popleft() if self.beats else {}
        if isinstance(answer, int):
            return _error(answer)
        self._beat += 1
        standard = {
            "type": "work_heartbeat",
            "last_heartbeat": f"beat {self._beat}",
            "lease_extended": True,
            "state": "active",
            "ttl_seconds": 2,
        }
        return JSONResponse({**standard, **answer})

    async def _session(self, request: Request) -> Response:
        await self.session_answers.wait()
        return JSONResponse({"type": "session", "id": SESSION, "status": self.status, "archived_at": None})

    async def _list(self, request: Request) -> Response:
        wanted = request.query_params.getlist("types[]")
        events = [event for event in self.events if not wanted or event["type"] in wanted]
        start = int(request.query_params.get("page", "0"))
        end = start + PAGE
        return JSONResponse({"data": events[start:end], "next_page": str(end) if end < len(events) else None})

    async def _post(self, request: Request) -> Response:
        status = self.posts.popleft() if self.posts else 200
        if status != 200:
            return _error(status)
        body = msgspec.json.decode(await request.body())
        for event in body["events"]:
            self.emits(event["type"], **{name: value for name, value in event.items() if name != "type"})
        return JSONResponse({"data": []})

    async def _stream(self, request: Request) -> Response:
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._streams.append(queue)

        async def frames() -> AsyncGenerator[bytes]:
            yield b": hello\n\n"
            while (event := await queue.get()) is not None:
                yield b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event))

        return StreamingResponse(frames(), media_type="text/event-stream")

    async def _unknown(self, request: Request) -> Response:
        return _error(404)


def _error(status: int) -> Response:
    details = {"current_state": {"last_heartbeat": "another's", "state": "active"}} if status == 412 else None
    error = {"type": "error", "message": f"told to answer {status}", "details": details}
    return JSONResponse({"type": "error", "error": error}, status_code=status)


@asynccontextmanager
async def documented_server() -> AsyncGenerator[DocumentedServer]:
    """A running server."""
    server = DocumentedServer()
    async with serving(server.app(), listen("127.0.0.1", 0)) as base_url:
        server.base_url = base_url
        yield server
        server.drops_streams()
        server.session_answers.set()


def settings_for(server: DocumentedServer, folder: Any, **changes: Any) -> WorkerSettings:
    """The settings of a worker for the server's environment."""
    settings = WorkerSettings(
        base_url=server.base_url,
        environment_id=ENVIRONMENT,
        environment_key=Secret(KEY),
        sandbox="process",
        workspace_dir=str(folder / "workspaces"),
    )
    return msgspec.structs.replace(settings, **changes)
