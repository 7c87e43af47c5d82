"""`corral worker`: runs agents' tools in sandboxes, for one environment or for every cloud environment."""

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from corral.cli.descriptors import take_descriptors
from corral.cli.options import config_option, json_option
from corral.cli.running import read_settings, run_until_signal


@click.command()
@click.option("--base-url", help="Address of the server.  [also: ANTHROPIC_BASE_URL]")
@click.option("--environment-id", help="The environment to serve.  [also: ANTHROPIC_ENVIRONMENT_ID]")
@click.option(
    "--sandbox",
    type=click.Choice(["bubblewrap", "process"]),
    help="How tools are fenced in; `process` is no fence at all.  [default: worker.sandbox, bubblewrap]",
)
@click.option(
    "--workspace-dir", type=click.Path(file_okay=False), help="Folder that holds a workspace per session."
)
@click.option("--max-sessions", type=click.IntRange(1), help="Sessions served at the same moment.")
@config_option
@json_option
def worker(
    base_url: str | None,
    environment_id: str | None,
    sandbox: Any,
    workspace_dir: str | None,
    max_sessions: int | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Runs agents' tools in sandboxes, until Ctrl-C.

    With an environment's key it serves that environment, of this server or of the hosted service. With a pool
    key (CORRAL_WORKER__POOL_KEY) it serves every `cloud` environment of a Corral. Keys are read from the
    environment alone, since every user of a machine can read a program's arguments.

    \b
    Example:
      export ANTHROPIC_BASE_URL=http://127.0.0.1:8400
      export ANTHROPIC_ENVIRONMENT_ID=env_01...
      export ANTHROPIC_ENVIRONMENT_KEY=corral_ek_...
      corral worker --sandbox bubblewrap
    """
    settings = read_settings(config)
    given = {
        "base_url": base_url,
        "environment_id": environment_id,
        "sandbox": sandbox,
        "workspace_dir": workspace_dir,
        "max_sessions": max_sessions,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    chosen = msgspec.structs.replace(settings.worker, **changed)

    def on_ready() -> None:
        if as_json:
            click.echo(msgspec.json.encode({"base_url": chosen.base_url, "sandbox": chosen.sandbox}).decode())

    async def command(stop: asyncio.Event) -> None:
        from corral.hands.worker import run_worker

        await run_worker(chosen, stop, on_ready, limits=settings.limits)

    take_descriptors()
    run_until_signal(command)
