"""A fetch whose brain or gateway dies, and one that the user stops (contract sections 5.2 and 10.3)."""

import asyncio
from typing import Any

from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.vault.grants import Grants
from corral.wire.gateway import CallRequest
from tests.corral_server import SessionUnderTest, running_corral
from tests.e2e.mcp_house import KEY
from tests.mcp_parts import gateway_at_work
from tests.processes import gone
from tests.unit.cli.test_gateway import begun
from tests.web_world import SAYS, WebWorld, fetch, site, web_settings, web_world

WAIT_SECONDS = 30


async def under_way(world: WebWorld, **fields: Any) -> tuple[SessionUnderTest, str]:
    """A session whose fetch the site is holding up, and the call's event."""
    world.site.puts("/slow", "worth the wait", "text/plain")
    world.site.held.add("/slow")
    session = await world.session(**fields)
    url = world.site.url("/slow")
    await world.says(session, f"Read {url}", fetch(url), SAYS)
    async with asyncio.timeout(WAIT_SECONDS):
        await world.site.waiting.get()
    [use] = await session.events(types=["agent.tool_use"])
    return session, use.id


async def result_of(session: SessionUnderTest) -> Any:
    """The only result of the session, once it is idle."""
    await session.idle()
    [result] = await session.events(types=["agent.tool_result"])
    return result.content[0]


async def test_a_fetch_outlives_the_brain_that_asked_for_it(database_url: str, model: ScriptedModel) -> None:
    async with web_world(database_url, model) as world:
        session, _ = await under_way(world)
        # Another brain takes the session, as after a crash: the epoch moves on under the first one.
        await world.corral.database.execute(
            "update wakes set brain_id = 'brain_dead', lease_until = now() where session_id = %s",
            (session.id,),
        )
        settings = web_settings(world.gateway.url, model, web_fetch=True)
        async with running_corral(database_url, model, settings=settings):
            async with asyncio.timeout(WAIT_SECONDS):
                while (await world.corral.database.fetch_one(_EPOCH, (session.id,)) or {})["epoch"] < 2:
                    await asyncio.sleep(0)
            world.site.proceed.set()
            assert (await result_of(session)).source.data == "worth the wait"
        assert world.site.paths() == ["/slow"], "it was fetched once"


_EPOCH = "select epoch from sessions where id = %s"


async def test_a_fetch_whose_gateway_died_is_made_again(database_url: str, model: ScriptedModel) -> None:
    async with web_world(database_url, model) as world:
        session, event_id = await under_way(world)
        database = world.corral.database
        # As after `kill -9`: the gateway's lock is gone, its row is not.
        await database.execute("update gateways set lock_key = 1")
        row = await database.fetch_one(_EPOCH, (session.id,))
        grants = Grants(database)
        grant = await grants.for_session(session.id, (row or {})["epoch"])
        granted = await grants.session(grant.reveal())
        assert granted is not None

        async def resolve(name: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        async with gateway_at_work(
            database, KEY, resolver=resolve, internal=["*.example.com"], web_fetch=True
        ) as other:
            asking = asyncio.create_task(other.services.calls.call(granted, CallRequest(event_id=event_id)))
            async with asyncio.timeout(WAIT_SECONDS):
                await world.site.waiting.get()
            world.site.proceed.set()
            outcome = await asking
        assert outcome.content[0]["source"]["data"] == "worth the wait"
        assert world.site.paths() == ["/slow", "/slow"]


async def test_a_gateway_that_is_killed_in_the_middle_of_a_fetch_is_followed_by_another(
    database_url: str, model: ScriptedModel
) -> None:
    async with site() as outside:
        outside.puts("/slow", "worth the wait", "text/plain")
        outside.held.add("/slow")
        variables = {
            "CORRAL_STORE__URL": database_url,
            "CORRAL_VAULT__KEY": KEY.text.reveal(),
            "CORRAL_GATEWAY__WEB_FETCH": "true",
            "CORRAL_GATEWAY__INTERNAL": '["127.0.0.0/8"]',
            "CORRAL_GATEWAY__EGRESS_PORT": "0",
        }
        first = await begun(**variables)
        assert first.stdout is not None
        port = int((await first.stdout.readline()).decode().rpartition(":")[2].strip().strip('"}'))
        settings = web_settings(f"http://127.0.0.1:{port}", model, web_fetch=True)
        async with running_corral(database_url, model, settings=settings) as corral:
            session = await corral.session({"type": "agent_toolset_20260401"})
            url = outside.url("/slow", "127.0.0.1")
            await session.says(f"Read {url}", script=[fetch(url), SAYS])
            async with asyncio.timeout(WAIT_SECONDS):
                await outside.waiting.get()
            first.kill()
            await first.communicate()
            second = await begun(**{**variables, "CORRAL_GATEWAY__PORT": str(port)})
            async with asyncio.timeout(WAIT_SECONDS):
                await outside.waiting.get()
            outside.proceed.set()
            assert (await result_of(session)).source.data == "worth the wait"
        second.terminate()
        await second.communicate()
        await gone(second.pid)
        assert outside.paths() == ["/slow", "/slow"]


async def test_an_interrupt_ends_a_fetch_at_the_gateway(database_url: str, model: ScriptedModel) -> None:
    async with web_world(database_url, model) as world:
        session, event_id = await under_way(world)
        await session.sends({"type": "user.interrupt"})
        assert "interrupted" in (await result_of(session)).text
        kept = await world.corral.database.fetch_one(
            "select outcome ->> 'is_error' as failed from mcp_outcomes where event_id = %s", (event_id,)
        )
        assert kept == {"failed": "true"}
        world.site.proceed.set()
        assert [event.type for event in await session.events()][-1] == "session.status_idle"


async def test_a_gateway_that_does_not_fetch_says_so(
    database_url: str, database: Database, model: ScriptedModel
) -> None:
    async with gateway_at_work(database, KEY) as closed:
        settings = web_settings(closed.url, model, web_fetch=True)
        async with running_corral(database_url, model, settings=settings) as corral:
            session = await corral.session({"type": "agent_toolset_20260401"})
            await session.says("Read https://example.com/", script=[fetch("https://example.com/"), SAYS])
            assert (await result_of(session)).text.startswith("unavailable: this gateway fetches no pages")
