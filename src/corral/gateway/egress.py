"""The egress listener: the only way out of a sandbox (contract sections 7.2 and 15.2).

A worker connects for its sandbox and says a line first, `CORRAL-EGRESS/1 <token of its work item>`; what
comes after it are the sandbox's own bytes, which are taken for those of a client of an HTTP proxy. TLS within
a CONNECT is always ended here, so that the host that was asked for, the name of the TLS handshake, the Host
header and the server's certificate are one and the same.
"""

import asyncio
import socket
import ssl
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

import structlog

from corral.gateway.addresses import Reach
from corral.gateway.certificates import Authority
from corral.gateway.channel import Channel, ChannelClosed, StreamChannel, TlsChannel, starts_tls
from corral.gateway.egress_clearance import House
from corral.gateway.egress_log import EgressLog
from corral.gateway.egress_proxy import EgressProxy
from corral.gateway.egress_rows import EgressRows
from corral.gateway.http_sides import Times
from corral.gateway.policy import Walls
from corral.hands.work_token import TokenHash, token_hash
from corral.wire.egress import GREETING, LINK_NAME

_LONGEST_GREETING: Final = 512
_CLOSE_SECONDS: Final = 2.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressLimits:
    """What a gateway takes.

    connections: at the same time, of all sessions. of_session: of one. body_bytes: of one request or answer.
    rewritten_bytes: of a body with a stated length that is looked through for placeholders. recheck: seconds
    after which a connection whose work item has ended is broken off at the latest. greeting: seconds that a
    worker may take to say whose connection it brings.
    """

    connections: int = 4096
    of_session: int = 128
    body_bytes: int = 16 * 1024**3
    rewritten_bytes: int = 8 * 1024**2
    recheck: float = 5.0
    greeting: float = 10.0
    times: Times = field(default_factory=Times)


class EgressListener:
    """Accepts workers' connections. Use it with ``async with``; it ends them all before it is left."""

    def __init__(
        self,
        *,
        rows: EgressRows,
        log: EgressLog,
        authority: Authority,
        reach: Reach,
        internal_by_environment: dict[str, list[str]],
        walls: Walls,
        public: ssl.SSLContext,
        internal: ssl.SSLContext,
        limits: EgressLimits | None = None,
    ) -> None:
        self._limits = limits or EgressLimits()
        self._rows = rows
        self._log = log
        self._authority = authority
        self._house = House(
            rows=rows,
            log=log,
            authority=authority,
            reach=reach,
            internal_by_environment=internal_by_environment,
            walls=walls,
            public=public,
            internal=internal,
            times=self._limits.times,
            body_bytes=self._limits.body_bytes,
            rewritten_bytes=self._limits.rewritten_bytes,
        )
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Task[None], TokenHash | None] = {}
        self._of_session = Counter[str]()

    async def __aenter__(self) -> "EgressListener":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen(self, listener: socket.socket) -> None:
        """Begin to accept on a listening socket, which is closed in the end."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=64 * 1024)
        self._watching = asyncio.create_task(self._watch(), name="egress tokens")

    async def close(self) -> None:
        """Accept no more, and break off what is open."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = [task for task in (self._watching, *self._connections) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        if server is not None:
            await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer), name="egress connection")
        self._connections[task] = None
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link: Channel = StreamChannel(reader, writer)
        try:
            if len(self._connections) <= self._limits.connections:
                async with asyncio.timeout(self._limits.greeting):
                    if await starts_tls(link):
                        link = await TlsChannel.accept(link, self._authority.leaf(LINK_NAME))
                    elif not comes_from_here(writer):
                        _log.warning("egress connection refused", reason="not from here, and without TLS")
                        raise ChannelClosed("a worker on another machine has to use TLS")
                    token = await greeting(link)
                await self._serve(link, token)
            else:
                _log.warning("egress connection refused", reason="gateway.egress_connections is reached")
        except (ChannelClosed, TimeoutError) as error:
            _log.debug("egress connection ended", reason=str(error))
        except Exception:
            _log.exception("an egress connection failed")
        finally:
            await link.close()

    async def _serve(self, link: Channel, token: TokenHash) -> None:
        task = asyncio.current_task()
        assert task is not None
        session = await self._rows.session(token)
        if session is None:
            await link.write(
                b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-type: text/plain\r\n\r\n"
                b"this sandbox has no access to the network: its work item has ended\n"
            )
            return
        if self._of_session[session.id] >= self._limits.of_session:
            await link.write(
                b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\r\n"
                b"too many connections of this session are open\n"
            )
            return
        self._connections[task] = token
        self._of_session[session.id] += 1
        try:
            await EgressProxy(self._house, link, token, session.id).serve()
        finally:
            self._of_session[session.id] -= 1
            self._of_session += Counter()  # forget those that have none

    async def _watch(self) -> None:
        """Break off the connections of items that have ended: what is under way must not outlive them."""
        while True:
            await asyncio.sleep(self._limits.recheck)
            tokens = {token for token in self._connections.values() if token is not None}
            if not tokens:
                continue
            try:
                live = await self._rows.live(list(tokens))
            except Exception as error:
                _log.warning("egress tokens could not be checked", reason=str(error))
                continue
            for task, token in list(self._connections.items()):
                if token is not None and token not in live:
                    task.cancel()


def comes_from_here(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is on this machine, so that nothing between can be read."""
    peer = writer.get_extra_info("peername")
    if not peer:
        return False  # it has left already
    address = ip_address(str(peer[0]).partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


async def greeting(link: Channel) -> TokenHash:
    """The hash of the token that a worker says first; what follows it is put back.

    Raises:
        ChannelClosed: it says something else.
    """
    said = b""
    while b"\n" not in said:
        data = await link.read()
        said += data
        if not data or len(said) > 64 * 1024 or not (GREETING.startswith(said[: len(GREETING)])):
            raise ChannelClosed("the connection did not begin with a worker's greeting")
        if b"\n" not in said and len(said) > _LONGEST_GREETING:
            raise ChannelClosed("the greeting is too long")
    line, _, rest = said.partition(b"\n")
    if len(line) > _LONGEST_GREETING or not line.startswith(GREETING):
        raise ChannelClosed("the connection did not begin with a worker's greeting")
    if rest:
        link.unread(rest)
    return token_hash(line.removeprefix(GREETING).strip().decode("ascii", "replace"))
