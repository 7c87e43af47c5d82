"""The terminal of a chat: what is typed stays whole at the bottom while the agent's words come in above it.

Whole lines go into the terminal's own scroll-back. The line that is still growing is drawn above the prompt,
with the prompt, and is written out when it ends.
"""

import asyncio
import io
import re
import signal
import sys
from collections.abc import Callable
from typing import IO, Final, cast

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput

from corral.cli.chat_input import Gesture, Input, Typed

_KEPT_ROWS: Final = 5
"""Rows that a growing line leaves to the prompt."""
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")


class _Above(io.TextIOBase):
    """A file whose text appears above the prompt."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def write(self, text: str, /) -> int:
        self._write(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True


class Terminal:
    """A prompt under running text. ``hear`` gets each line that is typed, and each gesture."""

    def __init__(self, hear: Callable[[Input], None]) -> None:
        self._hear = hear
        self._label = ""
        self._hint = ""
        self._growing = ""
        self.echoes = False
        self.file = cast("IO[str]", _Above(self._write))
        self._buffer = Buffer(multiline=True, history=InMemoryHistory(), accept_handler=self._accept)
        self._application: Application[None] = Application(
            layout=self._layout(), key_bindings=self._keys(), erase_when_done=True
        )

    def ask(self, label: str, hint: str, *, turn: bool) -> None:
        """Show another prompt, and another line of help under it."""
        self._label, self._hint = label, hint
        self._application.invalidate()

    def echo(self, text: str) -> None:
        """Print whole lines above the prompt, and above a line that is still growing."""
        self._print(text + "\n")

    async def run(self) -> None:
        """Show the prompt until `close`."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._hear, Gesture.LEAVE)
        try:
            await self._application.run_async(handle_sigint=False)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)
            if self._growing:
                sys.stdout.write(self._growing + "\n")
                sys.stdout.flush()

    def close(self) -> None:
        """Take the prompt away; `run` returns."""
        if self._application.is_running:
            self._application.exit()

    def _layout(self) -> Layout:
        growing = Window(FormattedTextControl(self._tail), wrap_lines=True, dont_extend_height=True)
        typed = Window(
            BufferControl(
                self._buffer, input_processors=[BeforeInput(lambda: self._label, "bold fg:ansigreen")]
            ),
            wrap_lines=True,
            dont_extend_height=True,
            height=Dimension(min=1, max=12),
        )
        hint = Window(
            FormattedTextControl(lambda: [("fg:ansibrightblack", self._hint)]),
            height=1,
            dont_extend_height=True,
        )
        has_growing = Condition(lambda: bool(self._growing))
        return Layout(HSplit([ConditionalContainer(growing, has_growing), typed, hint]), typed)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            self._buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            self._buffer.insert_text("\n")

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            self._interrupt()

        @keys.add("c-d", filter=Condition(lambda: not self._buffer.text))
        def _(event: KeyPressEvent) -> None:
            self._hear(Gesture.LEAVE)

        return keys

    def _interrupt(self) -> None:
        if self._buffer.text:
            self._buffer.reset()
        else:
            self._hear(Gesture.INTERRUPT)

    def _accept(self, buffer: Buffer) -> bool:
        self._hear(Typed(buffer.text))
        return False

    def _write(self, text: str) -> None:
        whole, newline, rest = (self._growing + text).rpartition("\n")
        if newline:
            self._print(whole + newline)
        self._growing = rest
        self._application.invalidate()

    def _print(self, lines: str) -> None:
        if not self._application.is_running:
            sys.stdout.write(lines)
            sys.stdout.flush()
            return
        self._application.renderer.erase()
        self._application.output.write_raw(lines)
        self._application.output.flush()
        self._application.invalidate()

    def _tail(self) -> StyleAndTextTuples:
        """The growing line; only its end if it is taller than the screen."""
        size = self._application.output.get_size()
        room = max(1, size.rows - _KEPT_ROWS) * size.columns // 2
        if len(self._growing) <= room:
            return to_formatted_text(ANSI(self._growing))
        return [("", "… " + _ESCAPES.sub("", self._growing)[-room:])]
