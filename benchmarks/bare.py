"""The least that Starlette can do, as a process: ``python -m benchmarks.bare PORT``.

``POST /events`` takes frames as JSON and hands them to every open ``GET /stream``. No log, no
authentication, no checks: what Corral's streams are measured against.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class Echo:
    """The application: whoever reads gets what anybody posts."""

    def __init__(self) -> None:
        self._readers: set[asyncio.Queue[bytes]] = set()
        self.app = Starlette(
            routes=[
                Route("/events", self._post, methods=["POST"]),
                Route("/stream", self._stream, methods=["GET"]),
            ]
        )

    async def _post(self, request: Request) -> Response:
        frames = "".join((await request.json())["frames"]).encode()
        for reader in self._readers:
            reader.put_nowait(frames)
        return JSONResponse({"readers": len(self._readers)})

    async def _stream(self, _: Request) -> Response:
        return StreamingResponse(self._frames(), media_type="text/event-stream")

    async def _frames(self) -> AsyncGenerator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._readers.add(queue)
        try:
            yield b":\n\n"
            while True:
                yield await queue.get()
        finally:
            self._readers.discard(queue)


def main() -> None:
    """Serve until the process is ended."""
    uvicorn.run(Echo().app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
