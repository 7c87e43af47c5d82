"""`corral admin audit`, and the records that administration at the command line leaves."""

import getpass
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click
import msgspec

from corral.cli.databases import opened_database
from corral.cli.options import config_option, data_option, json_option
from corral.cli.running import read_settings, run_briefly
from corral.resources.audit import AuditRecord, AuditTrail, Narrowing
from corral.settings import Settings
from corral.store.database import Database
from corral.wire.errors import ApiError
from corral.wire.pagination import Page

T = TypeVar("T")

_DONE: Final = 200
_FAILED: Final = 500
_ANY_DAYS: Final = 1
"""A command writes records and prunes none."""


async def carried_out(
    database: Database,
    change: Callable[[Database], Awaitable[T]],
    *objects: str | None,
    made: Callable[[T], str] | None = None,
) -> T:
    """Carry a command out and record it. ``made`` gives the id of what it made; keys are never recorded."""
    trail = AuditTrail(database, _ANY_DAYS)
    record_id = await trail.begin("command", _user(), _command(), [one for one in objects if one])
    try:
        result = await change(database)
    except BaseException as error:
        await trail.complete(record_id, error.status if isinstance(error, ApiError) else _FAILED)
        raise
    await trail.complete(record_id, _DONE, made(result) if made is not None else None)
    return result


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _command() -> str:
    """The words of the command, without what was given to it."""
    context = click.get_current_context(silent=True)
    return context.command_path if context is not None else Path(sys.argv[0]).name


@click.command("audit")
@click.option("--actor", help="Only acts of this key's id, or of this user at the command line.")
@click.option("--object", "object_id", help="Only acts that concern this, e.g. agent_01...")
@click.option("--calls", is_flag=True, help="Decisions on agents' tool calls instead of administrative acts.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@config_option
@data_option
@json_option
def audit(
    actor: str | None,
    object_id: str | None,
    calls: bool,
    limit: int,
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Who changed what, newest first; with --calls, what was decided on agents' tool calls.

    \b
    Example:
      corral admin audit --object agent_01...
      corral admin audit --calls --object sesn_01...
    """
    settings = read_settings(config)
    narrow = Narrowing(actor, object_id, actor_kinds=("policy",) if calls else ("api", "command"))
    records = run_briefly(_read(settings, data, narrow, limit))
    if as_json:
        click.echo(msgspec.json.encode(records).decode())
        return
    for record in records:
        click.echo(
            f"{record.created_at:%Y-%m-%d %H:%M:%S}  {_outcome(record):<8}  {record.actor_id:<32}  "
            f"{record.action}  {_why(record)}{' '.join(record.objects)}"
        )
    if not records:
        what = "decision on a tool call" if calls else "administrative act"
        click.echo(f"No {what} is recorded.", err=True)


async def _read(settings: Settings, data: Path | None, narrow: Narrowing, limit: int) -> list[AuditRecord]:
    async with opened_database(settings, data) as database:
        trail = AuditTrail(database, settings.server.audit_days)
        return (await trail.list(Page(limit=limit, order="desc"), narrow)).data


def _why(record: AuditRecord) -> str:
    """Which rule or whose word decided a call."""
    decision = record.decision
    if not decision:
        return ""
    parts: list[str] = []
    if decision.gate is not None:
        parts.append(f"rule {decision.gate.rule}" if decision.gate.rule else "no rule")
    if decision.judge is not None:
        parts.append(f"judge: {decision.judge.failure or decision.judge.reason}")
    return f"({'; '.join(parts)})  "


def _outcome(record: AuditRecord) -> str:
    if record.decision:
        return record.decision.permission
    match record.status:
        case None:
            return "unknown"
        case status if status < 400:
            return "done"
        case status:
            return f"{'refused' if status < 500 else 'failed'}"
