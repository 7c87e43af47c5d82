"""A server killed in the middle of a model request: another one, already there or started later, goes on."""

from contextlib import AsyncExitStack
from typing import Any

from corral.testing import ScriptedModel
from tests.server_process import server_process

LOOK_UP: dict[str, Any] = {
    "type": "custom",
    "name": "look_up",
    "description": "Looks something up.",
    "input_schema": {"type": "object"},
}


async def test_sessions_of_a_killed_server_are_carried_on_within_seconds(
    database_url: str, model: ScriptedModel
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(server_process(database_url, model.base_url))
        asking = await first.session(LOOK_UP)
        answering = [await first.session() for _ in range(5)]
        await first.says(asking, [{"tools": [{"name": "look_up", "input": {}}]}, {"text": "never"}])
        before = await first.idle(asking)
        for session_id in answering:
            await first.says(session_id, [{"text": f"hello {session_id}", "hold": "there", "hold_at": "mid"}])
        await model.until_holding("there", 5)
        second = await stack.enter_async_context(server_process(database_url, model.base_url))
        await first.kill()
        await model.until_outcome("disconnected", 5)
        # Its database connection tells of its death: nobody waits for the lease, which is ten minutes.
        await model.until_holding("there", 5)
        model.release("there")
        for session_id in answering:
            events = await second.idle(session_id)
            types = [event.type for event in events]
            assert types.count("user.message") == types.count("session.status_running") == 1
            [message] = [event for event in events if event.type == "agent.message"]
            assert message.content[0].text == f"hello {session_id}"
            ends = [event.is_error for event in events if event.type == "span.model_request_end"]
            assert ends == [True, False]
        # A session that waited for its client was left alone.
        assert await second.idle(asking) == before
        assert model.stats["requests"] == 1 + 5 + 5
