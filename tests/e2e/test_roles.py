"""Servers with one half of the work each: some answer, others run sessions."""

import asyncio
from contextlib import AsyncExitStack

import httpx

from corral.testing import ScriptedModel
from tests.server_process import KEY, messages, server_process


async def test_one_server_answers_and_another_runs_the_sessions(
    database_url: str, model: ScriptedModel
) -> None:
    async with AsyncExitStack() as stack:
        front, back = await asyncio.gather(
            *(
                stack.enter_async_context(one)
                for one in (
                    # No inference credential where no model is called.
                    server_process(
                        database_url, "", "--role", "api", inference__provider="", server__api_key=KEY
                    ),
                    server_process(database_url, model.base_url, server__role="brain", server__api_key=""),
                )
            )
        )
        await asyncio.gather(front.until_ready(), back.until_ready())
        session_id = await front.session()
        await front.says(session_id, [{"text": "from behind"}])
        assert messages(await front.idle(session_id)) == ["from behind"]
        async with httpx.AsyncClient(base_url=back.base_url, headers={"x-api-key": KEY}) as http:
            assert (await http.get("/v1/sessions")).status_code == 404
            assert (await http.get("/healthz")).status_code == 200
        back.ask_to_stop()
        await back.ended()
        # Nobody works now, and what is sent waits.
        await front.says(session_id, [{"text": "later"}])
        listed = [event async for event in front.client.beta.sessions.events.list(session_id)]
        assert listed[-1].type == "user.message"
        assert listed[-1].processed_at is None
        front.ask_to_stop()
        await front.ended()
