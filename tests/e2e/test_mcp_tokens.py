"""OAuth tokens of MCP servers: renewed once for everybody who needs them, and never lost (section 15.3)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.vault import rows
from corral.vault.grants import Grants
from corral.vault.sealing import key_ring
from corral.wire.gateway import ToolsAnswer, ToolsRequest
from tests.corral_server import running_corral
from tests.e2e.mcp_house import KEY, McpHouse, calls, last_message, settings_with
from tests.mcp_parts import GatewayUnderTest, TokenEndpoint, gateway_at_work, mcp_server, token_endpoint

FIRST = "access-0-hunter2"
SAYS = {"text": "they said: {result}"}


@dataclass(frozen=True)
class Bank:
    """A house whose MCP server wants an OAuth token, with the endpoint that renews it."""

    house: McpHouse
    endpoint: TokenEndpoint
    second: GatewayUnderTest
    """Another gateway on the same database."""

    async def vault(self, *, expires_in: float | None = 3600, **refresh: Any) -> str:
        """A vault with a credential; its token runs out so many seconds from now."""
        auth: dict[str, Any] = {
            "type": "mcp_oauth",
            "access_token": FIRST,
            "refresh": {
                "client_id": "client",
                "refresh_token": self.endpoint.refresh_token,
                "token_endpoint": self.endpoint.url,
                "token_endpoint_auth": {"type": "none"},
                **refresh,
            },
        }
        if expires_in is not None:
            moment = datetime.now(UTC) + timedelta(seconds=expires_in)
            auth["expires_at"] = moment.isoformat().replace("+00:00", "Z")
        return await self.house.vault(auth)

    async def secrets(self) -> dict[str, str]:
        """The one credential's secrets."""
        database = self.house.corral.database
        row = await database.fetch_one("select id from vault_credentials")
        assert row is not None
        opened = await rows.read(database, row["id"], key_ring(KEY))
        return {field: secret.reveal() for field, secret in opened.items()}


@asynccontextmanager
async def bank(database_url: str, model: ScriptedModel) -> AsyncGenerator[Bank]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(mcp_server(accepted=[FIRST]))
        endpoint = await stack.enter_async_context(token_endpoint(server))
        database = await stack.enter_async_context(Database(database_url))
        first = await stack.enter_async_context(gateway_at_work(database, KEY))
        second = await stack.enter_async_context(gateway_at_work(database, KEY))
        settings = settings_with(first.url, model)
        corral = await stack.enter_async_context(running_corral(database_url, model, settings=settings))
        yield Bank(McpHouse(corral, first, server), endpoint, second)


