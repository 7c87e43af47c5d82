"""`corral doctor`: looks at everything that Corral needs, and says what to do about what it finds."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

import click
import httpx
import msgspec
import psycopg

from corral.cli.options import config_option, data_option, json_option
from corral.cli.running import default_data_dir, direct_url, run_briefly
from corral.settings import Settings, SettingsError, load_settings
from corral.store.binaries import PostgresError, find_binaries
from corral.store.database import Database
from corral.store.embedded import FALLBACK, running_url
from corral.store.migrate import migrations
from corral.telemetry.logs import configure_logs

State = Literal["ok", "warning", "failure"]

_ENOUGH_DISK: Final = 2 * 1024**3
_CLOCK_TOLERANCE: Final = 30.0
_PATIENCE: Final = 10.0
_COLOURS: Final[dict[State, str]] = {"ok": "green", "warning": "yellow", "failure": "red"}
_CLAUDE_API: Final = "https://api.anthropic.com"


class Finding(NamedTuple):
    """What one check found; ``advice`` is there unless the state is ``ok``."""

    check: str
    state: State
    detail: str
    advice: str | None = None


@click.command()
@config_option
@data_option
@json_option
def doctor(config: Path | None, data: Path | None, as_json: bool) -> None:
    """Checks settings, database, provider, sandbox, disk and clock; says what to do about each finding.

    Changes nothing. The exit status is 1 if something must be repaired.

    \b
    Example:
      corral doctor --config corral.yaml
    """
    configure_logs("error")
    findings = run_briefly(_examine(config, (data or default_data_dir()).absolute()))
    if as_json:
        click.echo(msgspec.json.encode([finding._asdict() for finding in findings]).decode())
    else:
        for finding in findings:
            click.secho(f"{finding.state:<8}", fg=_COLOURS[finding.state], nl=False)
            click.echo(f" {finding.check:<9} {finding.detail}")
            if finding.advice is not None:
                click.echo(f"{'':<19}What to do: {finding.advice}")
    if any(finding.state == "failure" for finding in findings):
        raise click.exceptions.Exit(1)


async def _examine(config: Path | None, data_dir: Path) -> list[Finding]:
    try:
        settings = load_settings(config, os.environ)
    except SettingsError as error:
        return [
            Finding("settings", "failure", f"{problem.place}: {problem.message}", "see docs/settings.md")
            for problem in error.problems
        ]
    findings = [Finding("settings", "ok", str(config) if config else "defaults and environment")]
    findings += [finding async for finding in _database(settings, data_dir)]
    findings += [finding async for finding in _provider(settings)]
    findings += [finding async for finding in _sandbox(settings)]
    findings.append(_disk(data_dir))
    return findings


async def _database(settings: Settings, data_dir: Path) -> AsyncGenerator[Finding]:
    try:
        url = settings.store.url.reveal() if settings.store.url else running_url(data_dir, FALLBACK)
        if url is None:
            binaries = await asyncio.to_thread(find_binaries, settings.store.postgres)
            yield Finding(
                "database",
                "ok",
                f"embedded PostgreSQL {binaries.version}, down; `corral up` starts it",
            )
            return
        async with Database(url, max_size=1, direct_url=direct_url(settings)) as database:
            for finding in await _schema(database):
                yield finding
            yield await _own_connections(database)
    except PostgresError as error:
        yield Finding("database", "failure", str(error), "see above")
    except psycopg.Error as error:
        yield Finding(
            "database",
            "failure",
            f"cannot be reached: {' '.join(str(error).split())}",
            "check CORRAL_STORE__URL, the network, and that PostgreSQL accepts this user",
        )


async def _own_connections(database: Database) -> Finding:
    """Whether a connection is one: a pooler in transaction mode lets two of them share a server process."""
    first, second = await database.dedicated(), await database.dedicated()
    try:
        processes = [
            await (await one.execute("select pg_backend_pid() as pid")).fetchone() for one in (first, second)
        ]
    finally:
        await first.close()
        await second.close()
    if processes[0] == processes[1]:
        return Finding(
            "pooler",
            "failure",
            "the database is reached through a pooler in transaction mode, which cannot listen or hold locks",
            "set CORRAL_STORE__DIRECT_URL to the address that goes past the pooler",
        )
    return Finding("pooler", "ok", "connections are the server's own")


async def _schema(database: Database) -> list[Finding]:
    row = await database.fetch_one(
        "select current_setting('server_version_num')::int as version,"
        " extract(epoch from now())::float as now,"
        " to_regclass('schema_migrations') is not null as migrated"
    )
    assert row is not None
    findings = [_version(row["version"]), _clock("database", row["now"])]
    if not row["migrated"]:
        return [*findings, Finding("schema", "failure", "there is none", "run `corral admin migrate`")]
    rows = await database.fetch("select number from schema_migrations")
    present, known = {row["number"] for row in rows}, {one.number for one in migrations()}
    if known - present:
        detail = f"{len(known - present)} migrations behind"
        return [*findings, Finding("schema", "failure", detail, "run `corral admin migrate`")]
    if present - known:
        detail = "made by a newer Corral, which this version can serve one version back"
        return [*findings, Finding("schema", "warning", detail, "upgrade this installation")]
    return [*findings, Finding("schema", "ok", "up to date")]


def _version(number: int) -> Finding:
    major = number // 10_000
    if major < 16:
        return Finding("database", "failure", f"PostgreSQL {major}", "upgrade to PostgreSQL 16 or later")
    return Finding("database", "ok", f"PostgreSQL {major} answers")


async def _provider(settings: Settings) -> AsyncGenerator[Finding]:
    inference = settings.inference
    if not inference.is_configured:
        yield Finding(
            "provider",
            "warning",
            "no inference credential: `corral up` uses the scripted model, `corral serve` does not start",
            "set ANTHROPIC_API_KEY, or CORRAL_INFERENCE__BASE_URL of a gateway",
        )
        return
    url = (inference.base_url or _CLAUDE_API).rstrip("/")
    key = inference.api_key.reveal() if inference.api_key else ""
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    if inference.provider == "gateway":
        headers["authorization"] = f"Bearer {key}"
    try:
        async with httpx.AsyncClient(timeout=_PATIENCE) as client:
            response = await client.get(f"{url}/v1/models", headers=headers)
    except httpx.HTTPError as error:
        yield Finding(
            "provider",
            "failure",
            f"{url} cannot be reached: {error or type(error).__name__}",
            "check inference.base_url, proxies and firewalls",
        )
        return
    yield _answer(url, response.status_code)
    if "date" in response.headers:
        yield _clock("provider", _moment(response.headers["date"]))


def _answer(url: str, status: int) -> Finding:
    match status:
        case 401 | 403:
            advice = "check CORRAL_INFERENCE__API_KEY (or ANTHROPIC_API_KEY)"
            return Finding("provider", "failure", f"{url} refuses the credential ({status})", advice)
        case 404 | 405:
            return Finding("provider", "ok", f"{url} answers (it lists no models)")
        case _ if status >= 500:
            return Finding(
                "provider", "warning", f"{url} answers with {status}", "try again; look at its log"
            )
        case _:
            return Finding("provider", "ok", f"{url} answers")


def _moment(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return time.time()


def _clock(whose: str, theirs: float) -> Finding:
    apart = abs(time.time() - theirs)
    if apart > _CLOCK_TOLERANCE:
        detail = f"{apart:.0f} s apart from the {whose}'s"
        return Finding("clock", "warning", detail, "set this machine's clock (`timedatectl set-ntp true`)")
    return Finding("clock", "ok", f"agrees with the {whose}'s")


async def _sandbox(settings: Settings) -> AsyncGenerator[Finding]:
    from corral.hands.sandbox.bubblewrap import BubblewrapProvider
    from corral.hands.sandbox.provider import SandboxUnavailable
    from corral.hands.sandbox.select import provider_named

    name = settings.worker.sandbox
    provider = provider_named(name)
    try:
        await provider.probe()
    except SandboxUnavailable as error:
        yield Finding("sandbox", "failure", f"{name} does not work here", str(error))
        return
    finally:
        bounds, unbounded = "", None
        if isinstance(provider, BubblewrapProvider):
            bounds, unbounded = provider.bounds, provider.unbounded
        await provider.close()
    if name == "process":
        advice = "set worker.sandbox to `bubblewrap`, unless this machine has nothing to protect"
        yield Finding("sandbox", "warning", "process: agents' commands run without a fence", advice)
        return
    yield Finding("sandbox", "ok", f"{name} works")
    if unbounded is not None:
        what, _, advice = unbounded.partition(": ")
        yield Finding("limits", "warning", f"bounded: {bounds}; not bounded: {what}", advice)
    elif bounds:
        yield Finding("limits", "ok", bounds)


def _disk(data_dir: Path) -> Finding:
    existing = next(folder for folder in (data_dir, *data_dir.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / 1024**3:.1f} GB free in {existing}"
    if free < _ENOUGH_DISK:
        return Finding("disk", "warning", detail, "make room: the log and the workspaces grow")
    return Finding("disk", "ok", detail)
