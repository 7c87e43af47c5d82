"""A call of an MCP tool is made once, whoever dies meanwhile (DESIGN section 5)."""

import asyncio
from typing import Any

from corral.gateway.calls import INTERRUPTED
from corral.gateway.client import GatewayClient
from corral.testing import ScriptedModel
from corral.vault.grants import GrantedSession, Grants
from corral.wire.gateway import CallOutcome, CallRequest
from tests.corral_server import SessionUnderTest, running_corral
from tests.e2e.mcp_house import KEY, McpHouse, calls, last_message, mcp_house, settings_with
from tests.mcp_parts import GatewayUnderTest, gateway_at_work

SAYS = {"text": "they said: {result}"}


async def granted(house: McpHouse, session: SessionUnderTest) -> GrantedSession:
    """The session as a gateway sees it on a grant."""
    grants = Grants(house.corral.database)
    row = await house.corral.database.fetch_one("select epoch from sessions where id = %s", (session.id,))
    assert row is not None
    found = await grants.session((await grants.for_session(session.id, row["epoch"])).reveal())
    assert found is not None
    return found


async def asked_of(gateway: GatewayUnderTest, session: GrantedSession, event_id: str) -> CallOutcome:
    return await gateway.services.calls.call(session, CallRequest(event_id=event_id))


def text_of(outcome: CallOutcome) -> str:
    return str(outcome.content[0]["text"])


async def waiting_call(house: McpHouse, **fields: Any) -> tuple[SessionUnderTest, str]:
    """A session whose call of the tool `wait` has begun at the server, and the call's event."""
    session = await house.session(**fields)
    await session.says("go", script=[calls("wait"), SAYS])
    async with asyncio.timeout(20):
        await house.server.started.wait()
    [use] = await session.events(types=["agent.mcp_tool_use"])
    return session, use.id


async def test_a_call_outlives_the_brain_that_asked_for_it(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model) as house:
        session, _ = await waiting_call(house)
        # Another brain takes the session, as after a crash: the epoch moves on under the first one.
        await house.corral.database.execute(
            "update wakes set brain_id = 'brain_dead', lease_until = now() where session_id = %s",
            (session.id,),
        )
        settings = settings_with(house.gateway.url, model)
        async with running_corral(database_url, model, settings=settings):
            async with asyncio.timeout(20):
                while (await house.corral.database.fetch_one(_EPOCH, (session.id,)) or {})["epoch"] < 2:
                    await asyncio.sleep(0)
            house.server.proceed.set()
            await session.idle()
        assert house.server.calls == [("wait", {})]
        assert await last_message(session) == "they said: waited"


_EPOCH = "select epoch from sessions where id = %s"


async def test_asked_again_a_gateway_gives_the_outcome_that_it_has_kept(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model) as house:
        session, event_id = await waiting_call(house)
        seen = await granted(house, session)
        async with gateway_at_work(house.corral.database, KEY) as other:
            elsewhere = asyncio.create_task(asked_of(other, seen, event_id))
            again = asyncio.create_task(asked_of(house.gateway, seen, event_id))
            house.server.proceed.set()
            async with asyncio.timeout(20):
                assert text_of(await again) == "waited"
                assert text_of(await elsewhere) == "waited"
        assert house.server.calls == [("wait", {})]


async def test_a_call_is_cancelled_through_another_gateway_than_the_one_that_makes_it(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model) as house:
        session, event_id = await waiting_call(house)
        seen = await granted(house, session)
        grants = Grants(house.corral.database)
        epoch = await house.corral.database.fetch_one(_EPOCH, (session.id,))
        assert epoch is not None
        async with gateway_at_work(house.corral.database, KEY) as other:
            waiting = asyncio.create_task(asked_of(house.gateway, seen, event_id))
            client = GatewayClient(other.url, grants, call_seconds=60)
            await client.cancel(await grants.for_session(session.id, epoch["epoch"]), event_id)
            await client.close()
            async with asyncio.timeout(20):
                await house.server.cancelled.wait()
                assert text_of(await waiting) == INTERRUPTED
            assert text_of(await asked_of(other, seen, event_id)) == INTERRUPTED
        await session.idle()
        [result] = await session.events(types=["agent.mcp_tool_result"])
        assert (result.is_error, result.content[0].text) == (True, INTERRUPTED)
        assert house.server.calls == [("wait", {})]


async def test_of_a_call_whose_gateway_died_the_outcome_is_unknown(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model) as house:
        session, event_id = await waiting_call(house)
        seen = await granted(house, session)
        await _forget_gateway(house)
        async with gateway_at_work(house.corral.database, KEY) as other:
            outcome = await asked_of(other, seen, event_id)
            assert (outcome.is_error, "unknown" in text_of(outcome)) == (True, True)
            assert text_of(await asked_of(other, seen, event_id)) == text_of(outcome)
        assert house.server.calls == [("wait", {})]


async def test_a_call_that_may_be_repeated_is_made_again_when_its_gateway_died(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session(policy={})
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        idle = await session.idle()
        [event_id] = idle.stop_reason.event_ids
        await house.corral.database.execute(
            "insert into mcp_outcomes (event_id, session_id, gateway_id) values (%s, %s, 'gateway_dead')",
            (event_id, session.id),
        )
        await session.sends({"type": "user.tool_confirmation", "tool_use_id": event_id, "result": "allow"})
        await session.idle(after=idle.id)
        assert await last_message(session) == "they said: 5"


async def test_outcomes_are_removed_once_the_log_has_them(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session()
        await session.says("go", script=[calls("add", a=1, b=1), calls("add", a=2, b=2), SAYS])
        await session.idle()
        kept = await house.corral.database.fetch("select event_id from mcp_outcomes")
        uses = await session.events(types=["agent.mcp_tool_use"])
        assert [row["event_id"] for row in kept] == [uses[-1].id]


async def test_a_gateway_that_is_away_is_waited_for(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session(policy={})
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        idle = await session.idle()
    # The same server, with a gateway that comes only after it was asked.
    port = int(house.gateway.url.rsplit(":", 1)[1])
    settings = settings_with(house.gateway.url, model)
    async with running_corral(database_url, model, settings=settings) as corral:
        again = SessionUnderTest(corral, session.id)
        verdict = {"type": "user.tool_confirmation", "result": "allow"}
        await again.sends({**verdict, "tool_use_id": idle.stop_reason.event_ids[0]})
        await again.until("session.status_running", after=idle.id)
        async with gateway_at_work(corral.database, KEY, port=port):
            await again.until("agent.mcp_tool_result", after=idle.id)
            await again.idle(after=idle.id)
        assert "cannot be used" in await last_message(again), "its server is gone, and that is what is told"


async def _forget_gateway(house: McpHouse) -> None:
    """Let the gateway look as after `kill -9`: its lock is gone, its row is not."""
    await house.corral.database.execute("update gateways set lock_key = 1")
