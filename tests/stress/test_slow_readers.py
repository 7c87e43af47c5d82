"""Hundreds of clients that do not read: the server's memory stays bounded, and who reads gets everything."""

import asyncio
from contextlib import ExitStack
from typing import Any

from corral.testing import ScriptedModel
from tests.corral_server import Corral
from tests.server_process import KEY, idle, messages, server_process
from tests.slow_reader import SlowReader
from tests.stress.budgets import RESPONSIVE, SLOW_READERS
from tests.stress.load import check_responsive, resident_mib

LONG = "a word and " * 8_000


async def test_memory_is_bounded_by_the_number_of_slow_readers(database_url: str) -> None:
    async with (
        ScriptedModel() as model,
        server_process(database_url, model.base_url, load__stalled_seconds="600") as server,
    ):
        await server.until_ready()
        session_id = await server.session()
        path = f"/v1/sessions/{session_id}/events/stream?event_deltas[]=agent.message"
        nothing: Any = None
        corral = Corral(server.base_url, KEY, model, nothing, nothing, server.client)
        steps: list[dict[str, Any]] = [{"text": LONG, "chunk_chars": 8}]
        model.script("long", steps)
        before = resident_mib(server.process.pid)
        with ExitStack() as stack:
            slow = [stack.enter_context(SlowReader(corral, path)) for _ in range(SLOW_READERS.readers)]
            await asyncio.gather(*(one.began() for one in slow))
            for number in range(1, SLOW_READERS.rounds + 1):
                message: Any = {
                    "type": "user.message",
                    "content": [{"type": "text", "text": "script: long"}],
                }
                await server.client.beta.sessions.events.send(session_id, events=[message])
                assert messages(await idle(server.client, session_id, number)) == [LONG] * number
            grown = resident_mib(server.process.pid) - before
        server.ask_to_stop()
        check_responsive(await server.ended(), RESPONSIVE)
        assert grown < SLOW_READERS.readers * SLOW_READERS.memory_mib_per_reader, f"{grown:.0f} MiB"
