"""bash: one shell that lives across calls.

The command goes to the shell on its standard input, as a quoted argument of `eval`, so that neither a syntax
error nor an open quote can swallow the line that reports the exit status. That line comes back on a
descriptor of its own. Output and the end of the command are thus never told apart by looking at the output,
and a child that keeps the output open holds up nothing.
"""

from __future__ import annotations

import os
import select
import time

from .bash import Bash
from .failure import Cancelled, ToolFailure
from .output import Tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .arguments import Arguments
    from .call import Call
    from .output import Outputs
    from .processes import Descendants

_DEFAULT_TIMEOUT_SECONDS = 120.0
_OUTPUT_BYTES = 100 * 1024
_POLL_SECONDS = 3600.0  # a wait that the system call can count
_CHUNK_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024  # what a pipe holds at most
_ANSI = r"\x1b\[[0-9;?]*[ -/]*[@-~]"


class Shell:
    """The persistent shell of a session. Not safe for two calls at once: the caller queues them.

    wake: descriptor that becomes readable when a call is withdrawn or a child ends.
    """

    def __init__(self, workdir: str, outputs: Outputs, descendants: Descendants, wake: int) -> None:
        self._workdir = workdir
        self._outputs = outputs
        self._descendants = descendants
        self._wake = wake
        self._process: Bash | None = None

    def prepare(self) -> None:
        """Have a shell started already when the first call comes; the call tells if that cannot be done."""
        try:
            self._running()
        except ToolFailure:
            return

    def run(self, arguments: Arguments, call: Call) -> str:
        """Run one bash call. Raises `ToolFailure` for a bad status or a timeout, `Cancelled` if withdrawn."""
        if call.withdrawn:
            raise Cancelled
        if arguments.flag("restart"):
            self.kill()
            self._running()
            return "bash session restarted"
        command = arguments.optional_text("command")
        if not command:
            raise ToolFailure("bash: command is required")
        milliseconds = arguments.integer("timeout_ms")
        timeout = milliseconds / 1000.0 if milliseconds else _DEFAULT_TIMEOUT_SECONDS
        self._descendants.reap(self.pids())
        process = self._running()
        try:
            process.send(command)
        except BrokenPipeError:  # it was killed between two calls
            self.kill()
            process = self._running()
            process.send(command)
        return self._result(process, timeout, call)

    def pids(self) -> set[int]:
        """Return the process ids that `kill` waits for itself."""
        return {self._process.pid} if self._process else set()

    def kill(self) -> None:
        """Kill the shell and all that ever ran in it. The next call starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        self._descendants.kill(process.pid)
        process.wait()
        process.close()
        self._descendants.reap(set())

    def _running(self) -> Bash:
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        if self._process is None:
            try:
                with self._descendants.still:
                    self._process = Bash(self._workdir)
            except OSError as error:
                raise ToolFailure(f"bash: cannot start /bin/bash: {error.strerror}") from error
        return self._process

    def _result(self, process: Bash, timeout: float, call: Call) -> str:
        tail = Tail(_OUTPUT_BYTES, self._outputs, "bash")
        try:
            status = self._follow(process, tail, time.monotonic() + timeout, call)
        except Cancelled:
            tail.finish()
            self.kill()
            raise
        except TimeoutError:
            self.kill()
            raise _failure(f"bash: bash command timed out after {timeout}s", _text(tail)) from None
        text = _text(tail)
        if status is None:
            raise _failure(text, self._how_it_ended(process))
        if status != 0:
            raise ToolFailure(text)
        return text

    def _how_it_ended(self, process: Bash) -> str:
        import signal  # costs time, and is for its names only

        code = process.wait(1.0)
        if code is None:  # it closed the descriptor that reports the status
            code = -signal.SIGKILL
        self.kill()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return f"[the shell {how}; the next command starts a new one]"

    def _follow(self, process: Bash, tail: Tail, deadline: float, call: Call) -> int | None:
        """Collect output until the command has ended; return its status, or None if the shell ended."""
        poll = select.poll()
        for descriptor in (process.output, process.status, self._wake):
            poll.register(descriptor, select.POLLIN)
        if deadline <= time.monotonic():
            raise TimeoutError  # however fast the command is
        while True:
            left = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(min(max(0.0, left), _POLL_SECONDS) * 1000)}
            if self._wake in ready:
                _drain(self._wake)
            if call.withdrawn:
                raise Cancelled
            if process.status in ready:
                line = os.read(process.status, 64)
                if line:
                    _take_what_is_there(process.output, tail)
                    return int(line) if line.strip().isdigit() else None
                # No status will come: the shell is ending, or `exec` has made another program of it.
                poll.unregister(process.status)
            if process.poll() is not None:
                _take_what_is_there(process.output, tail)
                return None
            if process.output in ready:
                tail.add(os.read(process.output, _CHUNK_BYTES))
            if left <= 0:
                _take_what_is_there(process.output, tail)
                raise TimeoutError


def _failure(*parts: str) -> ToolFailure:
    return ToolFailure("\n".join(part for part in parts if part))


def _text(tail: Tail) -> str:
    text = tail.finish().decode("utf-8", "replace")
    if "\x1b[" in text:
        import re  # costs time, and few outputs are coloured

        text = re.sub(_ANSI, "", text)
    text = text.rstrip("\n")
    if not tail.truncated:
        return text
    where = f"[all of it is in {tail.path}]\n" if tail.path else ""
    return f"[output truncated]\n{where}{text}"


def _take_what_is_there(output: int, tail: Tail) -> None:
    """Read what the pipe holds now, and no more: a child in the background may write for ever."""
    left = _PIPE_BYTES
    while left > 0:
        try:
            chunk = os.read(output, _CHUNK_BYTES)
        except BlockingIOError:
            return
        tail.add(chunk)
        if len(chunk) < _CHUNK_BYTES:
            return
        left -= len(chunk)


def _drain(wake: int) -> None:
    try:
        while os.read(wake, 4096):
            pass
    except BlockingIOError:
        return
