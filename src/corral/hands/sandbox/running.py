"""The outer end of a running sandbox: calls out, results in, one process to watch.

Everything that comes from inside is the agent's word: lines are bounded and parsed strictly, and one that
breaks the protocol costs the sandbox, not the worker.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Annotated, Any, Literal

import msgspec
import structlog

from corral.hands.sandbox.provider import SandboxLost, SandboxUnavailable, ToolOutput

#: Seconds that a sandbox has to say it is ready.
START_SECONDS = 30.0
#: Seconds that a cancelled call has to be dead before the whole sandbox is stopped.
CANCEL_SECONDS = 10.0
#: Bytes of one line from inside: the largest document (20 MiB), encoded, and some room.
LINE_BYTES = 40 * 1024 * 1024

#: Seconds of silence after which the program is asked whether it is still there, and that it has to answer.
SILENCE_SECONDS = 30.0
#: Characters of text in one result; the program inside keeps far below it.
TEXT_LIMIT = 4 * 1024 * 1024

_PROTOCOL_VERSION = 1
_STDERR_BYTES = 4096
_STDERR_MOST = 64 * 1024
_STDERR_PAUSE = 0.01

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Source(msgspec.Struct, forbid_unknown_fields=True):
    # Only content itself. An address would be fetched by whoever reads the result: a way out past every wall.
    type: Literal["base64"]
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"]
    data: str


class _Text(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_LIMIT)]


class _Image(msgspec.Struct, tag="image", forbid_unknown_fields=True):
    source: _Source


class _Document(msgspec.Struct, tag="document", forbid_unknown_fields=True):
    source: _Source


class _Reply(msgspec.Struct):
    """A line from inside."""

    id: int | None = None
    content: Annotated[list[_Text | _Image | _Document], msgspec.Meta(max_length=16)] = []
    is_error: bool = False
    cancelled: bool = False
    ready: bool = False
    version: int = 0
    python: str = ""
    pong: int | None = None


class _Pipe(asyncio.StreamReaderProtocol):
    """One of the three pipes. `closed` is done when the transport has given up its descriptor."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        super().__init__(stream)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)


