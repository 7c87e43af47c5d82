"""A worker on another machine: its token goes to the deployment's own gateway, under TLS, or nowhere."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from corral.gateway.certificates import Authority
from corral.gateway.egress import EgressListener
from corral.hands.worker.doors import Door
from corral.server import listen
from corral.testing import ScriptedModel
from corral.wire.egress import LINK_NAME, Way
from corral.wire.secret import Secret
from tests.e2e.conftest import model as model
from tests.egress_world import EgressWorld, egress_world
from tests.upstream_servers import upstream

HOST = "api.internal.example"
LIMITED = {"type": "limited", "allowed_hosts": [HOST]}
# An address that a worker does not take for its own machine, though it leads there.
ELSEWHERE = "127.1"


async def through(door: Door, authority: str) -> bytes:
    """What a sandbox is answered at a door."""
    reader, writer = await asyncio.open_unix_connection(str(door.path))
    writer.write(
        f"GET http://{authority}/x HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n".encode()
    )
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


@asynccontextmanager
async def a_door(folder: Path, way: Way, token: str) -> AsyncGenerator[Door]:
    """An open door that leads there."""
    door = Door("sesn_1", folder / "door.sock", way)
    await door.open()
    door.token = Secret(token)
    try:
        yield door
    finally:
        await door.close()


@asynccontextmanager
async def an_imposter(context: ssl.SSLContext | None) -> AsyncGenerator[tuple[int, list[bytes]]]:
    """Something else that listens where the gateway should: its port, and all that it could read."""
    heard: list[bytes] = []

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heard.append(await reader.read(4096))
        except (OSError, ssl.SSLError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(listens, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


async def test_the_link_to_another_machine_is_encrypted_and_works(
    database_url: str, model: ScriptedModel, open_folder: Path
) -> None:
    """Who listens between worker and gateway reads neither the token nor what the sandbox asks for."""
    async with egress_world(database_url, model, open_folder) as world, upstream() as server:
        token = await world.token(await world.session(LIMITED))
        passed: list[bytes] = []
        async with wiretap(world.address, passed) as port:
            way = Way(f"{ELSEWHERE}:{port}", world.authority.certificate)
            async with a_door(open_folder, way, token) as door:
                answer = await through(door, f"{HOST}:{server.port}")
        assert answer.startswith(b"HTTP/1.1 200")
        assert [asked.path for asked in server.asked] == ["/x"]
        wire = b"".join(passed)
        assert len(wire) > 500
        assert not any(
            text in wire for text in (token.encode(), b"CORRAL-EGRESS", HOST.encode(), b"HTTP/1.1")
        )


@asynccontextmanager
async def wiretap(address: tuple[str, int], passed: list[bytes]) -> AsyncGenerator[int]:
    """Somebody between two machines, who passes everything on and keeps a copy."""

    async def copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                passed.append(data)
                target.write(data)
                await target.drain()
        except OSError:
            return
        finally:
            target.close()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_connection(*address)
        await asyncio.gather(copied(reader, onward), copied(answers, writer))

    server = await asyncio.start_server(between, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def shown(kind: str, ours: Authority) -> ssl.SSLContext | None:
    """What an imposter shows of himself."""
    match kind:
        case "no TLS":
            return None
        case "wrong name":  # such as any host that the gateway shows to sandboxes
            return ours.leaf(HOST)
        case "unknown authority":
            return Authority.generate().leaf(LINK_NAME)
        case _:
            past = Authority.parse(ours.key, ours.certificate)
            return past.leaf(LINK_NAME, datetime.now(UTC) - timedelta(days=60))


@pytest.mark.parametrize("kind", ["no TLS", "wrong name", "unknown authority", "expired"])
async def test_whoever_is_not_the_gateway_hears_no_token(open_folder: Path, kind: str) -> None:
    """An imposter at the gateway's address, or one who holds an old or another certificate: the handshake
    fails, and he gets nothing that he could read. The sandbox is told that there is no way out."""
    authority = Authority.generate()
    async with an_imposter(shown(kind, authority)) as (port, heard):
        way = Way(f"{ELSEWHERE}:{port}", authority.certificate)
        async with a_door(open_folder, way, "corral_wt_of_the_victim") as door:
            answer = await through(door, HOST)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"corral_wt_" not in b"".join(heard)
        assert b"CORRAL-EGRESS" not in b"".join(heard)


async def test_the_right_certificate_is_what_makes_the_difference(open_folder: Path) -> None:
    """With it the same listener hears the greeting: the tests above are about the certificate alone."""
    authority = Authority.generate()
    async with an_imposter(authority.leaf(LINK_NAME)) as (port, heard):
        way = Way(f"{ELSEWHERE}:{port}", authority.certificate)
        async with a_door(open_folder, way, "corral_wt_1") as door:
            await through(door, HOST)
        assert heard[0].startswith(b"CORRAL-EGRESS/1 corral_wt_1\n")


def own_address() -> str:
    """An address by which this machine is known to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no network but its loopback")
        return str(probe.getsockname()[0])


async def test_the_gateway_takes_no_token_in_the_clear_from_another_machine(
    database_url: str, model: ScriptedModel, open_folder: Path
) -> None:
    """A worker that is set up without TLS, or somebody with a stolen token and no certificate to check: the
    connection is closed without an answer. Under TLS the same token is taken."""
    host = own_address()
    async with egress_world(database_url, model, open_folder) as world, upstream() as server:
        token = await world.token(await world.session(LIMITED))
        async with listening_on(world, host) as port:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"CORRAL-EGRESS/1 {token}\nGET http://{HOST}/ HTTP/1.1\r\n\r\n".encode())
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()
            way = Way(f"{host}:{port}", world.authority.certificate)
            async with a_door(open_folder, way, token) as door:
                answer = await through(door, f"{HOST}:{server.port}")
        assert answer.startswith(b"HTTP/1.1 200")
        assert len(server.asked) == 1


@asynccontextmanager
async def listening_on(world: EgressWorld, host: str) -> AsyncGenerator[int]:
    """A second listener of the same gateway, for other machines."""
    listener: EgressListener = world.another_listener()
    door = listen(host, 0)
    async with listener:
        await listener.listen(door)
        yield door.getsockname()[1]
