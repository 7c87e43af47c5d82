"""What reaches a chat from the person: lines and gestures; and the plain way to read them."""

import asyncio
import codecs
import os
import signal
import sys
import threading
from collections.abc import Callable
from enum import Enum
from typing import IO, Final, Protocol

import msgspec

_BLOCK: Final = 65_536


class Typed(msgspec.Struct, frozen=True):
    """Something typed and sent off; it may hold several lines."""

    text: str


class Gesture(Enum):
    """Something done rather than said."""

    INTERRUPT = "Ctrl-C"
    LEAVE = "the end of the input, or a request to end"


Input = Typed | Gesture


class Face(Protocol):
    """Where a chat is shown and typed."""

    @property
    def file(self) -> IO[str]:
        """Where the transcript is printed."""
        ...

    @property
    def echoes(self) -> bool:
        """Whether what is typed stays on the screen by itself."""
        ...

    def ask(self, label: str, hint: str, *, turn: bool) -> None:
        """Show a prompt, and a line that says what can be done; ``turn``: it is the person's turn."""
        ...

    def echo(self, text: str) -> None:
        """Print whole lines."""
        ...

    async def run(self) -> None:
        """Read until `close`."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class PlainLines:
    """Reads whole lines and prompts on standard error: for a terminal that can do no more."""

    def __init__(self, hear: Callable[[Input], None], file: IO[str]) -> None:
        self._hear = hear
        self._asked: str | None = None
        self._closed = asyncio.Event()
        self.file = file
        self.echoes = True

    def ask(self, label: str, hint: str, *, turn: bool) -> None:
        """Print the prompt once each time that it is the person's turn."""
        if not turn:
            self._asked = None
        elif self._asked != f"{label}{hint}":
            self._asked = f"{label}{hint}"
            print(f"({hint})\n{label}", end="", file=sys.stderr, flush=True)

    def echo(self, text: str) -> None:
        """Print on standard error."""
        print(text, file=sys.stderr, flush=True)

    async def run(self) -> None:
        """Read lines until `close`."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._hear, Gesture.INTERRUPT)
        loop.add_signal_handler(signal.SIGTERM, self._hear, Gesture.LEAVE)
        # A thread that reads a terminal cannot be stopped, so it must not be waited for either.
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        try:
            await self._closed.wait()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)

    def close(self) -> None:
        """Stop listening; `run` returns."""
        self._closed.set()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        # Not `sys.stdin`: its lock would be held by this thread when the interpreter ends.
        while block := os.read(0, _BLOCK):
            *lines, rest = (rest + decoder.decode(block)).split("\n")
            for line in lines:
                self._tell(loop, Typed(line))
        if rest:
            self._tell(loop, Typed(rest))
        self._tell(loop, Gesture.LEAVE)

    def _tell(self, loop: asyncio.AbstractEventLoop, said: Input) -> None:
        try:
            loop.call_soon_threadsafe(self._hear, said)
        except RuntimeError:
            return  # the loop has closed: nobody listens any more
