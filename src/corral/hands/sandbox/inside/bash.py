"""A running bash, and this program's ends of its pipes."""

from __future__ import annotations

import fcntl
import os
import time

from .processes import first_to_go
from .quick import SIGPIPE, SIGXFSZ

_LOWEST_DESCRIPTOR = 200  # above those that scripts use
_PAUSE_SECONDS = 0.005


class Bash:
    """A bash in `workdir`. Raises `OSError` if it cannot be started.

    Started by `posix_spawn` and not by `subprocess`: importing that takes longer than starting a shell.
    """

    def __init__(self, workdir: str) -> None:
        pipes: list[int] = []
        passed: list[int] = []
        try:
            os.chdir(workdir)  # where the shell begins; this program names every path from the root
            for _ in range(3):
                pipes.extend(os.pipe())
            taken, self._commands, self.output, out_write, self.status, status_write = pipes
            # Fixed numbers that the command line can name. They exist in the shell only: `eval` closes them.
            for end in (out_write, status_write):
                passed.append(fcntl.fcntl(end, fcntl.F_DUPFD, _LOWEST_DESCRIPTOR))
            self._out_number, self._status_number = passed
            self.pid = os.posix_spawn(
                "/bin/bash",
                ["/bin/bash", "--noprofile", "--norc"],
                {**os.environ, "PS1": "", "PS2": "", "TERM": "dumb"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, taken, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigdef=[SIGPIPE, SIGXFSZ],  # which Python ignores
            )
        except BaseException:
            for end in pipes:
                os.close(end)
            raise
        finally:
            for end in passed:
                os.close(end)
        for end in (taken, out_write, status_write):
            os.close(end)
        self._ended: int | None = None
        os.set_blocking(self.output, False)
        first_to_go(self.pid)

    def send(self, command: str) -> None:
        """Hand over a command. Raises `BrokenPipeError` if the shell has ended."""
        quoted = "'" + command.replace("\0", "").replace("'", "'\\''") + "'"
        out, status = self._out_number, self._status_number
        line = (
            f"eval {quoted} </dev/null >&{out} 2>&1 {out}>&- {status}>&-; "
            f"builtin printf '%d\\n' $? >&{status}\n"
        ).encode("utf-8", "replace")
        written = os.write(self._commands, line)
        while written < len(line):  # a signal came in between
            written += os.write(self._commands, line[written:])

    def poll(self) -> int | None:
        """Return how it ended: its status, or minus the signal; None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until it has ended, at most so long; returns what `poll` then would."""
        if seconds is None:
            return self._reap(0)
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        return self._ended

    def close(self) -> None:
        """Close the pipes. A command of which a part was still unsent is lost, as is the shell."""
        for end in (self._commands, self.output, self.status):
            os.close(end)

    def _reap(self, options: int) -> int | None:
        if self._ended is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else was told
                self._ended = 0
            else:
                if pid:
                    self._ended = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self._ended
