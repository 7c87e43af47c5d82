"""`corral session`: the real command against a real server."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest_asyncio

from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.e2e.terminal import piped, run, terminal
from tests.e2e.test_terminal_chat import WEATHER
from tests.e2e.worker_at_work import TOOLSET, asking, bash


@pytest_asyncio.fixture
async def without_brains(database_url: str, model: ScriptedModel) -> AsyncGenerator[Corral]:
    """A server that takes events and never acts on them."""
    async with running_corral(database_url, model, brains=False) as running:
        yield running


async def test_the_list_shows_what_was_asked_for_newest_first(corral: Corral) -> None:
    old, new = await corral.session(title="the old one"), await corral.session(title="the new one")
    code, out, _ = await run(corral, "session", "list")
    assert code == 0
    assert out.index(new.id) < out.index(old.id)
    assert "the new one" in out
    code, out, _ = await run(corral, "session", "list", "--limit", "1", "--json")
    assert [session["id"] for session in json.loads(out)] == [new.id]
    _, out, _ = await run(corral, "session", "list", "--status", "running")
    assert "No sessions" in out


async def test_an_archived_session_is_listed_only_if_asked(corral: Corral) -> None:
    session = await corral.session()
    code, out, _ = await run(corral, "session", "archive", session.id)
    assert (code, "Archived" in out) == (0, True)
    assert session.id not in (await run(corral, "session", "list"))[1]
    assert session.id in (await run(corral, "session", "list", "--archived"))[1]
    assert "was archived" in (await run(corral, "session", "show", session.id))[1]


async def test_show_tells_why_a_session_stopped_and_what_it_waits_for(corral: Corral) -> None:
    session = await corral.session(asking("bash"), WEATHER)
    calls = [*bash("make release")["tools"], {"name": "get_weather", "input": {"city": "Oslo"}}]
    await session.says("go", script=[{"tools": calls}])
    idle = await session.idle()
    code, out, _ = await run(corral, "session", "show", session.id)
    assert code == 0
    assert "1 tool call waits for your yes or no; 1 tool call waits for a result" in out
    assert "make release" in out
    assert "at list price" in out
    assert f"corral chat --session {session.id}" in out
    _, out, _ = await run(corral, "session", "show", session.id, "--json")
    told = json.loads(out)
    assert told["id"] == session.id
    assert [call["id"] for call in told["facts"]["calls"]] == idle.stop_reason.event_ids
    assert [call["need"] for call in told["facts"]["calls"]] == ["approval", "answer"]


async def test_an_unknown_session_says_how_to_find_the_right_one(corral: Corral) -> None:
    for command in ("show", "follow", "stop"):
        code, _, err = await run(corral, "session", command, "sesn_none")
        assert code == 1
        assert "There is no session sesn_none" in err
        assert "`corral session list`" in err


async def test_follow_shows_the_history_if_asked_and_then_what_comes(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "the first answer"}])
    await session.idle()
    async with terminal(corral, "session", "follow", session.id, "--from-start") as follow:
        await follow.shows("❯ hello")
        await follow.shows("the first answer")
        await follow.shows("at list price")
        sent = await session.says("more", script=[{"text": "the second answer"}])
        await follow.shows("❯ more")
        await follow.shows("the second answer")
        await session.idle(after=sent.data[0].id)
        await follow.shows("at list price")
        follow.types("\x03")
        assert await follow.ends() == 0


async def test_follow_ends_with_the_session(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "hi"}])
    await session.idle()
    async with piped(corral, "session", "follow", session.id, "--from-start", "--json") as process:
        assert process.stdout is not None
        while json.loads(await process.stdout.readline())["type"] != "session.status_idle":
            pass
        await corral.client.beta.sessions.archive(session.id)
        assert json.loads(await process.stdout.readline())["type"] == "session.status_terminated"
        async with asyncio.timeout(30):
            assert await process.wait() == 0


async def test_interrupt_sends_an_interrupt(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "For ever.", "hold": "never"}])
    await corral.model.until_holding("never")
    code, out, _ = await run(corral, "session", "interrupt", session.id, "--json")
    assert code == 0
    assert json.loads(out)["type"] == "user.interrupt"
    await session.idle()


async def test_stop_ends_what_goes_on_and_what_would_start_it_again(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "For ever.", "hold": "never"}])
    await corral.model.until_holding("never")
    await session.says("and then", script=[{"text": "For ever too.", "hold": "never either"}])
    code, out, _ = await run(corral, "session", "stop", session.id, "--json")
    assert code == 0
    assert json.loads(out)["stopped"] is True
    assert (await session.retrieve()).status == "idle"
    code, out, _ = await run(corral, "session", "stop", session.id)
    assert code == 0
    assert "It was not at work. It was interrupted." in out


async def test_stop_needs_no_worker(corral: Corral) -> None:
    session = await corral.session(TOOLSET)
    await session.says("go", script=[bash("sleep 100")])
    await session.until("agent.tool_use")
    code, out, _ = await run(corral, "session", "show", session.id)
    assert "bash has been with the worker for" in out
    code, out, _ = await run(corral, "session", "stop", session.id)
    assert (code, out) == (0, "Stopped.\n")


async def test_stop_says_what_holds_a_session_that_does_not_stop(without_brains: Corral) -> None:
    session = await without_brains.session()
    await session.says("go")
    code, out, _ = await run(without_brains, "session", "stop", session.id, "--timeout", "0.3")
    assert code == 1
    assert "It has not stopped within 0.3 s." in out
    assert "No server has taken up the interrupt" in out
    assert "1 message(s) still wait" in out


async def test_delete_asks_and_needs_the_session_at_rest(corral: Corral) -> None:
    session = await corral.session()
    code, _, err = await run(corral, "session", "delete", session.id)
    assert (code, "--yes" in err) == (1, True)
    await session.says("go", script=[{"text": "For ever.", "hold": "never"}])
    await corral.model.until_holding("never")
    code, _, err = await run(corral, "session", "delete", session.id, "--yes")
    assert (code, f"`corral session stop {session.id}` first" in err) == (1, True)
    assert (await run(corral, "session", "stop", session.id))[0] == 0
    async with terminal(corral, "session", "delete", session.id) as delete:
        await delete.shows("and all its history? [y/N]")
        delete.types("y\n")
        await delete.shows("Deleted.")
        assert await delete.ends() == 0
    assert (await run(corral, "session", "show", session.id))[0] == 1


async def test_a_server_that_goes_away_and_comes_back_loses_nothing(
    database_url: str, model: ScriptedModel
) -> None:
    async with AsyncExitStack() as opened:
        async with running_corral(database_url, model) as first:
            session = await first.session()
            port = int(first.base_url.rpartition(":")[2])
            follow = await opened.enter_async_context(terminal(first, "session", "follow", session.id))
            await follow.shows("Following")
            await session.says("hello", script=[{"text": "before"}, {"text": "after"}])
            await follow.shows("finished its turn")
        await follow.shows("connection lost, trying again")
        async with running_corral(database_url, model, port=port) as second:
            await SessionUnderTest(second, session.id).says("again")
            await follow.shows("❯ again")
            await follow.shows("after")
            await follow.shows("finished its turn")
        assert follow.text.count("● before") == 1
        assert follow.text.count("❯ again") == 1
