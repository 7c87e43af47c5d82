"""The program's conversation with the worker: JSON lines on standard input and output.

The worker starts it as `python3 -I -S PROGRAM` and sends its configuration, a JSON object (see `Program`). It
answers `{"ready": true, "version": 1, "python": "3.11.2"}`, then takes, in any order and number:

    {"id": 1, "name": "bash", "input": {...}}   ->  {"id": 1, "content": [...], "is_error": false}
    {"cancel": 1}                               ->  {"id": 1, "cancelled": true}, unless the result was sent
    {"ping": x}                                 ->  {"pong": x}

bash calls run one after another in the order they came, and so do read, write and edit, which then never see
a file half changed; each of the two groups and every search run at the same time. A cancelled call is
answered when what it had started is dead. End of input, or SIGTERM, kills everything and ends the program.
"""

from __future__ import annotations

import os
import resource
import sys

from . import quick
from .arguments import Arguments
from .call import Call
from .failure import Cancelled, ToolFailure
from .output import Outputs, keep_out_of_git, text_blocks, well_formed
from .paths import Roots
from .processes import Descendants
from .shell import Shell
from .words import decode, encode

VERSION = 1
_SEARCH_THREADS = 4
_INHERITED_BELOW = 256

TYPE_CHECKING = False
if TYPE_CHECKING:  # not evaluated: Python 3.8 could not
    from collections.abc import Mapping
    from typing import Any, BinaryIO

    from .files import Content
    from .forward import Forwarder

    _Job = tuple[Call, str, Any]


def main() -> None:
    """Run until the input ends."""
    if sys.argv[1:] in (["--grep"], ["--glob"]):
        from . import grep_worker

        (grep_worker.main if sys.argv[1] == "--grep" else grep_worker.main_glob)()
        return
    # Places for files that this sandbox was not given; all else has been closed by who held it.
    os.closerange(3, _INHERITED_BELOW)
    requests, replies = _take_standard_streams()
    first = requests.readline()
    if first:  # else whoever started this is gone already
        Program(decode(first), requests, replies).serve()


def _forwarder(egress: str | None) -> Forwarder | None:
    if egress is None:
        return None
    from .forward import Forwarder

    return Forwarder(egress)


