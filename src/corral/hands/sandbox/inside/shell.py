"""bash: one shell that lives across calls.

The command goes to the shell on its standard input, as a quoted argument of `eval`, so that neither a syntax
error nor an open quote can swallow the line that reports the exit status. That line comes back on a
descriptor of its own. Output and the end of the command are thus never told apart by looking at the output,
and a child that keeps the output open holds up nothing.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import select
import signal
import subprocess
import termios
import time

from .arguments import Arguments
from .call import Call
from .failure import Cancelled, ToolFailure
from .output import Outputs, Tail
from .processes import Descendants, first_to_go

_DEFAULT_TIMEOUT_SECONDS = 120.0
_OUTPUT_BYTES = 100 * 1024
_POLL_SECONDS = 3600.0  # a wait that the system call can count
_CHUNK_BYTES = 64 * 1024
_LOWEST_DESCRIPTOR = 200  # above those that scripts use
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class _Process:
    """A running bash and our ends of its pipes."""

    def __init__(self, workdir: str) -> None:
        out_read, out_write = os.pipe()
        status_read, status_write = os.pipe()
        self.output = out_read
        self.status = status_read
        # Fixed numbers that the command line can name. They exist in the shell only: `eval` closes them.
        self._out_number = fcntl.fcntl(out_write, fcntl.F_DUPFD, _LOWEST_DESCRIPTOR)
        self._status_number = fcntl.fcntl(status_write, fcntl.F_DUPFD, _LOWEST_DESCRIPTOR)
        os.close(out_write)
        os.close(status_write)
        try:
            self.popen = subprocess.Popen(
                ["/bin/bash", "--noprofile", "--norc"],
                cwd=workdir,
                env={**os.environ, "PS1": "", "PS2": "", "TERM": "dumb"},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(self._out_number, self._status_number),
                start_new_session=True,
            )
        except OSError:
            os.close(out_read)
            os.close(status_read)
            raise
        finally:
            os.close(self._out_number)
            os.close(self._status_number)
        os.set_blocking(out_read, False)
        first_to_go(self.popen.pid)

    def send(self, command: str) -> None:
        """Hand over a command. Raises `BrokenPipeError` if the shell has ended."""
        quoted = "'" + command.replace("\0", "").replace("'", "'\\''") + "'"
        out, status = self._out_number, self._status_number
        line = (
            f"eval {quoted} </dev/null >&{out} 2>&1 {out}>&- {status}>&-; "
            f"builtin printf '%d\\n' $? >&{status}\n"
        )
        assert self.popen.stdin is not None
        self.popen.stdin.write(line.encode("utf-8", "replace"))
        self.popen.stdin.flush()

    def close(self) -> None:
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.close()
        except BrokenPipeError:
            pass  # part of a command was still unsent, and the shell is gone
        os.close(self.output)
        os.close(self.status)


class Shell:
    """The persistent shell of a session. Not safe for two calls at once: the caller queues them.

    wake: descriptor that becomes readable when a call is withdrawn or a child ends.
    """

    def __init__(self, workdir: str, outputs: Outputs, descendants: Descendants, wake: int) -> None:
        self._workdir = workdir
        self._outputs = outputs
        self._descendants = descendants
        self._wake = wake
        self._process: _Process | None = None

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
        return {self._process.popen.pid} if self._process else set()

    def kill(self) -> None:
        """Kill the shell and all that ever ran in it. The next call starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        self._descendants.kill(process.popen.pid)
        process.popen.wait()
        process.close()
        self._descendants.reap(set())

    def _running(self) -> _Process:
        if self._process is not None and self._process.popen.poll() is not None:
            self.kill()
        if self._process is None:
            try:
                with self._descendants.still:
                    self._process = _Process(self._workdir)
            except OSError as error:
                raise ToolFailure(f"bash: cannot start /bin/bash: {error.strerror}") from error
        return self._process

    def _result(self, process: _Process, timeout: float, call: Call) -> str:
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

    def _how_it_ended(self, process: _Process) -> str:
        try:
            code = process.popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:  # it closed the descriptor that reports the status
            code = -signal.SIGKILL
        self.kill()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return f"[the shell {how}; the next command starts a new one]"

    def _follow(self, process: _Process, tail: Tail, deadline: float, call: Call) -> int | None:
        """Collect output until the command has ended; return its status, or None if the shell ended."""
        poll = select.poll()
        for descriptor in (process.output, process.status, self._wake):
            poll.register(descriptor, select.POLLIN)
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
            if process.popen.poll() is not None:
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
    text = _ANSI.sub("", tail.finish().decode("utf-8", "replace")).rstrip("\n")
    if not tail.truncated:
        return text
    where = f"[all of it is in {tail.path}]\n" if tail.path else ""
    return f"[output truncated]\n{where}{text}"


def _take_what_is_there(output: int, tail: Tail) -> None:
    """Read what the pipe holds now, and no more: a child in the background may write for ever."""
    count = array.array("i", [0])
    fcntl.ioctl(output, termios.FIONREAD, count)
    while count[0] > 0:
        chunk = os.read(output, count[0])
        if not chunk:
            return
        count[0] -= len(chunk)
        tail.add(chunk)


def _drain(wake: int) -> None:
    try:
        while os.read(wake, 4096):
            pass
    except BlockingIOError:
        return
