"""A cut that outlives every connection: afterwards the server works as if nothing had been."""

import asyncio

import pytest

from corral.testing import ScriptedModel
from tests.corral_server import running_corral
from tests.e2e.test_partitions import server_on
from tests.network import machine, why_not
from tests.server_process import idle, messages
from tests.stress.budgets import PARTITION


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_a_server_comes_back_after_a_long_partition(database_url: str) -> None:
    async with (
        ScriptedModel() as model,
        machine() as there,
        server_on(there, database_url, model) as cut,
        running_corral(database_url, model) as other,
    ):
        session_id = await cut.session()
        for turns, text in enumerate(("before", "meanwhile"), 1):
            if text == "meanwhile":
                await there.cut()
            client = cut.client if text == "before" else other.client
            await client.beta.sessions.events.send(
                session_id,
                events=[
                    {
                        "type": "user.message",
                        "content": [{"type": "text", "text": f'script: {{"text": "{text}"}}'}],
                    }
                ],
            )
            await idle(other.client, session_id, turns)
        await asyncio.sleep(PARTITION.seconds)
        await there.mend()
        await cut.until_ready()
        await cut.says(session_id, [{"text": "after"}])
        assert messages(await idle(cut.client, session_id, 3)) == ["before", "meanwhile", "after"]
        cut.ask_to_stop()
        await cut.ended()