async def test_a_token_that_runs_out_is_renewed_before_it_is_used(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        session = await at.house.session(vault_ids=[await at.vault(expires_in=30)])
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        await session.idle()
        assert await last_message(session) == "they said: 5"
        assert [one["grant_type"] for one in at.endpoint.requests] == ["refresh_token"]
        sent = {one["headers"].get("authorization") for one in at.house.server.seen}
        assert sent == {"Bearer access-1-hunter2"}


async def test_the_new_tokens_are_sealed_and_the_new_expiry_is_shown(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        vault_id = await at.vault(expires_in=30)
        session = await at.house.session(vault_ids=[vault_id])
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        await session.idle()
        secrets = await at.secrets()
        assert secrets == {"access_token": "access-1-hunter2", "refresh_token": "refresh-1-hunter2"}
        sdk: Any = at.house.corral.client.beta.vaults.credentials
        [shown] = [one async for one in sdk.list(vault_id)]
        left = shown.auth.expires_at - datetime.now(UTC)
        assert timedelta(minutes=55) < left < timedelta(minutes=65)


async def test_a_token_that_the_server_refuses_is_renewed_and_the_call_made_again(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        session = await at.house.session(vault_ids=[await at.vault()])
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        first = await session.idle()
        at.house.server.accepted = set()
        await session.says("go", script=[calls("add", a=4, b=4), SAYS])
        await session.idle(after=first.id)
        assert await last_message(session) == "they said: 8"
        assert len(at.endpoint.requests) == 1
        assert at.house.server.calls == [("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 4})]


async def test_many_sessions_on_two_gateways_have_a_token_renewed_once(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        vault_id = await at.vault(expires_in=30)
        sessions = [await at.house.session(vault_ids=[vault_id]) for _ in range(6)]
        grants = Grants(at.house.corral.database)
        at.endpoint.hold = asyncio.Event()

        async def listed(n: int, session_id: str) -> ToolsAnswer:
            gateway = (at.house.gateway, at.second)[n % 2]
            row = await at.house.corral.database.fetch_one(
                "select epoch from sessions where id = %s", (session_id,)
            )
            assert row is not None
            grant = await grants.for_session(session_id, row["epoch"])
            session = await gateway.services.grants.session(grant.reveal())
            assert session is not None
            return await gateway.services.mcp.tools(session, ToolsRequest(server_name="calc").server_name)

        asking = [asyncio.create_task(listed(n, one.id)) for n, one in enumerate(sessions)]
        async with asyncio.timeout(20):
            await at.endpoint.asked.wait()
            at.endpoint.hold.set()
            answers = await asyncio.gather(*asking)
        assert all(answer.failure is None and answer.tools for answer in answers)
        assert len(at.endpoint.requests) == 1
        assert at.endpoint.revoked is False


async def listen_for_failures(at: Bank) -> None:
    await at.house.corral.database.execute(
        "insert into webhook_endpoints (id, url, events, secret)"
        " values ('whep_1', 'https://hooks.example.com', array['vault_credential.refresh_failed'],"
        " 'whsec_hunter2')"
    )


async def test_a_refused_refresh_clears_nothing_tells_the_webhook_and_leaves_the_session_running(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        await listen_for_failures(at)
        session = await at.house.session(vault_ids=[await at.vault()])
        at.house.server.accepted = set()
        at.endpoint.refresh_token = "another"
        await session.says("go", script=[{"text": "without it"}])
        await session.idle()
        [error] = await session.events(types=["session.error"])
        assert error.error.type == "mcp_authentication_failed_error"
        assert "the token endpoint answered 400" in error.error.message
        assert await last_message(session) == "without it"
        assert (await at.secrets())["refresh_token"] == "refresh-0-hunter2"
        [told] = await at.house.corral.database.fetch("select type, subject, extra from webhook_deliveries")
        assert told["type"] == "vault_credential.refresh_failed"
        assert list(told["extra"]) == ["vault_id"]


async def test_a_refresh_that_may_work_later_is_no_failure_to_tell_of(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        await listen_for_failures(at)
        session = await at.house.session(vault_ids=[await at.vault()])
        at.house.server.accepted = set()
        at.endpoint.answer = 503
        await session.says("go", script=[{"text": "without it"}])
        await session.idle()
        [error] = await session.events(types=["session.error"])
        assert "the token endpoint answered 503" in error.error.message
        assert await at.house.corral.database.fetch("select 1 from webhook_deliveries") == []


async def test_a_refresh_that_fails_late_never_takes_back_what_somebody_else_has_put_there(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        vault_id = await at.vault()
        session = await at.house.session(vault_ids=[vault_id])
        at.house.server.accepted = set()
        at.endpoint.hold = asyncio.Event()
        at.endpoint.answer = 503
        await session.says("go", script=[{"text": "without it"}])
        sdk: Any = at.house.corral.client.beta.vaults.credentials
        [credential] = [one async for one in sdk.list(vault_id)]
        auth = {"type": "mcp_oauth", "access_token": "entered-hunter2"}
        async with asyncio.timeout(20):
            await at.endpoint.asked.wait()
            entering = asyncio.create_task(sdk.update(credential.id, vault_id=vault_id, auth=auth))
            at.endpoint.hold.set()
            await entering
            await session.idle()
        assert (await at.secrets())["access_token"] == "entered-hunter2"


async def test_a_renewal_goes_on_when_whoever_asked_for_it_is_gone(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        session = await at.house.session(vault_ids=[await at.vault(expires_in=30)])
        at.endpoint.hold = asyncio.Event()
        await session.says("go", script=[{"text": "later"}])
        async with asyncio.timeout(20):
            await at.endpoint.asked.wait()
            await session.sends({"type": "user.interrupt"})
            first = await session.idle()
            at.endpoint.hold.set()
            await session.says("go", script=[calls("add", a=2, b=3), SAYS])
            await session.idle(after=first.id)
        assert await last_message(session) == "they said: 5"
        assert len(at.endpoint.requests) == 1
        assert at.endpoint.revoked is False


async def test_the_clients_secret_goes_by_basic_authentication_where_the_credential_says_so(
    database_url: str, model: ScriptedModel
) -> None:
    async with bank(database_url, model) as at:
        basic = {"type": "client_secret_basic", "client_secret": "s:e/c hunter2"}
        session = await at.house.session(
            vault_ids=[await at.vault(expires_in=30, token_endpoint_auth=basic, resource="https://r.example")]
        )
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        await session.idle()
        [asked] = at.endpoint.requests
        assert asked == {
            "grant_type": "refresh_token",
            "refresh_token": "refresh-0-hunter2",
            "resource": "https://r.example",
        }
        [headers] = at.endpoint.headers
        assert headers["authorization"] == "Basic Y2xpZW50OnMlM0FlJTJGYytodW50ZXIy"
