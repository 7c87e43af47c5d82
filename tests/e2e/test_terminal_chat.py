"""`corral chat` as a person meets it: the real command in a terminal, against a real server."""

from pathlib import Path
from typing import Any

from tests.corral_server import MODEL, Corral
from tests.e2e.terminal import terminal
from tests.e2e.worker_at_work import TOOLSET, asking, at_work, bash, pool

WEATHER: dict[str, Any] = {
    "type": "custom",
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def test_text_appears_while_the_model_still_writes_it(corral: Corral) -> None:
    line = corral.model.script(
        "slow",
        [
            {
                "text": "The first half comes. And the second.",
                "chunk_chars": 21,
                "hold": "it",
                "hold_at": "mid",
            }
        ],
    )
    async with terminal(corral, "chat") as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await chat.shows("The first half comes.")
        assert "And the second." not in chat.text
        await chat.shows("Ctrl-C interrupts")
        corral.model.release("it")
        await chat.shows("The first half comes. And the second.")
        await chat.shows("The agent has finished its turn.")
        await chat.shows("USD at list price")
        chat.enters("/quit")
        await chat.shows("To come back: corral chat --session sesn_")
        assert await chat.ends() == 0


async def test_an_approved_command_runs_and_its_result_is_shown(corral: Corral, open_folder: Path) -> None:
    line = corral.model.script("ask", [bash("echo one\necho two"), {"text": "I saw {result}"}])
    async with at_work(await pool(corral, open_folder)):
        async with terminal(corral, "chat", "--agent", await corral.agent(asking("bash"))) as chat:
            await chat.shows("Enter sends")
            chat.enters(line)
            await chat.shows("The agent asks to run bash:")
            await chat.shows("    echo one\n    echo two")
            await chat.shows("run it? [y/n]")
            chat.enters("y")
            await chat.shows("allowed")
            await chat.shows("│ two")
            await chat.shows("ok in")
            await chat.shows("I saw one")
            await chat.shows("finished its turn")


async def test_a_denied_command_does_not_run_and_the_agent_reads_why(corral: Corral) -> None:
    line = corral.model.script("ask", [bash("rm -rf build"), {"text": "As you say: {result}"}])
    async with terminal(corral, "chat", "--agent", await corral.agent(asking("bash"))) as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await chat.shows("run it? [y/n]")
        chat.enters("use make clean")
        await chat.shows("denied: use make clean")
        await chat.shows("As you say: The user denied this call; it was not run. They said: use make clean")


async def test_nothing_in_a_command_can_hide_what_would_run(corral: Corral) -> None:
    line = corral.model.script("trick", [bash("rm -rf ~ \x1b[2K\rls \u202e"), {"text": "well"}])
    async with terminal(corral, "chat", "--agent", await corral.agent(asking("bash"))) as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await chat.shows(r"    rm -rf ~ \x1b[2K\x0dls \u202e")
        chat.enters("n")
        await chat.shows("finished its turn")


async def test_a_custom_tool_is_answered_by_hand_with_several_lines(corral: Corral) -> None:
    line = corral.model.script(
        "weather", [{"tools": [{"name": "get_weather", "input": {"city": "Oslo"}}]}, {"text": "So: {result}"}]
    )
    async with terminal(corral, "chat", "--agent", await corral.agent(WEATHER)) as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await chat.shows("asks you for the result of get_weather")
        await chat.shows('"city": "Oslo"')
        chat.pastes('{\n  "celsius": 17\n}')
        chat.types("\r")
        await chat.shows("So: {")
        await chat.shows('"celsius": 17')
        await chat.shows("finished its turn")


async def test_a_custom_tool_can_be_said_to_have_failed(corral: Corral) -> None:
    line = corral.model.script(
        "weather",
        [
            {"tools": [{"name": "get_weather", "input": {}}]},
            {
                "if_result_is_error": True,
                "then": {"text": "It failed: {result}"},
                "else": {"text": "It worked"},
            },
        ],
    )
    async with terminal(corral, "chat", "--agent", await corral.agent(WEATHER)) as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await chat.shows("get_weather ❯")
        chat.enters("/error no such city")
        await chat.shows("It failed: no such city")


async def test_ctrl_c_interrupts_the_turn_and_twice_at_an_idle_prompt_leaves(corral: Corral) -> None:
    line = corral.model.script("long", [{"text": "For ever and ever.", "hold": "never", "hold_at": "mid"}])
    session = await corral.session()
    async with terminal(corral, "chat", "--session", session.id) as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await corral.model.until_holding("never")
        chat.types("\x03")
        await chat.shows("interrupted")
        await chat.shows("cut off")
        await chat.shows("finished its turn")
        assert (await session.retrieve()).status == "idle"
        await chat.shows("Ctrl-C twice leaves")
        chat.types("\x03")
        await chat.shows("Ctrl-C again leaves")
        chat.types("\x03")
        assert await chat.ends() == 0


async def test_ctrl_c_takes_back_what_was_typed_before_it_does_anything_else(corral: Corral) -> None:
    async with terminal(corral, "chat") as chat:
        await chat.shows("Enter sends")
        chat.types("never sent\x03")
        chat.enters("hello")
        await chat.shows("You said: hello")
        chat.types("\x04")
        assert await chat.ends() == 0


async def test_a_message_typed_while_the_agent_works_is_read_at_its_next_step(corral: Corral) -> None:
    line = corral.model.script("steps", [{"text": "one", "hold": "first"}, {"text": "then: {text}"}])
    async with terminal(corral, "chat") as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await corral.model.until_holding("first")
        chat.enters("also this")
        await chat.shows("also this  (read at the next step)")
        corral.model.release("first")
        await chat.shows("then: also this")


async def test_a_chat_comes_back_to_a_session_where_it_was(corral: Corral) -> None:
    session = await corral.session(asking("bash"))
    await session.says("hello", script=[{"text": "Good day to you"}])
    await session.idle()
    sent = await session.says("go on", script=[bash("make release"), {"text": "not released"}])
    await session.until("session.status_idle", after=sent.data[0].id)
    async with terminal(corral, "chat", "--session", session.id) as chat:
        await chat.shows(f"back in session {session.id} · {MODEL}")
        await chat.shows("Good day to you")
        await chat.shows("The agent asks to run bash:")
        await chat.shows("    make release")
        chat.enters("n")
        await chat.shows("not released")
        chat.enters("/cost")
        await chat.shows("at list price")
        chat.enters("/session")
        await chat.shows(f"corral chat --session {session.id}")


async def test_a_question_that_somebody_else_has_answered_is_withdrawn(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    await session.says(
        "weather?", script=[{"tools": [{"name": "get_weather", "input": {}}]}, {"text": "it is {result}"}]
    )
    [call] = (await session.idle()).stop_reason.event_ids
    async with terminal(corral, "chat", "--session", session.id) as chat:
        await chat.shows("get_weather ❯")
        content = [{"type": "text", "text": "17 C"}]
        await session.sends(
            {"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content}
        )
        await chat.shows("it is 17 C")
        await chat.shows("Enter sends")
        chat.enters("thanks")
        await chat.shows("❯ thanks")


async def test_the_agent_named_chat_is_made_once(corral: Corral) -> None:
    for _ in range(2):
        async with terminal(corral, "chat") as chat:
            await chat.shows("Enter sends")
            chat.enters("/quit")
            assert await chat.ends() == 0
    agents = [agent async for agent in corral.client.beta.agents.list()]
    assert [agent.name for agent in agents] == ["chat"]


async def test_ask_makes_every_tool_of_an_agent_wait_for_a_yes(corral: Corral) -> None:
    line = corral.model.script("tool", [bash("ls"), {"text": "fine"}])
    async with terminal(corral, "chat", "--ask", "--agent", await corral.agent(TOOLSET)) as chat:
        await chat.shows("Enter sends")
        chat.enters(line)
        await chat.shows("run it? [y/n]")
        chat.enters("n")
        await chat.shows("fine")


async def test_a_terminal_that_can_do_little_still_chats(corral: Corral) -> None:
    line = corral.model.script("ask", [bash("ls"), {"text": "done here"}])
    agent = await corral.agent(asking("bash"))
    async with terminal(corral, "chat", "--agent", agent, TERM="dumb") as chat:
        await chat.shows("Enter sends")
        chat.types(line + "\n")
        await chat.shows("run it? [y/n]")
        chat.types("n\n")
        await chat.shows("done here")
        await chat.shows("Enter sends")
        chat.types("/quit\n")
        assert await chat.ends() == 0
