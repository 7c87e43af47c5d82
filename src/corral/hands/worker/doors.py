"""The doors of sandboxes: a Unix socket for each, behind which the worker takes connections to the gateway.

The token of the work item is said here, outside of the sandbox, which so never has one. Between two work
items of a session its door stays where it is and lets nothing through.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import structlog

from corral.hands.sandbox.access import Identity
from corral.wire.egress import GREETING, LINK_NAME, Way
from corral.wire.secret import Secret

_CHUNK: Final = 64 * 1024
_CONNECT_SECONDS: Final = 10.0
_CONNECTIONS: Final = 128
_CLOSE_SECONDS: Final = 1.0
_CLOSED: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"x-corral-egress: failed\r\n\r\n"
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Door:
    """One session's door at `path`. `token`: what lets it through; None while nothing may pass."""

    def __init__(self, session_id: str, path: Path, way: Way) -> None:
        self.path = path
        self.token: Secret | None = None
        self._session_id = session_id
        self._way = way
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to accept. Raises OSError."""
        if not self._way.is_local:
            self._tls = ssl.create_default_context(cadata=self._way.certificate)
        listener = await asyncio.to_thread(_listener, self.path)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener)

    def leads(self, way: Way) -> bool:
        """Whether it leads there."""
        return way == self._way

    def shut(self) -> None:
        """Let nothing pass any more, until it gets another token."""
        self.token = None
        for task in self._passing:
            task.cancel()

    async def close(self) -> None:
        """Take the door away."""
        self.shut()
        if self._passing:
            await asyncio.wait(self._passing, timeout=_CLOSE_SECONDS)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await asyncio.to_thread(self.path.unlink, missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer), name=f"egress {self._session_id}")
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        try:
            token = self.token
            if token is None or len(self._passing) > _CONNECTIONS:
                writer.write(_CLOSED + b"this sandbox has no way out at the moment; try again\n")
                return
            async with asyncio.timeout(_CONNECT_SECONDS):
                answers, onward = await asyncio.open_connection(
                    self._way.host,
                    self._way.port,
                    ssl=self._tls,
                    server_hostname=LINK_NAME if self._tls is not None else None,
                )
            onward.write(GREETING + token.reveal().encode("ascii") + b"\n")
            await _both(_copied(reader, onward), _copied(answers, writer))
        except (OSError, TimeoutError) as error:
            if onward is None:
                _log.warning("the gateway cannot be reached", address=self._way.address, reason=str(error))
                writer.write(_CLOSED + b"the gateway cannot be reached\n")
        finally:
            for end in (writer, onward):
                if end is not None:
                    await _closed(end)


class Doors:
    """The doors of a worker's sandboxes, in a folder of their own, by session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._doors: dict[str, Door] = {}

    async def open(self, session_id: str, way: Way, token: Secret) -> Path:
        """The door of a session, open for whoever has this token. Raises OSError."""
        door = self._doors.get(session_id)
        if door is not None and not door.leads(way):
            await self.close(session_id)
            door = None
        if door is None:
            await asyncio.to_thread(_make_folder, self._folder)
            door = Door(session_id, self._folder / f"{session_id}.sock", way)
            await door.open()
            self._doors[session_id] = door
        door.token = token
        return door.path

    def admit(self, session_id: str, token: Secret) -> None:
        """Let the session's sandbox out with a new token, if it has a door."""
        if session_id in self._doors:
            self._doors[session_id].token = token

    def dismiss(self, session_id: str, token: Secret) -> None:
        """Let nothing out with this token any more."""
        door = self._doors.get(session_id)
        if door is not None and door.token == token:
            door.shut()

    async def close(self, session_id: str) -> None:
        """Take a session's door away, if it has one."""
        door = self._doors.pop(session_id, None)
        if door is not None:
            await door.close()

    async def close_all(self) -> None:
        """Take all doors away."""
        for session_id in list(self._doors):
            await self.close(session_id)


async def _both(*flows: Coroutine[Any, Any, None]) -> None:
    """Run both directions to their ends; one that breaks ends the other."""
    tasks = [asyncio.create_task(flow) for flow in flows]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
    else:
        target.close()


async def _closed(end: asyncio.StreamWriter) -> None:
    end.close()
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await end.wait_closed()
    except (OSError, TimeoutError):
        end.transport.abort()


def _make_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    # The sandbox's user passes through, and sees nothing.
    folder.chmod(0o711)


def _listener(path: Path) -> socket.socket:
    """A listening socket at a path of any length, which the sandbox's user alone can connect to."""
    identity = Identity.for_sandboxes()
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # A socket's address has 107 bytes at most; by way of the folder's descriptor any folder will do.
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o600)
        if identity.changed:
            os.chown(path, identity.uid, identity.gid)
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener
