"""What a sandbox may try on its way out, and that it gets nothing."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from corral.testing import ScriptedModel
from tests.e2e.conftest import model as model
from tests.egress_world import EgressWorld, egress_world
from tests.upstream_servers import upstream

HOST = "api.internal.example"
LIMITED = {"type": "limited", "allowed_hosts": [HOST]}
OPEN = {"type": "unrestricted"}


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway that may reach names below internal.example."""
    async with egress_world(database_url, model, tmp_path) as world:
        yield world


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "0177.0.0.1",
        "2130706433",
        "0x7f000001",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "10.0.0.1",
        "rebound.example",
        "user@127.0.0.1",
        "other.internal.example:22@127.0.0.1",
    ],
)
async def test_no_address_of_ours_is_reached_in_any_spelling(world: EgressWorld, host: str) -> None:
    async with upstream() as server:
        client = await world.client(networking=OPEN)
        reply = await client.connect(f"{host}:{server.port}", tls=False)
        assert reply.status in (400, 403)
        assert server.connections == 0


async def test_a_port_of_the_internet_that_is_not_named_is_refused(world: EgressWorld) -> None:
    world.names["public.example"] = ["93.184.215.14"]
    client = await world.client(networking=OPEN)
    reply = await client.connect("public.example:25", tls=False)
    assert (reply.status, "gateway.egress_ports" in reply.text) == (403, True)


async def test_the_host_header_must_name_the_host_of_the_tunnel(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        await client.connect(f"{HOST}:{server.port}")
        assert (await client.ask("GET", "/", host="other.internal.example")).status == 421
        assert server.asked == []


async def test_the_name_of_the_handshake_must_be_that_of_the_tunnel(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.connect(f"{HOST}:{server.port}", server_name="other.internal.example")
        assert server.asked == []


@pytest.mark.parametrize("expired", [False, True])
async def test_a_server_with_the_wrong_certificate_gets_nothing(world: EgressWorld, expired: bool) -> None:
    name = HOST if expired else "other.internal.example"
    async with upstream(world.outside.context(name, expired=expired)) as server:
        client = await world.client(networking=LIMITED)
        await client.connect(f"{HOST}:{server.port}")
        reply = await client.ask("GET", "/", host=f"{HOST}:{server.port}")
        assert (reply.status, "certificate" in reply.text) == (502, True)
        assert server.asked == []


async def test_a_redirect_is_not_followed_for_the_sandbox(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        await client.connect(f"{HOST}:{server.port}")
        assert (await client.ask("GET", "/redirect", host=f"{HOST}:{server.port}")).status == 302
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "X: " + "a" * 70_000 + "\r\n",
        "Host: other.internal.example\r\n",
    ],
)
async def test_requests_that_could_be_read_in_two_ways_are_refused(world: EgressWorld, headers: str) -> None:
    async with upstream() as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        await client.send(
            f"POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n{headers}\r\n0\r\n\r\n".encode()
        )
        assert (await client.reader.readline()).split()[1] in (b"400", b"431", b"501")
        assert server.asked == []


async def test_the_token_of_an_ended_work_item_opens_nothing(world: EgressWorld) -> None:
    session = await world.session(OPEN)
    token = await world.token(session)
    await world.corral.client.beta.sessions.archive(session.id)
    client = await world.client(token)
    assert b"403" in await client.reader.read()


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b"CORRAL-EGRESS/1 " + b"x" * 600, b"\n"])
async def test_whoever_does_not_greet_as_a_worker_is_shown_the_door(
    world: EgressWorld, greeting: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*world.address)
    writer.write(greeting)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_name_that_may_not_be_reached_is_not_even_looked_up(world: EgressWorld) -> None:
    """Nothing can be told to an attacker's name server by asking for names that spell it out."""
    client = await world.client(networking=LIMITED)
    for name in ("c2VjcmV0.attacker.example", f"{HOST}.attacker.example", "x.other.internal.example"):
        assert (await client.connect(f"{name}:443", tls=False)).status == 403
        client = await world.client(networking=LIMITED)
        reply = await client.ask("GET", f"http://{name}/", host=name)
        assert (reply.status, "allowed_hosts" in reply.text) == (403, True)
        client = await world.client(networking=LIMITED)
    assert world.looked_up == []
