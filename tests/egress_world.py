"""An egress listener on a real database, sessions with work items, and clients that speak as workers do."""

import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h11
import msgspec

from corral.gateway.addresses import Reach, Resolver
from corral.gateway.certificates import Authority, open_authority, upstream_context
from corral.gateway.egress import EgressLimits, EgressListener
from corral.gateway.egress_log import EgressLog
from corral.gateway.egress_rows import EgressRows
from corral.gateway.keyring import Keys
from corral.gateway.policy import Walls
from corral.server import listen
from corral.settings import Brain, Gateway, Inference, Settings, Vault
from corral.testing import ScriptedModel
from corral.vault.keys import PrivateKey
from corral.wire.egress import GREETING
from corral.wire.placeholders import placeholder
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.upstream_servers import TestAuthority

LOOPBACK = "127.0.0.1"


@dataclass
class EgressWorld:
    """A server, a listener, and the authority of the world outside.

    names: what the resolver knows. slow: set it, and names that begin with `slow` resolve. looked_up: every
    name that was asked for.
    """

    corral: Corral
    another_listener: Callable[[], EgressListener]
    authority: Authority
    log: EgressLog
    address: tuple[str, int]
    outside: TestAuthority
    names: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    slow: asyncio.Event = field(default_factory=asyncio.Event)
    looked_up: list[str] = field(default_factory=list[str])
    clients: list["Client"] = field(default_factory=list["Client"])

    async def environment(self, networking: dict[str, Any] | None = None) -> str:
        """A cloud environment with this networking."""
        config: Any = {"type": "cloud", **({"networking": networking} if networking else {})}
        return (await self.corral.client.beta.environments.create(name="walled", config=config)).id

    async def session(self, networking: dict[str, Any] | None = None, **fields: Any) -> SessionUnderTest:
        """A session on an environment with this networking."""
        agent = fields.pop("agent", None) or await self.corral.agent()
        made = await self.corral.client.beta.sessions.create(
            agent=agent, environment_id=await self.environment(networking), **fields
        )
        return SessionUnderTest(self.corral, made.id)

    async def token(self, session: SessionUnderTest) -> str:
        """The token of the session's work item, claimed now."""
        environment_id = (await session.retrieve()).environment_id
        await self.corral.services.work.ensure(session.id, environment_id)
        item = await self.corral.services.work.poll(environment_id)
        assert item is not None
        assert item.secret is not None
        assert item.data.id == session.id
        payload = base64.urlsafe_b64decode(item.secret + "=" * (-len(item.secret) % 4))
        return str(msgspec.json.decode(payload)["sessions_token"])

    async def variable(self, value: str, hosts: Sequence[str], **fields: Any) -> "Variable":
        """A vault with one secret of type environment_variable, that may be sent to these hosts."""
        auth: Any = {
            "type": "environment_variable",
            "secret_name": "API_TOKEN",
            "secret_value": value,
            "networking": {"type": "limited", "allowed_hosts": list(hosts)},
            **fields,
        }
        vaults = self.corral.client.beta.vaults
        vault = await vaults.create(display_name="one")
        credential = await vaults.credentials.create(vault.id, auth=auth)
        return Variable(vault.id, credential.id)

    async def client(self, token: str | None = None, **rules: Any) -> "Client":
        """A connection of a sandbox, of a new session unless a token is given."""
        if token is None:
            token = await self.token(await self.session(rules.get("networking")))
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(GREETING + token.encode() + b"\n")
        client = Client(reader, writer, self.authority)
        self.clients.append(client)
        return client

    async def decisions(self, session_id: str) -> list[dict[str, Any]]:
        """What has been written about a session, once everything noted is."""
        while self.log.pending:
            await asyncio.sleep(0.01)
        return list(
            await self.corral.database.fetch(
                "select host, port, decision, reason, requests from egress_decisions"
                " where session_id = %s order by host, port, decision, reason",
                (session_id,),
            )
        )


@dataclass(frozen=True)
class Variable:
    """A credential and its vault."""

    vault_id: str
    id: str

    def inside(self, session: SessionUnderTest) -> str:
        """What stands for its secret in the session's sandbox."""
        return placeholder(session.id, self.id)


