"""Many readers of streams that cost the test next to nothing: sockets that count what they are sent."""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import httpx


class Reader(asyncio.Protocol):
    """One stream. It counts the events of one type, and keeps the rest of nothing."""

    def __init__(self, path: str, key: str, mark: bytes) -> None:
        self._request = f"GET {path} HTTP/1.1\r\nhost: test\r\nx-api-key: {key}\r\n\r\n".encode()
        self._mark = b"event: " + mark + b"\n"
        self._tail = b""
        self._changed = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None
        self.status = 0
        self.bytes = 0
        self.marks = 0
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count."""
        if not self.status:
            self.status = int(data[9:12])
        self.bytes += len(data)
        # What is cut in two by the network is counted when its second half comes.
        text = self._tail + data
        self.marks += text.count(self._mark)
        end = text.rfind(b"\n") + 1
        self._tail = text[end:]
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.open = False
        self._changed.set()

    async def until_marks(self, count: int) -> None:
        """Returns once so many events of the type have come; fails if the stream ends before."""
        while self.marks < count:
            assert self.open, f"the stream ended after {self.marks} of {count}"
            self._changed.clear()
            await self._changed.wait()

    async def until_open(self) -> None:
        """Returns once the stream has answered."""
        while not self.status:
            assert self.open, "refused"
            self._changed.clear()
            await self._changed.wait()
        assert self.status == 200, self.status

    def close(self) -> None:
        """Hang up, at once."""
        if self._transport is not None:
            self._transport.abort()


class Crowd:
    """Streams of one server. Use as an async context manager."""

    def __init__(self, base_url: str, key: str, *, at_once: int = 100) -> None:
        url = httpx.URL(base_url)
        self._key = key
        self._host, self._port = url.host, url.port or 80
        self._places = asyncio.Semaphore(at_once)
        self.readers: list[Reader] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()

    async def join(self, paths: Iterable[str], mark: str = "session.status_idle") -> list[Reader]:
        """Open a stream of each path; returns once all have answered."""
        joined = await asyncio.gather(*(self._open(path, mark.encode()) for path in paths))
        self.readers += joined
        return joined

    def hang_up(self) -> None:
        """All leave, without a word."""
        for reader in self.readers:
            reader.close()
        self.readers.clear()

    async def _open(self, path: str, mark: bytes) -> Reader:
        async with self._places:
            loop, key = asyncio.get_running_loop(), self._key
            _, reader = await loop.create_connection(lambda: Reader(path, key, mark), self._host, self._port)
            await reader.until_open()
            return reader


def stream_of(session_id: str) -> str:
    """The path of a session's stream."""
    return f"/v1/sessions/{session_id}/events/stream"
