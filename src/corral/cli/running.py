"""Runs a long-lived command: signals become a stop event, and the event loop is uvloop's."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from corral.cli.failure import Failure
from corral.settings import Settings, load_settings
from corral.telemetry.logs import configure_logs

T = TypeVar("T")


class Stop(asyncio.Event):
    """Set when the command is to end; ``again`` is set when that has been asked for a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.again = asyncio.Event()

    def ask(self) -> None:
        """Ask for the end."""
        if self.is_set():
            self.again.set()
        self.set()


class Stopped(Exception):
    """The command was asked to stop while it was still starting."""


def read_settings(config: Path | None) -> Settings:
    """The settings of this process, with logging set up as they say."""
    settings = load_settings(config, os.environ)
    configure_logs(settings.log.level, settings.log.format, secrets=settings.secrets())
    return settings


def direct_url(settings: Settings) -> str | None:
    """The address of the database that goes past a pooler, if the settings name one."""
    return None if settings.store.direct_url is None else settings.store.direct_url.reveal()


def run_until_signal(command: Callable[[Stop], Coroutine[Any, Any, None]]) -> None:
    """Run ``command`` to its end; SIGINT and SIGTERM set the event that it gets."""

    async def with_signals() -> None:
        stop = Stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.ask)
        try:
            await command(stop)
        except Stopped:
            click.echo("Stopped.", err=True)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(with_signals())


def run_briefly(command: Coroutine[Any, Any, T]) -> T:
    """Run a command that ends by itself; Ctrl-C cancels it and raises KeyboardInterrupt.

    The loop's own handler for Ctrl-C, which asyncio's runner would set, may not wake a loop that is just
    about to wait for its next event: the signal would then be seen with that event, if one comes.
    """
    interrupted = False

    async def interruptible() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        if sys.platform != "win32":
            loop.add_signal_handler(signal.SIGINT, interrupt)
        return await command

    try:
        with asyncio.Runner() as runner:
            return runner.run(interruptible())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


async def unless_stopped(stop: asyncio.Event, step: Awaitable[T]) -> T:
    """The outcome of ``step``; if ``stop`` is set first, ``step`` is cancelled and `Stopped` is raised."""
    work = asyncio.ensure_future(step)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Stopped
        return work.result()
    finally:
        for task in (work, stopped):
            task.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)


def check_port(host: str, port: int) -> None:
    """Raise `Failure` if ``port`` cannot be listened on; before anything else has been started."""
    if port == 0:
        return
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise Failure(
            f"Cannot listen on {host} port {port}: {error.strerror or error}.",
            f"stop what uses it (`ss -ltnp 'sport = :{port}'` names it), or choose another with --port.",
        ) from error


def default_data_dir() -> Path:
    """Where `corral up` keeps everything unless told otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/corral")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "corral"


def write_private(path: Path, content: object) -> None:
    """Write JSON that its owner alone can read; a reader sees the old file or the new, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    draft.replace(path)
