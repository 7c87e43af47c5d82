"""Transcripts as a dream's agent reads them: what was said and done, in order, a bounded part at a time."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from corral.resources.dream_transcripts import ENTRY, PART, entry_text, list_sessions, read_entry, read_part
from corral.store.database import Database

SESSION = "sesn_1"


@pytest_asyncio.fixture(autouse=True)
async def _a_session(database: Database) -> None:
    await database.execute(
        "insert into environments (id, name, config) values ('env_1', 'E', '{\"type\": \"cloud\"}')"
    )
    await database.execute(
        "insert into sessions (id, title, environment_id, agent_id, agent_version, agent, primary_thread_id,"
        " usage, last_seq) values (%s, 'First', 'env_1', 'agent_1', 1, %s, 'sthr_1', '{}', 7)",
        (SESSION, '{"name": "Helper"}'),
    )


async def log(database: Database, *events: tuple[str, Mapping[str, Any]]) -> None:
    for seq, (kind, body) in enumerate(events, 1):
        await database.execute(
            "insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
            " values (%s, %s, %s, 'sthr_1', %s, %s, now())",
            (SESSION, seq, f"sevt_{seq}", kind, msgspec.json.encode(body).decode()),
        )


def says(text: str) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("user.message", says("Hello."), "user: Hello."),
        (
            "agent.message",
            {"content": [{"type": "text", "text": "a"}, {"type": "image"}]},
            "agent: a\n[image]",
        ),
        (
            "agent.tool_use",
            {"name": "bash", "input": {"command": "ls"}},
            'agent calls bash: {"command":"ls"}',
        ),
        ("agent.tool_result", {**says("no"), "is_error": True}, "result (failed): no"),
        ("user.custom_tool_result", {"content": [], "is_error": False}, "result: "),
        (
            "user.tool_confirmation",
            {"result": "deny", "deny_message": "Not now"},
            "user decides: deny (Not now)",
        ),
        ("session.error", {"error": {"message": "overloaded"}}, "error: overloaded"),
        ("user.interrupt", {}, "user interrupts"),
    ],
)
def test_an_event_is_put_into_words(kind: str, body: dict[str, Any], text: str) -> None:
    assert entry_text(kind, body) == text


async def test_what_nobody_said_is_left_out(database: Database) -> None:
    await log(
        database,
        ("user.message", says("Hi.")),
        ("session.status_running", {}),
        ("span.model_request_start", {}),
        ("agent.thinking", {}),
        ("agent.message", says("Hello.")),
        ("session.status_idle", {"stop_reason": {"type": "end_turn"}}),
    )
    async with database.connection() as connection:
        text = await read_part(connection, SESSION, 0)
    assert text == "[1] user: Hi.\n\n[5] agent: Hello.\n\n(the end of the transcript)"


async def test_a_long_transcript_comes_in_parts_that_make_up_the_whole(database: Database) -> None:
    await log(database, *[("agent.message", says(f"{n} " + "x" * 500)) for n in range(450)])
    seen: list[str] = []
    after, parts = 0, 0
    async with database.connection() as connection:
        while True:
            text = await read_part(connection, SESSION, after)
            assert len(text) < PART + ENTRY + 200
            *entries, last = text.split("\n\n")
            seen += [entry.split(" ")[2] for entry in entries]
            parts += 1
            if last == "(the end of the transcript)":
                break
            after = int(last.removeprefix("(there is more: go on with after=").removesuffix(")"))
    assert seen == [str(n) for n in range(450)]
    assert parts > 10


async def test_a_transcript_that_fills_its_last_part_exactly_still_ends(database: Database) -> None:
    await log(database, *[("agent.message", says("x" * ENTRY)) for _ in range(8)])
    async with database.connection() as connection:
        first = await read_part(connection, SESSION, 0)
        assert first.endswith("(there is more: go on with after=8)")
        assert await read_part(connection, SESSION, 8) == "(the end of the transcript)"


async def test_a_long_entry_is_shortened_unless_it_is_asked_for(database: Database) -> None:
    await log(database, ("user.message", says("y" * (ENTRY + 5))))
    async with database.connection() as connection:
        part = await read_part(connection, SESSION, 0)
        whole = await read_entry(connection, SESSION, 1)
        assert await read_entry(connection, SESSION, 2) is None
    assert "… (11 more characters)" in part
    assert whole == "[1] user: " + "y" * (ENTRY + 5)


async def test_sessions_are_listed_as_far_as_they_are_there(database: Database) -> None:
    async with database.connection() as connection:
        text = await list_sessions(connection, [SESSION, "sesn_gone"])
    assert text.startswith("sesn_1: First, agent Helper, made 20")
    assert text.endswith("Z, 7 events")
