"""A machine of its own for a process: a network namespace whose one cable can be pulled out and put back."""

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@cache
def why_not() -> str | None:
    """Why this machine cannot make network namespaces; None if it can."""
    if _IP is None:
        return "there is no `ip` (apt-get install iproute2)"
    name = f"corral-{secrets.token_hex(3)}"
    made = subprocess.run([_IP, "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run([_IP, "netns", "del", name], check=True)
    return None


@dataclass(frozen=True)
class Machine:
    """A namespace that reaches this process at `host`, and is reached at `address`, while its cable is in."""

    name: str
    cable: str
    host: str
    address: str

    @property
    def launcher(self) -> tuple[str, ...]:
        """The command that runs another one there."""
        assert _IP is not None
        return _IP, "netns", "exec", self.name

    async def cut(self) -> None:
        """Pull the cable: nothing goes through, and nobody is told."""
        await _ip("link", "set", self.cable, "down")

    async def mend(self) -> None:
        """Put the cable back."""
        await _ip("link", "set", self.cable, "up")


@asynccontextmanager
async def machine() -> AsyncGenerator[Machine]:
    """A machine beside this one."""
    mark = secrets.token_hex(3)
    subnet = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}.{4 * secrets.randbelow(63)}"
    stem, last = subnet.rsplit(".", 1)
    one = Machine(f"corral-{mark}", f"ch{mark}", f"{stem}.{int(last) + 1}", f"{stem}.{int(last) + 2}")
    inside = f"cn{mark}"
    await _ip("netns", "add", one.name)
    try:
        await _ip("link", "add", one.cable, "type", "veth", "peer", "name", inside, "netns", one.name)
        await _ip("address", "add", f"{one.host}/30", "dev", one.cable)
        await _ip("link", "set", one.cable, "up")
        for command in (
            ("address", "add", f"{one.address}/30", "dev", inside),
            ("link", "set", inside, "up"),
            ("link", "set", "lo", "up"),
        ):
            await _ip("-netns", one.name, *command)
        yield one
    finally:
        await _ip("netns", "del", one.name)


@asynccontextmanager
async def passed_on(host: str, *, path: str | None = None, port: int = 0) -> AsyncGenerator[int]:
    """The port at which `host` leads to a Unix socket, or to a port of the loopback."""
    ways: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ways.add(task)
        try:
            there = asyncio.open_unix_connection(path) if path else asyncio.open_connection("127.0.0.1", port)
            there_reader, there_writer = await there
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, there_writer))
                    both.create_task(_pump(there_reader, writer))
            finally:
                there_writer.close()
        except* (OSError, asyncio.CancelledError):
            pass  # one of the two is gone, which the other one sees
        finally:
            writer.close()
            ways.discard(task)

    server = await asyncio.start_server(accept, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for way in list(ways):
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


@asynccontextmanager
async def database_at(host: str, url: str, **parameters: str) -> AsyncGenerator[str]:
    """The address of the test's database as seen from a machine with this host, with these parameters."""
    parts = conninfo_to_dict(url)
    path = f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}"
    async with passed_on(host, path=path) as port:
        yield make_conninfo(url, host=host, port=str(port), **parameters)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _ip(*arguments: str) -> None:
    assert _IP is not None
    process = await asyncio.create_subprocess_exec(_IP, *arguments, stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()
    assert process.returncode == 0, f"ip {' '.join(arguments)}: {complaint.decode()}"
