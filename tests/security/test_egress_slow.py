"""Sandboxes that are slow on purpose, or many at once: bounded, and others are served meanwhile."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import pytest_asyncio

from corral.gateway.addresses import lookups
from corral.gateway.egress import EgressLimits
from corral.gateway.http_sides import Times
from corral.testing import ScriptedModel
from tests.e2e.conftest import model as model
from tests.egress_world import Client, EgressWorld, egress_world
from tests.upstream_servers import Answer, Asked, Upstream, telling, upstream

HOST = "api.internal.example"
LIMITED = {"type": "limited", "allowed_hosts": [HOST]}
ANY = {"type": "limited", "allowed_hosts": ["*.internal.example"]}
SHORT = Times(head=0.4, rest=0.4, body=0.4, connect=5.0)
WAITS = 20.0  # a bound for a test that fails, not a promise


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway with little patience."""
    limits = EgressLimits(times=SHORT, greeting=0.4)
    async with egress_world(database_url, model, tmp_path, limits=limits) as world:
        yield world


@asynccontextmanager
async def one_at_a_time(
    database_url: str, model: ScriptedModel, folder: Path, times: Times = SHORT
) -> AsyncGenerator[EgressWorld]:
    """A gateway where a session has one connection: the next one is served once the first is gone."""
    limits = EgressLimits(of_session=1, times=times)
    async with egress_world(database_url, model, folder, limits=limits) as world:
        yield world


async def ended(client: Client) -> bytes:
    """All that comes until the gateway breaks the connection off, which it must."""
    async with asyncio.timeout(WAITS):
        try:
            return await client.reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""


async def dripped(client: Client, data: bytes) -> None:
    """Send a byte at a time, with a pause, until it is all sent or the gateway has had enough."""
    try:
        for number in range(len(data)):
            await client.send(data[number : number + 1])
            await asyncio.sleep(0.05)
    except (ConnectionError, ssl.SSLError):
        return


async def served(world: EgressWorld, server: Upstream, token: str | None = None) -> None:
    """A session's request is answered, in the end; without a token that of a new session."""
    token = token or await world.token(await world.session(LIMITED))
    authority = f"{HOST}:{server.port}"
    async with asyncio.timeout(WAITS):
        while True:
            client = await world.client(token)
            if (await client.ask("GET", f"http://{authority}/", host=authority)).status == 200:
                return
            await asyncio.sleep(0.02)


Attack = Callable[[Client, str], Coroutine[Any, Any, None]]


