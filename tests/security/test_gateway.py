"""The gateway under attack: stolen grants, servers that lead elsewhere, and secrets looked for everywhere."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from psycopg import sql
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from corral.gateway.addresses import Reach
from corral.gateway.http import CheckedTransport, Refused, client_for
from corral.server import listen, serving
from corral.testing import ScriptedModel
from corral.vault.grants import Grants
from corral.wire.gateway import CALL_PATH, CANCEL_PATH, TOOLS_PATH, VALIDATE_PATH
from tests.corral_server import SessionUnderTest
from tests.e2e.conftest import model as model
from tests.e2e.mcp_house import McpHouse, calls, mcp_house
from tests.mcp_parts import mcp_server, token_endpoint
from tests.unit.cli.test_gateway import gateway_of, memory
from tests.unit.cli.test_up import corral_up
from tests.unit.cli.test_up import data_dir as data_dir

TOKEN = "bearer-hunter2-of-the-victim"
BEARER = {"type": "static_bearer", "token": TOKEN}
SAYS = {"text": "they said: {result}"}


async def asks(house: McpHouse, path: str, token: str, body: Any) -> httpx.Response:
    """A request to the gateway with this grant."""
    async with httpx.AsyncClient(base_url=house.gateway.url) as http:
        return await http.post(path, json=body, headers={"authorization": f"Bearer {token}"})


async def grant_of(house: McpHouse, session: SessionUnderTest, *, later: int = 0, **fields: Any) -> str:
    row = await house.corral.database.fetch_one("select epoch from sessions where id = %s", (session.id,))
    assert row is not None
    grants = Grants(house.corral.database)
    return (await grants.for_session(session.id, row["epoch"] + later, **fields)).reveal()


LIST = {"server_name": "calc"}


async def test_a_grant_opens_its_session_only_while_it_holds(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session()
        database = house.corral.database
        good = await grant_of(house, session)
        assert (await asks(house, TOOLS_PATH, good, LIST)).status_code == 200
        past = await grant_of(house, session, later=-1)
        future = await grant_of(house, session, later=1)
        run_out = await grant_of(house, session, seconds=-1)
        for refused in (past, future, run_out, good + "x", "corral_gg_", house.corral.api_key):
            assert (await asks(house, TOOLS_PATH, refused, LIST)).status_code == 401
        await database.execute("update sessions set epoch = epoch + 1 where id = %s", (session.id,))
        assert (await asks(house, TOOLS_PATH, good, LIST)).status_code == 401, "another brain has it now"


@pytest.mark.parametrize(
    "change",
    [
        "update sessions set archived_at = now()",
        "update sessions set status = 'terminated'",
        "delete from gateway_grants",
        "delete from sessions",
    ],
)
async def test_a_grant_ends_with_its_session(database_url: str, model: ScriptedModel, change: Any) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session()
        grant = await grant_of(house, session)
        await house.corral.database.execute(change)
        for path in (TOOLS_PATH, CALL_PATH, CANCEL_PATH):
            assert (await asks(house, path, grant, LIST)).status_code == 401


async def test_one_sessions_grant_does_nothing_for_another(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
        victim = await house.session(policy={}, vault_ids=[await house.vault(BEARER)])
        await victim.says("go", script=[calls("add", a=1, b=1), SAYS])
        idle = await victim.idle()
        [event_id] = idle.stop_reason.event_ids
        thief = await house.session()
        grant = await grant_of(house, thief)
        call = await asks(house, CALL_PATH, grant, {"event_id": event_id})
        assert call.status_code == 404
        listed = (await asks(house, TOOLS_PATH, grant, LIST)).json()
        assert listed["failure"]["type"] == "mcp_authentication_failed_error", "it has no vault"
        assert (await asks(house, VALIDATE_PATH, grant, None)).status_code == 401
        assert house.server.calls == []


async def test_nobody_has_a_call_made_that_the_log_does_not_show_as_allowed(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session(policy={})
        await session.says("go", script=[calls("add", a=1, b=1), SAYS])
        idle = await session.idle()
        [unconfirmed] = idle.stop_reason.event_ids
        grant = await grant_of(house, session)
        for event_id in (unconfirmed, "sevt_invented", (await session.events())[0].id):
            assert (await asks(house, CALL_PATH, grant, {"event_id": event_id})).status_code == 404
        assert house.server.calls == []


async def test_a_validations_grant_is_good_once_and_for_nothing_else(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
        await house.vault({"type": "mcp_oauth", "access_token": TOKEN})
        row = await house.corral.database.fetch_one("select id from vault_credentials")
        assert row is not None
        grant = (await Grants(house.corral.database).for_validation(row["id"])).reveal()
        assert (await asks(house, TOOLS_PATH, grant, LIST)).status_code == 401
        assert (await asks(house, VALIDATE_PATH, grant, None)).json()["status"] == "valid"
        assert (await asks(house, VALIDATE_PATH, grant, None)).status_code == 401


async def test_grants_are_in_the_database_as_hashes_alone(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session()
        grant = await grant_of(house, session)
        rows = await house.corral.database.fetch("select * from gateway_grants")
        assert rows
        assert grant not in str(rows)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/mcp",
        "http://localhost:{port}/mcp",
        "http://[::ffff:127.0.0.1]:{port}/mcp",
        "http://2130706433:{port}/mcp",
        "http://0177.0.0.1:{port}/mcp",
        "http://0x7f.1:{port}/mcp",
        "http://127.1:{port}/mcp",
        "http://0.0.0.0:{port}/mcp",
        "http://[::]:{port}/mcp",
        "http://169.254.169.254:{port}/latest",
    ],
)
async def test_an_mcp_url_leads_to_no_address_that_the_operator_has_not_named(
    database_url: str, model: ScriptedModel, url: str
) -> None:
    async with mcp_house(database_url, model, internal=["10.0.0.0/8"]) as house:
        port = house.server.url.split(":")[2].split("/")[0]
        session = await house.session(url=url.format(port=port))
        await session.says("go", script=[{"text": "still here"}])
        await session.idle()
        [error] = await session.events(types=["session.error"])
        assert error.error.type == "mcp_connection_failed_error"
        assert house.server.seen == []


@asynccontextmanager
async def redirecting(target: str, status: int) -> AsyncGenerator[tuple[str, list[str]]]:
    """A server that sends everybody on, and what it was asked."""
    asked = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        response: Response = RedirectResponse(target, status)
        await response(scope, receive, send)

    async with serving(app, listen("127.0.0.1", 0)) as url:
        yield url, asked


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_of_an_mcp_server_takes_the_token_nowhere(
    database_url: str, model: ScriptedModel, status: int
) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
        async with redirecting(house.server.url, status) as (url, asked):
            vault_id = await house.vault({**BEARER, "mcp_server_url": url + "/mcp"})
            session = await house.session(url=url + "/mcp", vault_ids=[vault_id])
            await session.says("go", script=[{"text": "still here"}])
            await session.idle()
            assert asked
            [error] = await session.events(types=["session.error"])
            assert error.error.type == "mcp_connection_failed_error"
        assert house.server.seen == []


@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_redirect_of_a_token_endpoint_takes_the_refresh_token_nowhere(
    database_url: str, model: ScriptedModel, status: int
) -> None:
    async with mcp_house(database_url, model, accepted=[]) as house, token_endpoint() as elsewhere:
        async with redirecting(elsewhere.url, status) as (url, asked):
            refresh = {
                "client_id": "client",
                "refresh_token": "refresh-0-hunter2",
                "token_endpoint": url + "/token",
                "token_endpoint_auth": {"type": "none"},
            }
            oauth = {"type": "mcp_oauth", "access_token": "old-hunter2", "refresh": refresh}
            session = await house.session(vault_ids=[await house.vault(oauth)])
            await session.says("go", script=[{"text": "still here"}])
            await session.idle()
            assert asked == ["/token"]
        assert elsewhere.requests == []


async def test_a_name_that_means_another_address_at_the_second_look_gains_nothing() -> None:
    async with mcp_server() as server:
        port = int(server.url.split(":")[2].split("/")[0])
        answers = [["127.0.0.1"], ["169.254.169.254"]]

        async def rebinding(name: str, port: int) -> list[str]:
            return answers.pop(0)

        url = f"http://rebind.example:{port}/mcp"
        transport = CheckedTransport(Reach(["127.0.0.1"], resolver=rebinding), url)
        async with client_for(transport, seconds=5) as client:
            first = await client.post(url, json={})
            assert first.status_code != 0, "the first address is named, and was connected to"
            with pytest.raises(Refused):
                await client.post(url, json={})
        assert answers == []


async def test_plain_http_does_not_go_out_to_the_internet() -> None:
    async def public(name: str, port: int) -> list[str]:
        return ["93.184.215.14"]

    url = "http://mcp.example.com/mcp"
    transport = CheckedTransport(Reach(resolver=public), url)
    async with client_for(transport, seconds=5) as client:
        with pytest.raises(Refused, match="needs https"):
            await client.post(url, json={}, headers={"authorization": f"Bearer {TOKEN}"})


async def test_a_client_of_one_host_sends_nothing_to_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        transport = CheckedTransport(Reach(["127.0.0.0/8"]), "http://127.0.0.1:9/mcp")
        async with client_for(transport, seconds=5) as client:
            with pytest.raises(Refused, match="another origin"):
                await client.get(f"http://127.0.0.1:{other.getsockname()[1]}/")


async def test_no_log_line_event_or_database_page_has_a_token(
    database_url: str, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as lines:
        async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
            async with token_endpoint(house.server) as endpoint:
                soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat().replace("+00:00", "Z")
                refresh = {
                    "client_id": "client",
                    "refresh_token": endpoint.refresh_token,
                    "token_endpoint": endpoint.url,
                    "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "client-hunter2"},
                }
                oauth = {
                    "type": "mcp_oauth",
                    "access_token": TOKEN,
                    "expires_at": soon,
                    "refresh": refresh,
                }
                session = await house.session(vault_ids=[await house.vault(oauth)])
                await session.says("go", script=[calls("echo_headers"), calls("fail", reason="x"), SAYS])
                first = await session.idle()
                endpoint.revoked = True
                house.server.accepted = set()
                house.server.body = b"no: " + endpoint.granted[-1].encode()
                await session.says("go", script=[calls("echo_headers"), SAYS])
                await session.idle(after=first.id)
                events = str([event.to_dict() for event in await session.events()])
            pages = await database_pages(house)
    assert len(endpoint.granted) == 1
    for needle in ("hunter2",):
        assert needle not in events
        assert needle not in str(lines)
        # The test's own client logs what it puts into the vault; nothing of ours may.
        ours = [one.getMessage() for one in caplog.records if "/v1/vaults" not in one.getMessage()]
        assert needle not in "".join(ours)
        assert needle.encode() not in pages
    assert "[secret]" in events


async def database_pages(house: McpHouse) -> bytes:
    """Every row of every table, as text."""
    database = house.corral.database
    found = bytearray()
    for row in await database.fetch("select tablename from pg_tables where schemaname = 'public'"):
        statement = sql.SQL("select t::text as line from {} t").format(sql.Identifier(row["tablename"]))
        for line in await database.fetch(statement):
            found += str(line["line"]).encode()
    return bytes(found)


async def test_the_brains_process_never_has_a_token(data_dir: Path) -> None:
    """What the token endpoint gives is known to it and the gateway alone; the server's memory is read."""
    async with mcp_server(accepted=["old-hunter2"]) as server, token_endpoint(server) as endpoint:
        internal = '["127.0.0.0/8"]'
        async with corral_up(data_dir, CORRAL_GATEWAY__INTERNAL=internal) as up:
            async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers, timeout=60) as http:
                session_id = await _session(http, up.told["environment_id"], server.url, endpoint.url)
                text = (
                    'go\nscript: [{"tools":[{"name":"mcp__calc__add","input":{"a":2,"b":3}}]},{"text":"ok"}]'
                )
                message = {"type": "user.message", "content": [{"type": "text", "text": text}]}
                path = f"/v1/sessions/{session_id}/events"
                assert (await http.post(path, json={"events": [message]})).status_code == 200
                async with asyncio.timeout(60):
                    while "agent.mcp_tool_result" not in (listed := (await http.get(path)).text):
                        await asyncio.sleep(0.1)
            assert '"text":"5"' in listed
            assert server.calls == [("add", {"a": 2, "b": 3})]
            token = endpoint.granted[-1].encode()
            assert token in memory(gateway_of(up)), "or this test would show nothing"
            for pid in (up.process.pid, up.worker()):
                found = memory(pid)
                assert token not in found
                assert endpoint.refresh_token.encode() not in found
            await up.stop()


