"""Serves an ASGI application on a free port of this machine."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn
from starlette.applications import Starlette

_LOOK_SECONDS: Final = 0.02
_GRACE_SECONDS: Final = 2


class NotServed(Exception):
    """The application's server ended before it was ready."""


@asynccontextmanager
async def served(app: Starlette) -> AsyncGenerator[str]:
    """The address of the application; it ends with the block."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="error",
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.wait({serving}, timeout=_LOOK_SECONDS)
            if serving.done():
                await serving
                raise NotServed("nothing listens on 127.0.0.1")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
