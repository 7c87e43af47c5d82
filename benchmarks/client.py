"""A small HTTP client: what a benchmark's client costs is taken away from the server that it measures.

One request at a time on each kept connection; further connections are made as they are needed.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

SECONDS = 120.0
"""How long anything may take before the benchmark gives up."""


class Refused(Exception):
    """An answer that is not a success."""


class _Connection(asyncio.Protocol):
    """One connection; `on_body` is told the pieces of an answer's body, and None at its end."""

    def __init__(self) -> None:
        self.status = 0
        self.answered = asyncio.Event()
        """Set once the answer's head has come, or the connection is gone."""
        self.on_body: Callable[[bytes | None], None] = lambda _: None
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self.answered.set()
        self.on_body(None)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.answered.set()

    def on_message_complete(self) -> None:
        self.on_body(None)

    def send(self, data: bytes) -> None:
        """Write a request."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.answered.clear()
        self._transport.write(data)

    def close(self) -> None:
        """Close it at once."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()


class Client:
    """Talks to one server, as an async context manager."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        where = urlsplit(base_url)
        assert where.hostname is not None
        assert where.port is not None
        self.base_url = base_url
        self._at = (where.hostname, where.port)
        given = {"host": where.netloc, **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._idle: list[_Connection] = []
        self._streams: set[Stream] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for stream in list(self._streams):
            stream.close()
        while self._idle:
            self._idle.pop().close()

    async def get(self, path: str) -> Any:
        """The decoded answer to a GET. Raises `Refused` unless it is a success."""
        return json.loads(await self.ask("GET", path))

    async def post(self, path: str, body: Any) -> Any:
        """The decoded answer to a POST of JSON. Raises `Refused` unless it is a success."""
        return json.loads(await self.ask("POST", path, json.dumps(body).encode()))

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of an answer. Raises `Refused` unless it is a success."""
        connection = await self._connection()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parts: list[bytes] = []

        def on_body(part: bytes | None) -> None:
            if part is not None:
                parts.append(part)
            elif not done.done():
                done.set_result(None)

        connection.on_body = on_body
        connection.send(self._request(method, path, body))
        async with asyncio.timeout(SECONDS):
            await done
        answer = b"".join(parts)
        if connection.open and connection.status:
            self._idle.append(connection)
        if not 200 <= connection.status < 300:
            raise Refused(f"{method} {path}: {connection.status} {answer[:500].decode(errors='replace')}")
        return answer

    async def stream(self, path: str, *, body: bytes = b"", method: str = "GET") -> "Stream":
        """An open stream of server-sent events; its answer's head has been read."""
        connection = await self._connection()
        stream = Stream(connection, self._streams)
        connection.on_body = stream.on_body
        connection.send(self._request(method, path, body))
        async with asyncio.timeout(SECONDS):
            await connection.answered.wait()
        if connection.status != 200:
            raise Refused(f"{method} {path}: {connection.status}")
        self._streams.add(stream)
        return stream

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        content = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        return f"{method} {path} HTTP/1.1\r\n{self._head}{content}\r\n".encode() + body

    async def _connection(self) -> _Connection:
        while self._idle:
            if (kept := self._idle.pop()).open:
                return kept
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, *self._at)
        return connection


class Stream:
    """Server-sent events as they come: each with the moment of its arrival (`time.perf_counter`)."""

    def __init__(self, connection: _Connection, streams: "set[Stream]") -> None:
        self.frames: list[tuple[float, bytes]] = []
        self.counted: dict[bytes, int] = {}
        """Put a text in, and the frames that hold it are counted here instead of kept."""
        self._connection = connection
        self._streams = streams
        self._rest = b""
        self._changed = asyncio.Event()
        self._ended = False

    def on_body(self, part: bytes | None) -> None:
        """Take a piece of the answer; None is its end."""
        if part is None:
            self._ended = True
        elif self.counted:
            for text in self.counted:
                self.counted[text] += part.count(text)
        else:
            now = time.perf_counter()
            # Both line endings are allowed, and both are met.
            data = (self._rest + part).replace(b"\r\n", b"\n")
            *frames, self._rest = data.split(b"\n\n")
            self.frames += [(now, frame) for frame in frames if frame]
        self._changed.set()

    async def until(self, *texts: bytes) -> float:
        """When the first frame came that holds all `texts`; the frames up to it are dropped."""
        async with asyncio.timeout(SECONDS):
            while True:
                self._changed.clear()
                while self.frames:
                    at, frame = self.frames.pop(0)
                    if all(text in frame for text in texts):
                        return at
                if self._ended:
                    raise Refused(f"the stream ended before {texts}")
                await self._changed.wait()

    async def until_counted(self, text: bytes, count: int) -> None:
        """Returns once so many `counted` frames hold `text`."""
        async with asyncio.timeout(SECONDS):
            while self.counted[text] < count:
                if self._ended:
                    raise Refused(f"the stream ended before {text}")
                self._changed.clear()
                await self._changed.wait()

    def close(self) -> None:
        """Hang up."""
        self._streams.discard(self)
        self._connection.close()