async def _session(http: httpx.AsyncClient, environment_id: str, server_url: str, endpoint_url: str) -> str:
    vault = (await http.post("/v1/vaults", json={"display_name": "V"})).json()
    refresh = {
        "client_id": "client",
        "refresh_token": "refresh-0-hunter2",
        "token_endpoint": endpoint_url,
        "token_endpoint_auth": {"type": "none"},
    }
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat().replace("+00:00", "Z")
    auth = {
        "type": "mcp_oauth",
        "access_token": "old-hunter2",
        "expires_at": soon,
        "mcp_server_url": server_url,
        "refresh": refresh,
    }
    made = await http.post(f"/v1/vaults/{vault['id']}/credentials", json={"auth": auth})
    assert made.status_code == 200, made.text
    policy = {"permission_policy": {"type": "always_allow"}}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "calc", "default_config": policy}
    servers = [{"type": "url", "name": "calc", "url": server_url}]
    agent = {"name": "A", "model": "claude-sonnet-4-5", "tools": [toolset], "mcp_servers": servers}
    agent_id = (await http.post("/v1/agents", json=agent)).json()["id"]
    asked = {"agent": agent_id, "environment_id": environment_id, "vault_ids": [vault["id"]]}
    return str((await http.post("/v1/sessions", json=asked)).json()["id"])
