"""The doors of sandboxes: how many connections one lets through, and that another one's are not affected."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from corral.hands.worker.doors import Doors
from corral.wire.egress import Way
from corral.wire.secret import Secret


@asynccontextmanager
async def a_patient_gateway() -> AsyncGenerator[tuple[Way, list[bytes]]]:
    """One that keeps every connection; the way to it, and what it was greeted with."""
    greeted: list[bytes] = []
    over = asyncio.Event()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.append(await reader.readline())
        await over.wait()
        writer.close()

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    async with server:
        yield Way(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", ""), greeted
        over.set()


async def test_a_sandbox_that_opens_too_many_is_told_so_and_holds_up_no_other(open_folder: Path) -> None:
    doors = Doors(open_folder / "doors")
    async with a_patient_gateway() as (way, greeted):
        greedy = await doors.open("sesn_1", way, Secret("corral_wt_1"))
        modest = await doors.open("sesn_2", way, Secret("corral_wt_2"))
        held: list[asyncio.StreamWriter] = []
        try:
            for _ in range(140):
                _, writer = await asyncio.open_unix_connection(str(greedy))
                held.append(writer)
            async with asyncio.timeout(20):
                while len(greeted) < 128:
                    await asyncio.sleep(0.01)
                reader, writer = await asyncio.open_unix_connection(str(greedy))
                held.append(writer)
                assert (await reader.read()).startswith(b"HTTP/1.1 503")
                _, writer = await asyncio.open_unix_connection(str(modest))
                held.append(writer)
                while b"CORRAL-EGRESS/1 corral_wt_2\n" not in greeted:
                    await asyncio.sleep(0.01)
            assert greeted.count(b"CORRAL-EGRESS/1 corral_wt_1\n") == 128
        finally:
            for writer in held:
                writer.close()
            await doors.close_all()
