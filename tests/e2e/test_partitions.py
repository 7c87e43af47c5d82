"""A server that is cut off, or whose clock is wrong: the database decides who has a session, by its clock."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.testing import ScriptedModel
from tests.corral_server import SessionUnderTest, running_corral
from tests.network import Machine, database_at, machine, passed_on, why_not
from tests.server_process import ServerProcess, idle, messages, model_requests, says, server_process

_FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
"""Loaded into a process it moves the clock that the process sees."""


@asynccontextmanager
async def server_on(
    there: Machine, database_url: str, model: ScriptedModel, **parameters: str
) -> AsyncGenerator[ServerProcess]:
    """`corral serve` on another machine, which reaches the database and the model through its cable alone.

    ``parameters`` are those of its connections to the database.
    """
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database_at(there.host, database_url, **parameters))
        model_port = httpx.URL(model.base_url).port
        assert model_port is not None
        port = await stack.enter_async_context(passed_on(there.host, port=model_port))
        model_url = f"http://{there.host}:{port}"
        yield await stack.enter_async_context(
            server_process(
                url,
                model_url,
                launcher=there.launcher,
                server__host=there.address,
                brain__lease_seconds="2",
            )
        )


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_a_server_that_was_cut_off_loses_its_sessions_and_writes_nothing_late(
    database_url: str, model: ScriptedModel
) -> None:
    # Its connections are to outlive the cut: it must be told by the database, not by its own network.
    patience = {"tcp_user_timeout": "600000"}
    async with machine() as there, server_on(there, database_url, model, **patience) as cut:
        session_id = await cut.session()
        await cut.says(session_id, [{"text": "the answer", "hold": "there"}])
        await model.until_holding("there")
        async with running_corral(database_url, model) as other:
            await there.cut()
            # The lock of the one that was cut off is still held, since nothing has told the database.
            await model.until_requests(2)
            model.release("there")
            events = await idle(other.client, session_id)
            assert messages(events) == ["the answer"]
            await there.mend()
            # Its own answer comes through now, and it finds that the session is another's.
            await cut.log.until("the session is another brain's now")
            assert messages(await idle(other.client, session_id)) == ["the answer"]
            await cut.until_ready()
            # It works as before: it takes a message, and a turn of either server ends.
            await cut.says(session_id, [{"text": "on it goes"}])
            events = await idle(other.client, session_id, turns=2)
        assert messages(events) == ["the answer", "on it goes"]
        ends = [event.is_error for event in events if event.type == "span.model_request_end"]
        # The request of the one that was cut off was closed by the other, and two were answered.
        assert ends[0] is True
        assert ends.count(False) == 2
        cut.ask_to_stop()
        await cut.ended()


@pytest.mark.skipif(_FAKETIME is None, reason="there is no libfaketime (apt-get install libfaketime)")
async def test_servers_whose_clocks_are_minutes_apart_work_together(
    database_url: str, model: ScriptedModel
) -> None:
    """They are further apart than a lease is long: read by the other clock, each has run out already."""

    def clock(offset: str) -> tuple[str, ...]:
        moved = (f"LD_PRELOAD={_FAKETIME}", f"FAKETIME={offset}", "FAKETIME_DONT_FAKE_MONOTONIC=1")
        return "env", *moved

    async with AsyncExitStack() as stack:
        early, late = await asyncio.gather(
            *(
                stack.enter_async_context(
                    server_process(
                        database_url, model.base_url, launcher=clock(offset), brain__lease_seconds="600"
                    )
                )
                for offset in ("+7m", "-7m")
            )
        )
        sessions = [await server.session() for server in (early, late) for _ in range(3)]
        slow: list[dict[str, Any]] = [{"text": "slowly", "delay_ms": 1500}]
        await asyncio.gather(*(says(early.client, one, slow) for one in sessions[:3]))
        await asyncio.gather(*(says(late.client, one, slow) for one in sessions[3:]))
        for one in sessions:
            assert messages(await idle(late.client, one)) == ["slowly"]
        assert model_requests(model) == len(sessions)
        # A retry is due when the database says so: neither in seven minutes, nor seven minutes ago.
        failing: list[dict[str, Any]] = [{"text": "at last", "error": {"status": 529, "times": 1}}]
        await says(early.client, sessions[0], failing)
        events = await idle(early.client, sessions[0], turns=2)
        assert messages(events) == ["slowly", "at last"]
        times = [event.processed_at for event in events]
        assert times == sorted(times)
        # What one has written is dated like what the other has: by the database.
        async with running_corral(database_url, model, brains=False) as here:
            row = await here.database.fetch_one(
                "select now() - max(processed_at) between interval '0' and interval '5 minutes' as good"
                " from events"
            )
            assert row == {"good": True}
            assert (await SessionUnderTest(here, sessions[0]).retrieve()).status == "idle"