@dataclass(frozen=True)
class Reply:
    """An answer as a client gets it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def told(self) -> Any:
        """What the server says it was asked."""
        return msgspec.json.decode(self.body)


class Client:
    """A proxy's client, exact to the byte where a test needs it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: Authority
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._authority = authority
        self._h11 = h11.Connection(h11.CLIENT)

    def trusting(self) -> ssl.SSLContext:
        """A client that trusts the deployment's authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self._authority.certificate)
        return context

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def connect(
        self, authority: str, *, server_name: str | None = None, host: str | None = None, tls: bool = True
    ) -> Reply:
        """CONNECT, and shake hands if that is answered with 200."""
        await self.send(f"CONNECT {authority} HTTP/1.1\r\nHost: {host or authority}\r\n\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 200:
            return Reply(status, {}, await self.reader.read())
        if tls:
            name = server_name or authority.rpartition(":")[0].strip("[]")
            await self.writer.start_tls(self.trusting(), server_hostname=name)
        return Reply(200, {}, b"")

    async def ask(
        self,
        method: str,
        target: str,
        *,
        host: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        chunks: Sequence[bytes] = (),
    ) -> Reply:
        """One request and its answer."""
        sent = [("host", host), *headers]
        if chunks:
            sent.append(("transfer-encoding", "chunked"))
        elif body is not None:
            sent.append(("content-length", str(len(body))))
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        self._write(h11.Request(method=method, target=target, headers=sent))
        for piece in chunks or ([body] if body else []):
            self._write(h11.Data(data=piece))
            await self.writer.drain()
        self._write(h11.EndOfMessage())
        return await self.reply()

    async def reply(self) -> Reply:
        """The next answer."""
        head, body = None, b""
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                self._h11.receive_data(await self.reader.read(65536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                named = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                return Reply(head.status_code, named, body)
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("the gateway has closed the connection")

    def _write(self, event: h11.Event) -> None:
        self.writer.write(self._h11.send(event) or b"")

    async def close(self) -> None:
        """Close the connection, whether or not the gateway takes what was sent last."""
        self.writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self.writer.wait_closed()
        except (OSError, ssl.SSLError):
            self.writer.transport.abort()


def corral_settings(model: ScriptedModel, key: PrivateKey, gateway: Gateway) -> Settings:
    """The settings of a server that can seal."""
    return Settings(
        inference=Inference(
            provider="gateway",
            base_url=model.base_url,
            retry_backoff_seconds=0.01,
            retry_backoff_max_seconds=0.05,
        ),
        brain=Brain(lease_seconds=2.0),
        vault=Vault(public_key=key.public.text),
        gateway=gateway,
    )


@asynccontextmanager
async def egress_world(
    database_url: str,
    model: ScriptedModel,
    folder: Path,
    *,
    internal: Sequence[str] = ("*.internal.example",),
    by_environment: dict[str, list[str]] | None = None,
    walls: Walls | None = None,
    limits: EgressLimits | None = None,
    gateway: Gateway | None = None,
    told: bool = True,
    told_host: str = LOOPBACK,
    outside: TestAuthority | None = None,
) -> AsyncGenerator[EgressWorld]:
    """All of it. Names below internal.example lead to the loopback unless `names` says otherwise.

    told: whether the server tells workers of the listener, and by which host.
    """
    names: dict[str, list[str]] = {}
    looked_up: list[str] = []
    slow = asyncio.Event()

    async def resolve(name: str, port: int) -> list[str]:
        looked_up.append(name)
        if name.startswith("slow"):
            await slow.wait()
        if name in names:
            return names[name]
        if name.endswith(".example"):
            return [LOOPBACK]
        raise OSError("no such name")

    resolver: Resolver = resolve
    key = PrivateKey.generate()
    outside = outside or TestAuthority(folder)
    door = listen(LOOPBACK, 0)
    address: tuple[str, int] = door.getsockname()
    gateway = gateway or Gateway()
    if told:
        gateway = msgspec.structs.replace(gateway, egress_address=f"{told_host}:{address[1]}")
    async with running_corral(database_url, model, settings=corral_settings(model, key, gateway)) as corral:
        keys = Keys(lambda: [key])
        authority = await open_authority(corral.database, keys.ring, key.public)
        async with EgressLog(corral.database) as log:
            another = partial(
                EgressListener,
                rows=EgressRows(corral.database, keys),
                log=log,
                authority=authority,
                reach=Reach(internal, resolver=resolver),
                internal_by_environment=by_environment or {},
                walls=walls or Walls(),
                public=upstream_context(),
                internal=upstream_context(outside.bundle),
                limits=limits,
            )
            async with another() as listener:
                await listener.listen(door)
                world = EgressWorld(corral, another, authority, log, address, outside, names, slow, looked_up)
                try:
                    yield world
                finally:
                    for client in world.clients:
                        await client.close()
