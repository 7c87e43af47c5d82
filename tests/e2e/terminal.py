"""The `corral` command as a person meets it: in a terminal (a pty), or in a pipe."""

import asyncio
import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.corral_server import Corral

_SECONDS = 30.0  # a bound for the test, not a promise
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>()][A-Z0-9]?)|\r")
_LAUNCH = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = ["corral", *sys.argv[1:]]
runpy.run_module("corral.cli", run_name="__main__", alter_sys=True)
"""


def surroundings(corral: Corral, **more: str) -> dict[str, str]:
    """The environment variables of a command that talks to this server."""
    return {
        **os.environ,
        "ANTHROPIC_BASE_URL": corral.base_url,
        "ANTHROPIC_API_KEY": corral.api_key,
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        **more,
    }


class Terminal:
    """A command in a terminal: what it shows, and what is typed."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self._master = master
        self._raw = b""
        self._at = 0
        self._more = asyncio.Event()

    @property
    def text(self) -> str:
        """All that it has shown so far, without colours and movements."""
        return _ESCAPES.sub("", self._raw.decode(errors="replace"))

    def read(self) -> None:
        """Take in what has been shown since."""
        try:
            block = os.read(self._master, 65_536)
        except OSError:  # the other side has closed
            block = b""
        if not block:
            asyncio.get_running_loop().remove_reader(self._master)
        self._raw += block
        self._more.set()

    async def shows(self, words: str) -> None:
        """Wait until it shows these words, after what was waited for before."""
        try:
            async with asyncio.timeout(_SECONDS):
                while (found := self.text.find(words, self._at)) < 0:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"it never showed {words!r}, but:\n{self.text}") from None
        self._at = found + len(words)

    def types(self, keys: str) -> None:
        """Type keys; `enters` sends a line off."""
        os.write(self._master, keys.encode())

    def enters(self, line: str) -> None:
        """Type a line and Enter."""
        self.types(line + "\r")

    def pastes(self, text: str) -> None:
        """Paste, as a terminal does it."""
        self.types(f"\x1b[200~{text}\x1b[201~")

    async def ends(self) -> int:
        """The exit status."""
        async with asyncio.timeout(_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def terminal(corral: Corral, *arguments: str, **variables: str) -> AsyncGenerator[Terminal]:
    """`corral ARGUMENTS` in a terminal of its own; killed at the end if it still runs."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _LAUNCH, *arguments,
            stdin=slave, stdout=slave, stderr=slave,
            env=surroundings(corral, **variables),
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(slave)
    shown = Terminal(process, master)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, shown.read)
    try:
        yield shown
    finally:
        loop.remove_reader(master)
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(master)


@asynccontextmanager
async def piped(corral: Corral, *arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`corral ARGUMENTS` with pipes for all three streams; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corral.cli", *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=surroundings(corral),
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(corral: Corral, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """Run `corral ARGUMENTS` to its end: exit status, output, and what it said on standard error."""
    async with piped(corral, *arguments) as process:
        async with asyncio.timeout(_SECONDS):
            out, err = await process.communicate(given.encode())
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()
