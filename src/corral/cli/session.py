"""`corral session`: see sessions, follow, stop, copy and verify them, put them away."""

import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

import click
import msgspec

from corral.cli import session_copies as copies
from corral.cli.api_client import ApiClient, Refused
from corral.cli.connection import Asked, connection_options
from corral.cli.failure import Failure
from corral.cli.options import json_option
from corral.cli.running import run_briefly

T = TypeVar("T")

_STATUSES: Final = ("running", "idle", "rescheduling", "terminated")
_PAGE: Final = 100


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    return json_option(connection_options(command))


@click.group()
def session() -> None:
    """See sessions, follow, stop, copy and verify them, put them away.

    \b
    Example:
      corral session list --status running
      corral session show sesn_01ABC
    """


@session.command("list")
@click.option(
    "--status", "statuses", type=click.Choice(_STATUSES), multiple=True, help="Only these; repeatable."
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many, newest first."
)
@click.option("--archived", is_flag=True, help="Archived ones too.")
@_shared
def list_(statuses: tuple[str, ...], limit: int, archived: bool, as_json: bool, asked: Asked) -> None:
    """The newest sessions.

    \b
    Example:
      corral session list --status running --status rescheduling --limit 50
    """
    found = _run(asked, lambda api: _newest(api, statuses, limit, archived))
    if as_json:
        _print(found)
        return
    from corral.cli.session_print import print_list

    print_list(found)


async def _newest(api: ApiClient, statuses: tuple[str, ...], limit: int, archived: bool) -> list[Any]:
    query: dict[str, Any] = {"limit": min(limit, _PAGE)}
    if statuses:
        query["statuses[]"] = list(statuses)
    if archived or "terminated" in statuses:
        query["include_archived"] = "true"
    found: list[Any] = []
    async with aclosing(api.pages("/v1/sessions", **query)) as pages:
        async for page in pages:
            found += page
            if len(found) >= limit:
                break
    return found[:limit]


@session.command()
@click.argument("session_id", metavar="ID")
@_shared
def show(session_id: str, as_json: bool, asked: Asked) -> None:
    """What a session is doing or why it stopped, what it waits for, what it cost, and which hosts its
    sandbox has asked for.

    \b
    Example:
      corral session show sesn_01ABC
    """
    from corral.cli.session_print import print_facts
    from corral.cli.session_stop import look_closely

    shown, facts = _run(asked, lambda api: look_closely(api, session_id))
    if as_json:
        _print({**shown, "facts": msgspec.to_builtins(facts)})
    else:
        print_facts(shown, facts)


@session.command()
@click.argument("session_id", metavar="ID")
@click.option("--from-start", is_flag=True, help="The whole history first.")
@_shared
def follow(session_id: str, from_start: bool, as_json: bool, asked: Asked) -> None:
    """A session's transcript, live; until the session ends, or Ctrl-C.

    \b
    Example:
      corral session follow sesn_01ABC --from-start
    """
    from corral.cli.session_follow import follow_session

    try:
        _run(asked, lambda api: follow_session(api, session_id, from_start=from_start, as_json=as_json))
    except KeyboardInterrupt:
        sys.exit(0)  # it is how following ends


@session.command()
@click.argument("session_id", metavar="ID")
@_shared
def interrupt(session_id: str, as_json: bool, asked: Asked) -> None:
    """Interrupt a session: what runs is cut, and it goes idle. Does not wait for that; `stop` does.

    \b
    Example:
      corral session interrupt sesn_01ABC
    """
    [event] = _run(asked, lambda api: api.send(session_id, {"type": "user.interrupt"}))
    if as_json:
        _print(event)
    else:
        click.echo(f"Interrupt sent. `corral session show {session_id}` tells what became of it.")


@session.command()
@click.argument("session_id", metavar="ID")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds to wait for its end.",
)
@_shared
def stop(session_id: str, timeout: float, as_json: bool, asked: Asked) -> None:
    """Interrupt a session and see that it stops; if it does not in time, say what holds it.

    Works whatever its worker does. A message that was still waiting would start it again, so it is
    interrupted again then. Exits with 1 if it has not stopped.

    \b
    Example:
      corral session stop sesn_01ABC --timeout 30
    """
    from corral.cli.session_stop import stop_session

    outcome = _run(asked, lambda api: stop_session(api, session_id, timeout))
    if as_json:
        _print(outcome)
    else:
        click.echo(outcome.story)
        for line in outcome.held_by:
            click.echo(f"  {line}")
    sys.exit(0 if outcome.stopped else 1)


@session.command()
@click.argument("session_id", metavar="ID")
@_shared
def archive(session_id: str, as_json: bool, asked: Asked) -> None:
    """End a session for good; its history can still be read. It must be idle.

    \b
    Example:
      corral session archive sesn_01ABC
    """
    archived = _run(asked, lambda api: _put_away(api.post(f"/v1/sessions/{session_id}/archive"), session_id))
    if as_json:
        _print(archived)
    else:
        click.echo(f"Archived. `corral session follow {session_id} --from-start` still shows it.")


@session.command()
@click.argument("session_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_shared
def delete(session_id: str, yes: bool, as_json: bool, asked: Asked) -> None:
    """Delete a session and its history. It must be idle. Cannot be undone.

    \b
    Example:
      corral session delete sesn_01ABC --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise Failure(f"Deleting {session_id} cannot be undone, and nobody is here to ask.", "add --yes.")
        click.confirm(f"Delete {session_id} and all its history?", abort=True, err=True)
    deleted = _run(asked, lambda api: _put_away(api.delete(f"/v1/sessions/{session_id}"), session_id))
    if as_json:
        _print(deleted)
    else:
        click.echo("Deleted.")


for command in (copies.fork, copies.export, copies.import_, copies.verify, copies.replay):
    session.add_command(command)


async def _put_away(call: Coroutine[Any, Any, T], session_id: str) -> T:
    try:
        return await call
    except Refused as refused:
        if refused.status == 400:
            raise Failure(refused.message, f"`corral session stop {session_id}` first.") from refused
        raise


def _run(asked: Asked, work: Callable[[ApiClient], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with _api(asked) as api:
            return await work(api)

    return run_briefly(run())


@asynccontextmanager
async def _api(asked: Asked) -> AsyncGenerator[ApiClient]:
    connection = asked.connection()
    async with ApiClient(connection.base_url, connection.api_key) as api:
        yield api


def _print(value: object) -> None:
    click.echo(msgspec.json.encode(value))
