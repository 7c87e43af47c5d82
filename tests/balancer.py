"""A load balancer as simple as can be: TCP connections go in turn to the servers that say they are ready."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx

from tests.server_process import PATIENCE

_LOOK_SECONDS = 0.1


class Balancer:
    """Passes connections on to `servers` (base URLs), which may change at any time."""

    def __init__(self, probe: str) -> None:
        self._probe = probe
        self.servers: set[str] = set()
        self.base_url = ""
        self._ready: list[str] = []
        self._next = 0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def look(self) -> None:
        """Ask the servers, again and again, whether they are ready."""
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            while True:
                self._ready = [
                    url for url in sorted(self.servers) if await _is_ready(http, url + self._probe)
                ]
                await asyncio.sleep(_LOOK_SECONDS)

    async def until(self, *servers: str) -> None:
        """Returns once exactly these are given connections."""
        async with asyncio.timeout(PATIENCE):
            while set(self._ready) != set(servers):
                await asyncio.sleep(_LOOK_SECONDS / 2)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            if not self._ready:
                return
            self._next += 1
            url = httpx.URL(self._ready[self._next % len(self._ready)])
            there_reader, there_writer = await asyncio.open_connection(url.host, url.port)
            ways = [
                asyncio.create_task(_pump(reader, there_writer)),
                asyncio.create_task(_pump(there_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                there_writer.close()
        except OSError:
            pass  # the client's connection is closed, which is all that a balancer can tell
        finally:
            writer.close()
            del self._connections[task]

    async def close(self) -> None:
        """End all connections."""
        # Those that have been accepted in this very moment are to be among them.
        await asyncio.sleep(0)
        while self._connections:
            # Closed, not cancelled: who is cancelled while it connects leaves that connection open.
            for writer in self._connections.values():
                writer.close()
            await asyncio.wait(list(self._connections))


@asynccontextmanager
async def balancing(*servers: str, probe: str = "/readyz") -> AsyncGenerator[Balancer]:
    """A balancer at work on a free port of the loopback; `probe` is the path that it asks."""
    balancer = Balancer(probe)
    balancer.servers = set(servers)
    looking = asyncio.create_task(balancer.look())
    listener = await asyncio.start_server(balancer.accept, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    balancer.base_url = f"http://{host}:{port}"
    try:
        await balancer.until(*servers)
        yield balancer
    finally:
        listener.close()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await balancer.close()


async def _is_ready(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).is_success
    except httpx.HTTPError:
        return False


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return
