"""What one session has, tried by another; what has ended, tried again; the authority's key, looked for."""

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from psycopg.rows import dict_row

from corral.gateway.egress import EgressLimits
from corral.store.cluster import running_url
from corral.testing import ScriptedModel
from corral.vault.keys import PrivateKey
from corral.vault.sealing import Place, key_ring, open_sealed
from corral.wire.egress import GREETING
from corral.wire.secret import Secret
from tests.e2e.conftest import model as model
from tests.egress_world import EgressWorld, egress_world
from tests.security.test_vault_secrets import everything_in_the_database, files_of_the_database
from tests.unit.cli.test_gateway import gateway_of, memory
from tests.unit.cli.test_up import corral_up
from tests.unit.cli.test_up import data_dir as data_dir
from tests.upstream_servers import Answer, Asked, upstream

HOST = "api.internal.example"
LIMITED = {"type": "limited", "allowed_hosts": [HOST]}
VALUE = "v4lue-of-the-victim"


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway that soon notices what has ended."""
    limits = EgressLimits(recheck=0.1)
    async with egress_world(database_url, model, tmp_path, limits=limits) as world:
        yield world


async def test_one_sessions_placeholder_is_worth_nothing_in_another(world: EgressWorld) -> None:
    """The attacker has the victim's placeholder, and even the same vault: the server gets the placeholder."""
    variable = await world.variable(VALUE, [HOST])
    victim = await world.session(LIMITED, vault_ids=[variable.vault_id])
    async with upstream(world.outside.context(HOST)) as server:
        authority = f"{HOST}:{server.port}"
        for vaults in ([], [variable.vault_id]):
            thief = await world.session(LIMITED, vault_ids=vaults)
            client = await world.client(await world.token(thief))
            await client.connect(authority)
            mark = variable.inside(victim)
            await client.ask("POST", "/", host=authority, headers=[("x-key", mark)], body=mark.encode())
            assert (server.asked[-1].header("x-key"), server.asked[-1].body) == (mark, mark.encode())


@pytest.mark.parametrize("what", ["credential", "vault", "deleted credential"])
async def test_an_archived_secret_is_gone_from_the_next_request_on(world: EgressWorld, what: str) -> None:
    """On a tunnel that was open all the time: the attacker gets nothing more."""
    variable = await world.variable(VALUE, [HOST])
    session = await world.session(LIMITED, vault_ids=[variable.vault_id])
    vaults = world.corral.client.beta.vaults
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(await world.token(session))
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        mark = [("x-key", variable.inside(session))]
        await client.ask("GET", "/", host=authority, headers=mark)
        assert server.asked[-1].header("x-key") == VALUE
        match what:
            case "vault":
                await vaults.archive(variable.vault_id)
            case "credential":
                await vaults.credentials.archive(variable.id, vault_id=variable.vault_id)
            case _:
                await vaults.credentials.delete(variable.id, vault_id=variable.vault_id)
        await client.ask("GET", "/", host=authority, headers=mark)
        assert server.asked[-1].header("x-key") == variable.inside(session)


async def test_an_archived_session_gets_nothing_more_by_a_tunnel_that_is_open(world: EgressWorld) -> None:
    """The next request is refused, or the tunnel is gone already; no server gets it."""
    session = await world.session(LIMITED)
    async with upstream(world.outside.context(HOST)) as server:
        client = await world.client(await world.token(session))
        authority = f"{HOST}:{server.port}"
        await client.connect(authority)
        assert (await client.ask("GET", "/before", host=authority)).status == 200
        await world.corral.client.beta.sessions.archive(session.id)
        try:
            assert (await client.ask("GET", "/after", host=authority)).status == 403
        except (ConnectionError, OSError):
            pass  # broken off, which is as good
        assert [asked.path for asked in server.asked] == ["/before"]