async def a_slow_head(client: Client, authority: str) -> None:
    await dripped(client, f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nX: {'a' * 60}".encode())


async def a_slow_head_in_a_tunnel(client: Client, authority: str) -> None:
    await client.connect(authority, tls=False)
    await dripped(client, f"GET / HTTP/1.1\r\nHost: {authority}\r\nX: {'a' * 60}".encode())


async def a_head_that_never_ends(client: Client, authority: str) -> None:
    await client.send(f"GET http://{authority}/ HTTP/1.1\r\nX: 1\r\n".encode())


async def a_body_that_stops(client: Client, authority: str) -> None:
    head = f"POST http://{authority}/stops HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 9\r\n\r\nab"
    await client.send(head.encode())


async def a_chunk_that_stops(client: Client, authority: str) -> None:
    head = (
        f"POST http://{authority}/stops HTTP/1.1\r\nHost: {authority}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await client.send(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n9\r\nab")


async def a_handshake_that_stops(client: Client, authority: str) -> None:
    await client.connect(authority, tls=False)
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.trusting().wrap_bio(ssl.MemoryBIO(), hello, server_hostname=HOST).do_handshake()
    await client.send(hello.read()[:40])


async def a_handshake_that_drips(client: Client, authority: str) -> None:
    await client.connect(authority, tls=False)
    await dripped(client, b"\x16\x03\x01\x02\x00\x01" + bytes(60))


async def a_tunnel_without_a_word(client: Client, authority: str) -> None:
    await client.connect(authority, tls=False)


async def a_tunnel_that_falls_silent(client: Client, authority: str) -> None:
    await client.connect(authority, tls=False)
    assert (await client.ask("GET", "/", host=authority)).status == 200


async def a_connection_without_a_word(client: Client, authority: str) -> None:
    return


@pytest.mark.parametrize(
    "attack",
    [
        a_slow_head,
        a_slow_head_in_a_tunnel,
        a_head_that_never_ends,
        a_body_that_stops,
        a_chunk_that_stops,
        a_handshake_that_stops,
        a_handshake_that_drips,
        a_tunnel_without_a_word,
        a_tunnel_that_falls_silent,
        a_connection_without_a_word,
    ],
)
async def test_a_connection_that_is_slow_is_broken_off(world: EgressWorld, attack: Attack) -> None:
    """It holds a place for a bounded time, no server sees a whole request, and others are served."""
    async with upstream() as server:
        client = await world.client(networking=LIMITED)
        attacking = asyncio.create_task(attack(client, f"{HOST}:{server.port}"))
        await served(world, server)
        await attacking
        await ended(client)
        assert "/stops" not in {asked.path for asked in server.asked}


async def test_a_worker_that_does_not_say_whose_connection_it_is_is_let_go(world: EgressWorld) -> None:
    """A connection without a token holds a place for as long as a greeting takes."""
    for said in (b"", b"CORRAL-EGRESS/1 half", b"\x16\x03\x01"):
        reader, writer = await asyncio.open_connection(*world.address)
        writer.write(said)
        async with asyncio.timeout(WAITS):
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_does_not_take_its_answer_is_let_go(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """An answer without end to a client that reads nothing: its connection is broken off, and with it the
    server's."""

    async def endless(asked: Asked) -> Answer:
        size = 64 * 1024 * 1024 if asked.path == "/endless" else 2
        return 200, [("content-length", str(size))], [b"a" * size]

    async with one_at_a_time(database_url, model, tmp_path) as world, upstream(respond=endless) as server:
        token = await world.token(await world.session(LIMITED))
        greedy = await world.client(token)
        authority = f"{HOST}:{server.port}"
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await greedy.send(f"GET http://{authority}/endless HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        while not server.asked:
            await asyncio.sleep(0.01)
        await served(world, server, token)


async def test_heads_of_answers_that_nobody_takes_hold_no_place(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """Answers that are all head, to many requests in a row of a client that reads none of them."""

    async def heads(asked: Asked) -> Answer:
        large = [(f"x-{number}", "a" * 4000) for number in range(8)] if asked.path == "/large" else []
        return 204, large, []

    async with one_at_a_time(database_url, model, tmp_path) as world, upstream(respond=heads) as server:
        token = await world.token(await world.session(LIMITED))
        greedy = await world.client(token)
        authority = f"{HOST}:{server.port}"
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        asking = f"GET http://{authority}/large HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()
        greedy.writer.write(asking * 2000)
        client = await world.client(token)
        assert (await client.ask("GET", f"http://{authority}/", host=authority)).status == 503
        async with asyncio.timeout(WAITS):
            while True:
                client = await world.client(token)
                if (await client.ask("GET", f"http://{authority}/", host=authority)).status == 204:
                    break
                await asyncio.sleep(0.02)


async def test_an_answer_that_nobody_waits_for_holds_no_place(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """A client that gives up while the server is silent frees its place and the server's connection at once,
    long before the server's time is over."""
    asked_for = asyncio.Event()

    async def silent(asked: Asked) -> Answer:
        if asked.path == "/silent":
            asked_for.set()
            await asyncio.Event().wait()
        return await telling(asked)

    patient = Times()
    async with (
        one_at_a_time(database_url, model, tmp_path, patient) as world,
        upstream(respond=silent) as server,
    ):
        token = await world.token(await world.session(LIMITED))
        client = await world.client(token)
        authority = f"{HOST}:{server.port}"
        await client.send(f"GET http://{authority}/silent HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        await asked_for.wait()
        await client.close()
        await served(world, server, token)


async def test_requests_sent_ahead_are_kept_while_an_answer_is_waited_for(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """What a client sends before its answer is no end of the client: it is its next request."""
    go_on, first = asyncio.Event(), asyncio.Event()

    async def later(asked: Asked) -> Answer:
        if asked.path == "/1":
            first.set()
            await go_on.wait()
        return await telling(asked)

    async with (
        one_at_a_time(database_url, model, tmp_path, Times()) as world,
        upstream(respond=later) as server,
    ):
        client = await world.client(networking=LIMITED)
        authority = f"{HOST}:{server.port}"
        asking = f"GET http://{authority}/{{}} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        await client.send(asking.format(1).encode())
        await first.wait()
        await client.send((asking.format(2) + asking.format(3)).encode())
        go_on.set()
        async with asyncio.timeout(WAITS):
            for _ in range(3):
                assert b" 200 " in await client.reader.readuntil(b"}")
        assert [asked.path for asked in server.asked] == ["/1", "/2", "/3"]


async def test_one_session_takes_no_more_than_its_part_of_the_connections(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """The session that opens too many is refused; another one is served."""
    limits = EgressLimits(connections=8, of_session=3)
    async with egress_world(database_url, model, tmp_path, limits=limits) as world, upstream() as server:
        token = await world.token(await world.session(LIMITED))
        authority = f"{HOST}:{server.port}"
        held = [await world.client(token) for _ in range(3)]
        for client in held:
            await client.connect(authority, tls=False)
        for _ in range(4):
            refused = await world.client(token)
            assert (await refused.connect(authority)).status == 503
        await served(world, server)
        await held[0].close()
        await served(world, server, token)


async def test_names_that_are_slow_to_resolve_hold_up_their_session_alone(world: EgressWorld) -> None:
    """An attacker's own name server that never answers has a few lookups at a time, and another session's
    name is resolved meanwhile."""
    async with upstream() as server:
        token = await world.token(await world.session(ANY))
        for number in range(30):
            client = await world.client(token)
            name = f"slow{number}.internal.example"
            await client.send(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
        async with asyncio.timeout(WAITS):
            while len(world.looked_up) < 8:
                await asyncio.sleep(0.01)
        await served(world, server)
        assert len([name for name in world.looked_up if name.startswith("slow")]) == 8
        world.slow.set()


async def test_lookups_wait_for_nothing_else_that_the_gateway_does() -> None:
    """Whoever fills the event loop's own threads does not keep names from being resolved."""
    release = Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as few, lookups() as resolve:
        loop.set_default_executor(few)
        held = [asyncio.create_task(asyncio.to_thread(release.wait)) for _ in range(4)]
        try:
            async with asyncio.timeout(WAITS):
                found = await resolve("localhost", 80)
        finally:
            release.set()
            await asyncio.gather(*held)
    assert set(found) & {"127.0.0.1", "::1"}


async def test_a_session_has_a_few_bodies_in_the_gateways_memory_and_no_more(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """Bodies that are looked through are held as a whole. Of twelve that come slowly from one session, the
    gateway takes in a few; another session's is taken meanwhile, and in the end all go through."""
    size = 80 * 1024

    async def taking(asked: Asked) -> Answer:
        return 204, [], []

    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(egress_world(database_url, model, tmp_path))
        server = await stack.enter_async_context(upstream(world.outside.context(HOST), respond=taking))
        variable = await world.variable("v4lue", [HOST])

        async def a_body(token: str, number: int) -> Client:
            client = await world.client(token)
            authority = f"{HOST}:{server.port}"
            await client.connect(authority)
            head = f"POST /{number} HTTP/1.1\r\nHost: {authority}\r\nContent-Length: {size}\r\n"
            await client.send(head.encode() + b"Expect: 100-continue\r\n\r\n")
            return client

        token = await world.token(await world.session(LIMITED, vault_ids=[variable.vault_id]))
        slow = [await a_body(token, number) for number in range(12)]
        told_to_go_on = [asyncio.create_task(client.reader.readuntil(b"\r\n\r\n")) for client in slow]
        async with asyncio.timeout(WAITS):
            while sum(task.done() for task in told_to_go_on) < 4:
                await asyncio.sleep(0.01)
        other = await a_body(
            await world.token(await world.session(LIMITED, vault_ids=[variable.vault_id])), 99
        )
        async with asyncio.timeout(WAITS):
            await other.reader.readuntil(b"\r\n\r\n")
            await other.send(bytes(size))
            assert b" 204 " in await other.reader.readuntil(b"\r\n\r\n")
        assert sum(task.done() for task in told_to_go_on) == 4

        async def finished(client: Client, told: asyncio.Task[bytes]) -> None:
            await told
            await client.send(bytes(size))
            assert b" 204 " in await client.reader.readuntil(b"\r\n\r\n")

        async with asyncio.timeout(3 * WAITS):
            await asyncio.gather(*(finished(*one) for one in zip(slow, told_to_go_on, strict=True)))
        assert len(server.asked) == 13
