"""`corral chat` in a pipe: nobody is there, so nothing may wait for somebody."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from tests.corral_server import Corral
from tests.e2e.terminal import piped, run
from tests.e2e.test_terminal_chat import WEATHER
from tests.e2e.worker_at_work import asking, at_work, bash, pool


async def test_all_of_the_input_is_one_message(corral: Corral) -> None:
    code, out, err = await run(corral, "chat", given="two\nlines\n")
    assert code == 0
    assert "● You said: two\nlines\n" in out
    assert "at list price" in out
    assert err.startswith("session sesn_")


async def test_each_line_is_a_message_if_asked(corral: Corral) -> None:
    code, out, _ = await run(corral, "chat", "--lines", given="one\n\ntwo\n")
    assert code == 0
    assert out.index("You said: one") < out.index("You said: two")


async def test_json_is_each_event_of_the_log_once_and_nothing_else(corral: Corral) -> None:
    session = await corral.session()
    code, out, _ = await run(corral, "chat", "--session", session.id, "--json", given="hello")
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == [
        event.id for event in await session.events()
    ]


async def test_approvals_are_denied_and_custom_tools_fail_when_nobody_is_there(corral: Corral) -> None:
    agent = await corral.agent(asking("bash"), WEATHER)
    calls: list[Any] = [*bash("ls")["tools"], {"name": "get_weather", "input": {}}]
    line = corral.model.script("both", [{"tools": calls}, {"text": "1: {result[0]} 2: {result[1]}"}])
    code, out, _ = await run(corral, "chat", "--agent", agent, given=line)
    assert code == 0
    assert "Nobody is here to approve this call" in out
    assert "2: Nobody is here to answer this call." in out


async def test_yes_allows_every_call(corral: Corral, open_folder: Path) -> None:
    line = corral.model.script("ask", [bash("echo it runs"), {"text": "I saw: {result}"}])
    async with at_work(await pool(corral, open_folder)):
        code, out, _ = await run(
            corral, "chat", "--yes", "--agent", await corral.agent(asking("bash")), given=line
        )
    assert code == 0
    assert "I saw: it runs" in out


async def test_a_turn_that_dies_is_told_and_makes_the_command_fail(corral: Corral) -> None:
    line = corral.model.script(
        "dead", [{"error": {"status": 402, "times": 9, "message": "no credit is left"}}]
    )
    code, out, _ = await run(corral, "chat", given=line)
    assert code == 1
    assert "The turn died" in out
    assert "no credit is left" in out


async def test_ctrl_c_interrupts_the_turn_and_tells_so_by_its_status(corral: Corral) -> None:
    line = corral.model.script("long", [{"text": "For ever.", "hold": "never", "hold_at": "mid"}])
    session = await corral.session()
    async with piped(corral, "chat", "--session", session.id) as process:
        assert process.stdin is not None
        process.stdin.write(line.encode())
        process.stdin.write_eof()
        await corral.model.until_holding("never")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert await process.wait() == 130
    assert (await session.retrieve()).status == "idle"


async def test_an_empty_input_is_refused_with_what_to_do(corral: Corral) -> None:
    code, _, err = await run(corral, "chat")
    assert code == 1
    assert "the input is empty" in err
    assert "What to do" in err


async def test_a_session_that_has_ended_takes_no_chat(corral: Corral) -> None:
    session = await corral.session()
    await corral.client.beta.sessions.archive(session.id)
    code, _, err = await run(corral, "chat", "--session", session.id, given="hello")
    assert code == 1
    assert "has ended" in err


async def test_a_wrong_key_and_an_unknown_session_say_what_to_do(corral: Corral) -> None:
    code, _, err = await run(corral, "chat", "--api-key", "corral_ak_wrong", given="hello")
    assert code == 1
    assert "ANTHROPIC_API_KEY" in err
    code, _, err = await run(corral, "chat", "--session", "sesn_none", given="hello")
    assert code == 1
    assert "`corral session list`" in err
