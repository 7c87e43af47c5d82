"""Runs the scripted model on a real socket, in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn

from corral.testing.app import create_app
from corral.testing.player import Player

GRACE_SECONDS = 2
"""How long open responses may take to end once the server stops."""


class _QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to whoever started it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Captures nothing."""
        yield


class RunningServer:
    """A scripted model that serves HTTP from `start` to `stop`."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._closing = asyncio.Event()
        self._server: _QuietServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> str:
        """Binds `host` and `port` (0 for a free one), starts serving and returns the base URL.

        Raises OSError when the address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio sets TCP_NODELAY on the connections.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        config = uvicorn.Config(
            create_app(self._player, self._closing),
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _QuietServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        return f"http://{shown}:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Lets open responses end (holds and delays are over at once), then closes the socket."""
        if self._server is None or self._task is None:
            return
        self._closing.set()
        self._player.holds.clear()
        self._server.should_exit = True
        await self._task
        self._server = self._task = None
