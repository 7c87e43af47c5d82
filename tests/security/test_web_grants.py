"""What a grant has the gateway do for web tools: calls that are in the log and allowed, and nothing else."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest_asyncio
import structlog

from corral.gateway.calls import Calls, LoggedCall
from corral.gateway.mcp_outcomes import Outcomes
from corral.testing import ScriptedModel
from corral.vault.grants import GrantedSession, Grants
from corral.wire.gateway import CALL_PATH, CallOutcome, CallRequest
from tests.corral_server import SessionUnderTest
from tests.e2e.conftest import model as model
from tests.web_world import SAYS, WebWorld, fetch, web_world

ASK = {"name": "web_fetch", "permission_policy": {"type": "always_ask"}}


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel) -> AsyncGenerator[WebWorld]:
    """A world with web tools and one site."""
    async with web_world(database_url, model) as world:
        world.site.puts("/x", "here", "text/plain")
        yield world


async def grant(world: WebWorld, session: SessionUnderTest) -> str:
    row = await world.corral.database.fetch_one("select epoch from sessions where id = %s", (session.id,))
    assert row is not None
    return (await Grants(world.corral.database).for_session(session.id, row["epoch"])).reveal()


async def status(world: WebWorld, token: str, event_id: str) -> int:
    """What the gateway answers to whoever asks for a call with this grant."""
    async with httpx.AsyncClient(base_url=world.gateway.url) as http:
        headers = {"authorization": f"Bearer {token}"}
        return (await http.post(CALL_PATH, json={"event_id": event_id}, headers=headers)).status_code


async def asking(world: WebWorld) -> tuple[SessionUnderTest, dict[str, str]]:
    """A session that waits for the user, and its calls by name."""
    bash = {"name": "bash", "enabled": True, "permission_policy": {"type": "always_ask"}}
    session = await world.session(ASK, bash)
    url = world.site.url("/x")
    calls = [*fetch(url)["tools"], {"name": "bash", "input": {"command": "true"}}]
    calls.append({"name": "web_search", "input": {"query": "x"}})
    await world.says(session, f"Read {url}", {"tools": calls}, SAYS)
    await session.idle()
    return session, {use.name: use.id for use in await session.events(types=["agent.tool_use"])}


async def test_no_call_is_made_that_was_not_allowed_or_is_not_the_gateways(world: WebWorld) -> None:
    session, calls = await asking(world)
    token = await grant(world, session)
    for event_id in (*calls.values(), "sevt_none"):
        assert await status(world, token, event_id) == 404
    assert world.site.server.asked == []


async def test_a_call_that_the_user_denied_is_not_made(world: WebWorld) -> None:
    session, calls = await asking(world)
    token = await grant(world, session)
    denied = {"type": "user.tool_confirmation", "tool_use_id": calls["web_fetch"], "result": "deny"}
    await session.sends(denied)
    await session.until("agent.tool_result")
    assert await status(world, token, calls["web_fetch"]) in (401, 404)
    assert world.site.server.asked == []


async def test_a_grant_opens_no_call_of_another_session(world: WebWorld) -> None:
    session = await world.session()
    await world.fetched(session, world.site.url("/x"))
    [use] = await session.events(types=["agent.tool_use"])
    other, _ = await asking(world)
    assert await status(world, await grant(world, other), use.id) == 404


class Failing:
    """Makes calls, and fails inside."""

    async def make(self, session: GrantedSession, call: LoggedCall) -> CallOutcome:
        """Fail."""
        raise RuntimeError("a fault of ours")

    async def is_repeatable(self, session: GrantedSession, call: LoggedCall) -> bool:
        """It may."""
        return True


async def test_a_call_that_fails_inside_has_an_outcome_all_the_same(world: WebWorld) -> None:
    session = await world.session()
    await world.fetched(session, world.site.url("/x"))
    [use] = await session.events(types=["agent.tool_use"])
    database = world.corral.database
    await database.execute("delete from mcp_outcomes")
    granted = await Grants(database).session(await grant(world, session))
    assert granted is not None
    maker: Any = Failing()
    async with Outcomes(database) as outcomes:
        calls = Calls(database=database, outcomes=outcomes, mcp=maker, web=maker, call_seconds=5)
        with structlog.testing.capture_logs() as lines:
            for _ in range(2):
                outcome = await calls.call(granted, CallRequest(event_id=use.id))
                assert (outcome.is_error, "failed inside" in outcome.content[0]["text"]) == (True, True)
            await calls.close()
    [line] = [line for line in lines if line["event"] == "a call failed inside"]
    assert (line["session_id"], line["call"], line["exc_info"]) == (session.id, use.id, True)
