"""`corral model`: a model to run agents against when there is no inference credential."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import click


@click.group()
def model() -> None:
    """A scripted model for demonstrations and tests."""


@model.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--ready-file", type=click.Path(path_type=Path, dir_okay=False), help="Written as JSON once ready."
)
@click.option("--json", "as_json", is_flag=True, help="Print the base URL as JSON.")
def serve(host: str, port: int, ready_file: Path | None, as_json: bool) -> None:
    """Serve the scripted model, a stand-in for the Messages API.

    It plays the script that a conversation names and refuses what the real API refuses. A user's message
    names a script on a line of its own: `script: repair`, or `script: {"text": "Hello"}`. Without one the
    model runs the commands that it is asked to run, and otherwise repeats what was said.

    \b
    Example:
      corral model serve --port 9000 &
      export CORRAL_INFERENCE__PROVIDER=gateway
      export CORRAL_INFERENCE__BASE_URL=http://127.0.0.1:9000
      export CORRAL_INFERENCE__API_KEY=any
    """
    try:
        asyncio.run(_serve(host, port, ready_file, as_json))
    except OSError as error:
        raise click.ClickException(
            f"cannot serve on {host} port {port}: {error.strerror or error}. Choose another --port or --host."
        ) from None


async def _serve(host: str, port: int, ready_file: Path | None, as_json: bool) -> None:
    # Imported here, so that `corral --help` does not pay for a web server.
    from corral.testing.player import Player
    from corral.testing.serving import RunningServer

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = RunningServer(Player())
    base_url = await server.start(host, port)
    try:
        if ready_file is not None:
            await asyncio.to_thread(_write_ready, ready_file, base_url)
        click.echo(json.dumps({"base_url": base_url}) if as_json else f"Scripted model at {base_url}")
        sys.stdout.flush()
        await stopped.wait()
    finally:
        await server.stop()


def _write_ready(path: Path, base_url: str) -> None:
    """Writes the file in one step, so that a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"base_url": base_url}) + "\n")
    draft.replace(path)