class Program:
    """One sandbox's tools.

    config: `workdir` (absolute path), `own_namespace` (see `Descendants`), `roots` and `read_only` (lists of
    further directories, see `Roots`), `limits` (name in module `resource` without its prefix -> value),
    `egress` (path of the Unix socket that leads out, or null).
    """

    def __init__(self, config: Mapping[str, Any], requests: BinaryIO, replies: BinaryIO) -> None:
        for name, value in config["limits"].items():
            _limit(getattr(resource, f"RLIMIT_{name}"), value)
        self._requests, self._replies = requests, replies
        self._reply_lock = quick.allocate_lock()
        self._roots = Roots(config["workdir"], config["roots"], config["read_only"])
        self._outputs = Outputs(self._roots.workdir)
        self._descendants = Descendants(config["own_namespace"])
        wake_read, self._wake = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(self._wake, False)
        self._shell = Shell(self._roots.workdir, self._outputs, self._descendants, wake_read)
        # The end of a child wakes the thread that follows the shell.
        quick.handle(quick.SIGCHLD, lambda _number, _frame: None)
        quick.handle(quick.SIGTERM, _end)
        quick.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        _make_home(self._roots)
        self._shell.prepare()  # it starts while this goes on
        self._calls: dict[int, Call] = {}
        self._calls_lock = quick.allocate_lock()
        self._bash: quick.SimpleQueue[_Job] = quick.SimpleQueue()
        self._files: quick.SimpleQueue[_Job] = quick.SimpleQueue()
        self._searches: quick.SimpleQueue[_Job] = quick.SimpleQueue()
        self._forwarder = _forwarder(config.get("egress"))

    def serve(self) -> None:
        """Answer calls until the input ends, then kill all that they left and end the program."""
        # All threads start now: later there may be no room for another process or thread.
        if self._forwarder is not None:
            self._forwarder.start()
        for source in [self._bash, self._files, *[self._searches] * _SEARCH_THREADS]:
            quick.start_new_thread(self._work, (source,))
        self._send({"ready": True, "version": VERSION, "python": sys.version.split()[0]})
        try:
            for line in self._requests:
                self._take(decode(line))
        finally:
            quick.handle(quick.SIGTERM, quick.SIG_IGN)
            self._shell.kill()
            self._descendants.kill(None)
            # Threads may still be in a call; nobody waits for it any more.
            os._exit(0)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "ping" in message:
            self._send({"pong": message["ping"]})
        elif "cancel" in message:
            with self._calls_lock:
                call = self._calls.get(message["cancel"])
            if call is not None:
                call.withdraw()
        else:
            call = Call(message["id"])
            with self._calls_lock:
                self._calls[call.number] = call
            self._queue_for(message["name"]).put((call, message["name"], message["input"]))

    def _queue_for(self, name: str) -> quick.SimpleQueue[_Job]:
        if name == "bash":
            return self._bash
        return self._searches if name in ("glob", "grep") else self._files

    def _work(self, source: quick.SimpleQueue[_Job]) -> None:
        while True:
            call, name, given = source.get()
            reply = self._answer(call, name, given)
            with self._calls_lock:
                del self._calls[call.number]
            self._send(reply)

    def _answer(self, call: Call, name: str, given: Any) -> dict[str, Any]:
        try:
            content, is_error = self._execute(call, name, well_formed(given)), False
        except Cancelled:
            return {"id": call.number, "cancelled": True}
        except ToolFailure as failure:
            content, is_error = text_blocks(str(failure)), True
        except Exception as error:  # a fault of this program must not end the sandbox: the model is told
            text = f"{name}: the tool failed inside the sandbox: {type(error).__name__}: {error}"
            content, is_error = text_blocks(text), True
        return {"id": call.number, "content": content, "is_error": is_error}

    def _execute(self, call: Call, name: str, given: Any) -> list[dict[str, Any]]:
        if call.withdrawn:
            raise Cancelled
        arguments = Arguments(name, given)
        if name == "bash":
            with call.stoppable(self._wake_up):
                return self._outputs.blocks(name, self._shell.run(arguments, call))
        source: str | None = None
        if name in ("glob", "grep"):
            content: Content = self._search(name, arguments, call)
        else:
            from . import files

            # By name: `Arguments` knows no other tools.
            content = {"read": files.read, "write": files.write, "edit": files.edit}[name](
                self._roots, arguments
            )
            if name == "read":
                source = str(self._roots.resolve("read", arguments.text("file_path")))
        return self._outputs.blocks(name, content, source)

    def _search(self, name: str, arguments: Arguments, call: Call) -> str:
        from . import search

        tool = search.glob if name == "glob" else search.grep
        return tool(self._roots, arguments, call, self._descendants)

    def _wake_up(self) -> None:
        try:
            os.write(self._wake, b"\0")
        except BlockingIOError:
            return  # full, so it is readable

    def _send(self, message: Mapping[str, Any]) -> None:
        line = encode(message)
        with self._reply_lock:
            self._replies.write(line)
            self._replies.flush()


def _limit(which: int, value: int) -> None:
    """Lower a limit for this program and all that it starts; never above what is allowed already."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Move standard input and output to descriptors that no child inherits, /dev/null in their place."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def _end(_number: int, _frame: object) -> None:
    raise SystemExit


def _make_home(roots: Roots) -> None:
    """Make the home directory, if it is the one that belongs to Corral in the workspace."""
    home = os.environ.get("HOME", "")
    if home != os.path.join(roots.private, "home"):
        return
    try:
        os.makedirs(home, exist_ok=True)
        keep_out_of_git(roots.private)
    except OSError:
        # The agent has put something else in its place. It only loses what a home directory would keep.
        os.environ["HOME"] = "/tmp"
