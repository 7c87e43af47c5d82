"""A server process for the state machine: forked from one that has imported everything, so that it is up in
a fraction of a second and can be killed for real as often as one likes.

Run as a program, this module is that first process: for each line of JSON on its standard input it forks a
server, which writes its process id to standard output once it answers.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
import traceback
from typing import Final

import msgspec

from corral.inference.messages import import_client
from corral.lifetime import run_server
from corral.settings import Brain, Files, Inference, Settings
from corral.store.database import Database
from corral.telemetry.logs import configure_logs
from tests.processes import gone

ATTEMPTS: Final = 4
"""Model requests that fail in a row before a turn is given up."""
_READY_SECONDS: Final = 30.0
_DIE_WITH_PARENT: Final = 1
"""Linux's PR_SET_PDEATHSIG."""


class Place(msgspec.Struct, frozen=True):
    """Where a server serves, and on what."""

    database_url: str
    model_url: str
    port: int
    log: str


class Mortal:
    """A server that is killed and started again, always under the same address."""

    def __init__(self, database_url: str, model_url: str, log: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        self._place = Place(database_url, model_url, port, log)
        self.base_url = f"http://127.0.0.1:{port}"
        self._mother: asyncio.subprocess.Process | None = None
        self._pid: int | None = None

    async def start(self) -> None:
        """Start it; returns once it answers."""
        if self._mother is None:
            self._mother = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.chaos.machine_server",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.write(msgspec.json.encode(self._place) + b"\n")
        async with asyncio.timeout(_READY_SECONDS):
            answer = await self._mother.stdout.readline()
        assert answer.strip().isdigit(), f"the server did not start: {answer!r}"
        self._pid = int(answer)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGKILL)
        await gone(self._pid)
        self._pid = None

    async def close(self) -> None:
        """End everything."""
        if self._pid is not None:
            await self.kill()
        if self._mother is not None:
            assert self._mother.stdin is not None
            self._mother.stdin.close()
            await self._mother.wait()


async def _serve(place: Place) -> None:
    settings = Settings(
        inference=Inference(
            provider="gateway",
            base_url=place.model_url,
            max_retries=ATTEMPTS - 1,
            retry_backoff_seconds=0.01,
            retry_backoff_max_seconds=0.05,
        ),
        brain=Brain(lease_seconds=3.0),
        files=Files(store=f"{place.log}.files"),
    )

    async def tell(_: str) -> None:
        os.write(1, f"{os.getpid()}\n".encode())

    async with Database(place.database_url, name="corral-killed") as database:
        await run_server(
            settings, database, host="127.0.0.1", port=place.port, on_ready=tell, stop=asyncio.Event()
        )


def main() -> None:
    """Fork a server for each line of the input, until it ends."""
    import_client()
    # Nobody asks how the killed ones ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        place = msgspec.json.decode(line, type=Place)
        if os.fork() == 0:
            try:
                # Nobody is left to kill it once its mother has ended.
                ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
                with open(place.log, "a", encoding="utf-8", buffering=1) as stream:
                    configure_logs("info", "json", stream=stream)
                    asyncio.run(_serve(place))
            except BaseException:
                traceback.print_exc()
                os.write(1, b"no server\n")
            finally:
                os._exit(1)


if __name__ == "__main__":
    main()
