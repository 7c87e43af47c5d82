"""What a sandbox's connection to the gateway does for plain and encrypted requests, and what is told."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from corral.testing import ScriptedModel
from tests.egress_world import EgressWorld, egress_world
from tests.upstream_servers import upstream

HOST = "api.internal.example"
LIMITED = {"type": "limited", "allowed_hosts": [HOST]}


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway that may reach names below internal.example."""
    async with egress_world(database_url, model, tmp_path) as world:
        yield world


async def test_a_request_over_tls_reaches_an_allowed_host(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        assert (await client.connect(f"{HOST}:{server.port}")).status == 200
        reply = await client.ask("GET", "/a?b=c", host=f"{HOST}:{server.port}", headers=[("x-one", "1")])
        assert reply.status == 200
        assert reply.told["path"] == "/a?b=c"
        assert ["x-one", "1"] in reply.told["headers"]


async def test_a_plain_request_reaches_an_allowed_host(world: EgressWorld) -> None:
    async with upstream() as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        reply = await client.ask("GET", f"http://{authority}/x?y", host=authority)
        assert (reply.status, reply.told["path"]) == (200, "/x?y")


async def test_plain_http_may_go_through_a_tunnel(world: EgressWorld) -> None:
    async with upstream() as server:
        client = await world.client(networking=LIMITED)
        await client.connect(f"{HOST}:{server.port}", tls=False)
        reply = await client.ask("GET", "/x", host=f"{HOST}:{server.port}")
        assert reply.status == 200


async def test_a_connection_carries_several_requests_over_one_upstream_connection(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        for number in range(3):
            reply = await client.ask("POST", f"/{number}", host=authority, body=b"x" * number)
            assert reply.told["body"] == "x" * number
        assert server.connections == 1


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [("/204", 204, b""), ("/304", 304, b""), ("/chunked", 200, b"one,two,three"), ("/redirect", 302, b"")],
)
async def test_answers_keep_their_form(world: EgressWorld, path: str, status: int, body: bytes) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        for _ in range(2):
            reply = await client.ask("GET", path, host=authority)
            assert (reply.status, reply.body) == (status, body)


async def test_head_has_no_body_and_the_connection_goes_on(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        head = await client.ask("HEAD", "/x", host=authority)
        assert head.body == b""
        assert int(head.headers["content-length"]) > 0
        assert (await client.ask("GET", "/x", host=authority)).status == 200


async def test_an_answer_that_ends_with_the_connection_arrives_whole(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        assert (await client.ask("GET", "/until-closed", host=authority)).body == b"to the end"
        assert (await client.ask("GET", "/x", host=authority)).status == 200
        assert server.connections == 2


async def test_a_chunked_body_arrives_and_headers_of_one_connection_do_not(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        headers = [
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "1"),
            ("proxy-authorization", "Basic eA=="),
        ]
        reply = await client.ask("POST", "/x", host=authority, headers=headers, chunks=[b"one,", b"two"])
        assert reply.told["body"] == "one,two"
        names = {name for name, _ in reply.told["headers"]}
        assert not names & {"x-mine", "proxy-authorization", "connection"}
        hop = await client.ask("GET", "/hop", host=authority)
        assert "x-secret-hop" not in hop.headers


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        await client.send(
            f"POST /x HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 3\r\n"
            "Expect: 100-continue\r\n\r\n".encode()
        )
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await client.send(b"abc")
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert server.asked[0].body == b"abc"


async def test_an_answer_flows_while_the_server_still_makes_it(world: EgressWorld) -> None:
    go_on = asyncio.Event()

    async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabc")
        await go_on.wait()
        writer.write(b"def")
        writer.close()

    server = await asyncio.start_server(raw, "127.0.0.1", 0)
    async with server:
        authority = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        client = await world.client(networking=LIMITED)
        await client.send(f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        await client.reader.readuntil(b"\r\n\r\nabc")
        go_on.set()
        assert await client.reader.readexactly(3) == b"def"


async def test_decisions_are_counted_without_path_or_query(world: EgressWorld) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        session = await world.session(LIMITED)
        token = await world.token(session)
        client = await world.client(token)
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        for _ in range(3):
            await client.ask("GET", "/secret-path?secret-query", host=authority)
        other = await world.client(token)
        assert (await other.connect("other.internal.example:443")).status == 403
        found = await world.decisions(session.id)
        assert [(row["host"], row["decision"], row["requests"]) for row in found] == [
            (HOST, "allowed", 3),
            ("other.internal.example", "denied", 1),
        ]
        assert "secret" not in str(found)


async def test_an_upstream_that_is_not_there_is_502_with_the_reason(world: EgressWorld) -> None:
    async with upstream() as server:
        port = server.port
    client = await world.client(networking=LIMITED)
    authority = f"{HOST}:{port}"
    reply = await client.ask("GET", f"http://{authority}/", host=authority)
    assert reply.status == 502
    assert "cannot be connected to" in reply.text