async def test_what_is_under_way_ends_soon_after_its_session(world: EgressWorld) -> None:
    """An answer without end is broken off; the attacker does not keep a way out by never letting go."""

    async def slowly(asked: Asked) -> Answer:
        return 200, [("content-length", "1000000")], [b"a"]

    session = await world.session(LIMITED)
    async with upstream(respond=slowly) as server:
        client = await world.client(await world.token(session))
        authority = f"{HOST}:{server.port}"
        await client.send(f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        await client.reader.readuntil(b"\r\n\r\na")
        await world.corral.client.beta.sessions.archive(session.id)
        async with asyncio.timeout(20):
            assert await client.reader.read() == b""


async def test_a_token_that_a_sandbox_says_itself_is_no_token(world: EgressWorld) -> None:
    """The worker speaks first, for its own session; what comes from inside is a request and nothing else."""
    victim = await world.token(await world.session(LIMITED))
    async with upstream() as server:
        authority = f"{HOST}:{server.port}"
        request = (
            f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: {victim}\r\n\r\n"
        )
        for said in (GREETING + victim.encode() + b"\n" + request.encode(), request.encode()):
            client = await world.client(networking={"type": "limited", "allowed_hosts": []})
            await client.send(said)
            assert (await client.reader.readline()).split()[1] in (b"400", b"403")
        assert server.asked == []


@pytest.mark.parametrize("value", [f" {VALUE}\t", f"{VALUE}\n", f"{VALUE}\x0b", f"\x85{VALUE}\xa0"])
async def test_a_secret_that_fits_no_header_is_in_no_log_line_and_no_answer(
    world: EgressWorld, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A secret that was pasted with a blank or a line break: the request goes out as it should, or is
    refused, and neither the operator's log nor the sandbox sees it."""
    variable = await world.variable(value, [HOST])
    session = await world.session(LIMITED, vault_ids=[variable.vault_id])
    caplog.clear()  # the client that has sent it
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as lines:
        async with upstream(world.outside.context(HOST)) as server:
            client = await world.client(await world.token(session))
            authority = f"{HOST}:{server.port}"
            await client.connect(authority)
            headers = [("authorization", variable.inside(session))]
            reply = await client.ask("GET", "/204", host=authority, headers=headers)
            arrived = [(asked.header("authorization") or "").encode("latin-1") for asked in server.asked]
            whole = value.strip(" \t").encode()
            assert (reply.status, arrived) in ((204, [whole]), (502, []))
            assert VALUE not in reply.text + repr(reply.headers)
            await world.decisions(session.id)
    assert VALUE not in repr(lines) + caplog.text
    assert not any("exc_info" in line for line in lines), "what an exception says would be logged with it"
    assert VALUE.encode() not in await everything_in_the_database(world.corral.database)


def forms_of(key: ec.EllipticCurvePrivateKey) -> list[bytes]:
    """How a key may lie around: each encoding, in parts that no line break cuts."""
    der = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    number = key.private_numbers().private_value.to_bytes(32, "big")
    lines = b64encode(der)
    return [number, number[::-1], number.hex().encode(), *(lines[at : at + 40] for at in (64, 128))]


async def test_the_authoritys_key_is_in_no_row_no_file_and_no_answer(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """Whoever reads the database, a backup of it, the log, or what workers are told, can sign nothing."""
    with structlog.testing.capture_logs() as lines:
        async with egress_world(database_url, model, tmp_path) as world:
            loaded = serialization.load_pem_private_key(world.authority.key.reveal().encode(), None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            forms = forms_of(loaded)
            session = await world.session(LIMITED)
            plan = await world.corral.services.sandbox_plans.plan(session.id)
            assert plan.way is not None
            assert "BEGIN CERTIFICATE" in plan.way.certificate
            rows = await everything_in_the_database(world.corral.database)
            pages = await files_of_the_database(world.corral.database)
            told = repr(plan).encode() + repr(world.authority).encode()
    assert plan.way.certificate.splitlines()[1].encode() in rows, "or this test would show nothing"
    ours = (rows, told, repr(lines).encode())
    assert not any(b"PRIVATE KEY" in place for place in ours)
    # The write-ahead log is the whole cluster's: other tests may write those two words there.
    assert not any(form in place for place in (*ours, pages) for form in forms)


async def test_the_authoritys_key_is_in_the_memory_of_the_gateway_alone(data_dir: Path) -> None:
    """In no process that serves the API or runs sandboxes, in no file, in no environment."""
    async with corral_up(data_dir) as up:
        await up.says("The gateway is ready")
        text = (data_dir / "vault" / "private.key").read_text().strip()
        url = running_url(data_dir, data_dir)
        assert url is not None
        key = await authority_key(url, PrivateKey.parse(Secret(text)))
        forms = forms_of(key)
        gateway = gateway_of(up)
        assert any(form in memory(gateway) for form in forms), "or this test would show nothing"
        for pid in {up.process.pid, *up.children()} - {gateway}:
            held = memory(pid) + Path(f"/proc/{pid}/environ").read_bytes()
            assert not any(form in held for form in forms)
        for path in data_dir.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not any(form in content for form in forms), path


async def authority_key(conninfo: str, key: PrivateKey) -> ec.EllipticCurvePrivateKey:
    """The key, opened as the gateway does."""
    async with await psycopg.AsyncConnection[dict[str, Any]].connect(conninfo, row_factory=dict_row) as one:
        row = await (await one.execute("select sealed from gateway_authority")).fetchone()
    assert row is not None
    opened = open_sealed(row["sealed"], Place("gateway_authority", "secret_value"), key_ring(key))
    loaded = serialization.load_pem_private_key(opened.reveal().encode(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return loaded