class RunningSandbox:
    """A sandbox made of one process that speaks the program's protocol. Made by `start`.

    config: the first line that the program is sent. kill: ends the process and all that it started; awaited
    once, before the process is reaped. give_back: gives back what it had on the host; called once, in a
    thread, when nothing of it lives.
    """

    def __init__(
        self,
        session_id: str,
        process: subprocess.Popen[bytes],
        config: bytes,
        kill: Callable[[], Awaitable[None]],
        give_back: Callable[[], None] | None = None,
    ) -> None:
        self._session_id = session_id
        self._process = process
        self._config = config
        self._kill = kill
        self._give_back = give_back
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[_Reply]] = {}
        self._lost: str | None = None
        self._pong: asyncio.Future[None] | None = None
        self._ready: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()
        self._stderr = bytearray()
        self._tasks: list[asyncio.Task[None]] = []
        self._pipes: list[tuple[asyncio.BaseTransport, _Pipe]] = []
        self._connecting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._watches: set[asyncio.Task[None]] = set()
        self._requests: asyncio.StreamWriter

    @property
    def alive(self) -> bool:
        """Whether the next call can be tried here."""
        return self._lost is None

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left to wait for."""
        return self._stopping is not None and self._stopping.done()

    async def start(self) -> None:
        """Wait until the program is ready. If not raises `SandboxUnavailable`; then nothing is left of it."""
        try:
            # Not to be interrupted half-way: each pipe then has an owner that closes it.
            self._connecting = asyncio.create_task(self._connect())
            await asyncio.shield(self._connecting)
            async with asyncio.timeout(START_SECONDS):
                reply = await self._ready
        except TimeoutError:
            await self.stop()
            raise SandboxUnavailable(
                self._why(f"the sandbox was not ready within {START_SECONDS:.0f} s")
            ) from None
        except SandboxLost:
            await self.stop()
            raise SandboxUnavailable(self._why("the sandbox ended while it started")) from None
        except BaseException:
            await self.stop()
            raise
        if reply.version != _PROTOCOL_VERSION:
            await self.stop()
            raise SandboxUnavailable(
                f"the program in the sandbox speaks version {reply.version} of the protocol"
            )

    async def execute(self, name: str, input: Mapping[str, Any]) -> ToolOutput:
        """Run one tool call; see `Sandbox.execute`."""
        if self._lost is not None:
            raise SandboxLost(self._lost)
        number = next(self._numbers)
        answer: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            message = {"id": number, "name": name, "input": input}
            reply = await self._answered(message, answer)
        except asyncio.CancelledError:
            await self._withdraw(number, answer)
            raise
        finally:
            self._waiting.pop(number, None)
            answer.cancel()
        return ToolOutput(content=msgspec.to_builtins(reply.content), is_error=reply.is_error)

    async def stop(self) -> None:
        """Kill everything and wait until it is gone. Idempotent; a cancellation does not interrupt it."""
        if self._stopping is None:
            self._lose("the sandbox was stopped")
            self._stopping = asyncio.create_task(self._end())
        await asyncio.shield(self._stopping)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        requests, replies, errors = self._process.stdin, self._process.stdout, self._process.stderr
        assert requests is not None
        assert replies is not None
        assert errors is not None
        end = _Pipe(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: end, requests)
        self._pipes.append((transport, end))
        self._requests = asyncio.StreamWriter(transport, end, None, loop)
        self._requests.write(self._config)
        reply_stream = await self._reader(replies, LINE_BYTES)
        error_stream = await self._reader(errors, _STDERR_BYTES)
        self._tasks = [
            asyncio.create_task(self._read_replies(reply_stream)),
            asyncio.create_task(self._read_errors(error_stream)),
        ]

    async def _reader(self, pipe: IO[bytes], limit: int) -> asyncio.StreamReader:
        stream = asyncio.StreamReader(limit=limit)
        end = _Pipe(stream)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: end, pipe)
        self._pipes.append((transport, end))
        return stream

    async def _answered(self, message: Mapping[str, Any], answer: asyncio.Future[_Reply]) -> _Reply:
        """Send a call and wait for its answer, however long that takes, while the program is there."""
        self._write(message)
        # A clock that nearly always is stopped again: a task that watches costs as much as the call itself.
        silence = asyncio.get_running_loop().call_later(SILENCE_SECONDS, self._ask_after, answer)
        try:
            return await asyncio.shield(answer)
        finally:
            silence.cancel()

    def _ask_after(self, answer: asyncio.Future[_Reply]) -> None:
        watch = asyncio.create_task(self._watch(answer))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watch(self, answer: asyncio.Future[_Reply]) -> None:
        """Ask whether the program is there until the call is answered, and end the sandbox if it is not."""
        try:
            while not answer.done():
                await self._ping()
                await asyncio.wait([answer], timeout=SILENCE_SECONDS)
        except TimeoutError:
            # The agent may have stopped the program, or taken all processor time from it.
            self._lose("the sandbox does not answer any more")
            await self.stop()

    async def _ping(self) -> None:
        """Ask whether the program is there. Raises `TimeoutError` if it does not say so."""
        async with asyncio.timeout(SILENCE_SECONDS):
            if self._pong is None or self._pong.done():
                self._pong = asyncio.get_running_loop().create_future()
                self._write({"ping": next(self._numbers)})
            pong = self._pong
            # Whatever happens to the sandbox is told to who waits for the answer.
            await asyncio.wait([pong, *self._waiting.values()], return_when=asyncio.FIRST_COMPLETED)

    def _write(self, message: Mapping[str, Any]) -> None:
        """Send a message. What the program does not take yet is kept: the model's text, which is bounded."""
        try:
            line = msgspec.json.encode(message)
        except (TypeError, ValueError):
            # The model's text may hold a lone surrogate, which only escapes can carry.
            line = json.dumps(message).encode("ascii")
        self._requests.write(line + b"\n")

    async def _withdraw(self, number: int, answer: asyncio.Future[_Reply]) -> None:
        """Have the call killed inside. Stops the sandbox if that takes too long or it is cancelled again."""
        if not self.alive:
            return
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                self._write({"cancel": number})
                await asyncio.shield(answer)
        except SandboxLost:
            return
        except (TimeoutError, asyncio.CancelledError):
            await self.stop()

    async def _read_replies(self, stream: asyncio.StreamReader) -> None:
        decoder = msgspec.json.Decoder(_Reply)
        why = "the sandbox has ended"
        try:
            while line := await stream.readline():
                self._take(decoder.decode(line))
        except ValueError:  # too long (from the stream), or not a reply (msgspec's errors)
            why = "the sandbox broke the protocol"
        self._lose(why)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._end())

    def _take(self, reply: _Reply) -> None:
        """Give a reply to who waits for it. One for nobody breaks the protocol: no flood of them."""
        if reply.ready and not self._ready.done():
            self._ready.set_result(reply)
            return
        if reply.pong is not None and self._pong is not None and not self._pong.done():
            self._pong.set_result(None)
            return
        answer = self._waiting.get(reply.id) if reply.id is not None else None
        if answer is None or answer.done() or not (reply.cancelled or reply.content):
            raise ValueError("nobody waits for this")
        answer.set_result(reply)

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        seen = 0
        while chunk := await stream.read(_STDERR_BYTES):
            self._stderr += chunk
            del self._stderr[:-_STDERR_BYTES]
            seen += len(chunk) if self._ready.done() else 0
            if seen > _STDERR_MOST:
                await asyncio.sleep(_STDERR_PAUSE)  # a flood of it is the agent's

    def _why(self, what: str) -> str:
        said = self._stderr.decode(errors="replace").strip()
        return f"{what}: {said}" if said else what

    def _lose(self, why: str) -> None:
        if self._lost is not None:
            return
        self._lost = why
        _log.debug("sandbox.ended", session_id=self._session_id, why=why)
        for answer in (self._ready, *self._waiting.values()):
            if not answer.done():
                answer.set_exception(SandboxLost(why))
                answer.exception()  # seen: nobody may be waiting for this one any more

    async def _end(self) -> None:
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        await self._kill()
        await asyncio.to_thread(self._process.wait)
        if self._give_back is not None:
            await asyncio.to_thread(self._give_back)
        if self._tasks:
            # With all processes dead both pipes end, unless somebody else holds them.
            _, unfinished = await asyncio.wait(self._tasks, timeout=1.0)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport, end in self._pipes:
            if end.closed.done():
                continue
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # what is unsent has no reader any more
            else:
                transport.close()
        if self._pipes:
            await asyncio.wait([end.closed for _, end in self._pipes])
        else:  # it never got as far as being connected
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
