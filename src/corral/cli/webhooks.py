"""`corral admin webhook`: who outside is told what happens; straight on the database."""

from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from corral.cli.audit import carried_out
from corral.cli.databases import opened_database
from corral.cli.failure import Failure
from corral.cli.options import config_option, data_option, json_option
from corral.cli.running import read_settings, run_briefly
from corral.resources.webhook_services import Trial, WebhookServices, open_webhooks
from corral.store.database import Database
from corral.wire.pagination import Page
from corral.wire.secret import Secret
from corral.wire.webhook_signing import new_secret
from corral.wire.webhooks import CreateWebhook, Delivery, UpdateWebhook, Webhook, WebhookWithSecret

T = TypeVar("T")
Action = Callable[[WebhookServices, Database], Awaitable[T]]


@click.group("webhook")
def webhook() -> None:
    """Endpoints that are told what happens (docs/webhooks.md).

    \b
    Example:
      corral admin webhook create https://ci.example.com/corral --event session.status_idled
      corral admin webhook test whep_01...
    """


def _shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (json_option, data_option, config_option):
        command = option(command)
    return wraps(command)(command)


def _with_webhooks(config: Path | None, data: Path | None, action: Action[T]) -> T:
    settings = read_settings(config)

    async def run() -> T:
        async with (
            opened_database(settings, data) as database,
            open_webhooks(database, settings.webhooks) as webhooks,
        ):
            return await action(webhooks, database)

    return run_briefly(run())


def _change(
    config: Path | None,
    data: Path | None,
    webhook_id: str,
    change: Callable[[WebhookServices], Awaitable[T]],
) -> T:
    """Carry a change of one endpoint out, and record it."""

    async def action(webhooks: WebhookServices, database: Database) -> T:
        return await carried_out(database, lambda _: change(webhooks), webhook_id)

    return _with_webhooks(config, data, action)


@webhook.command("create")
@click.argument("url")
@click.option(
    "--event",
    "events",
    multiple=True,
    default=("all",),
    show_default=True,
    help="An event to be told, such as session.status_idled; may be repeated.",
)
@click.option("--description", help="What it is for.")
@_shared_options
def create(
    url: str,
    events: tuple[str, ...],
    description: str | None,
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Register an endpoint and print its signing secret, this once.

    \b
    Example:
      corral admin webhook create https://ci.example.com/corral --event session.status_idled
    """
    params = CreateWebhook(url=url, events=list(events), description=description)

    async def action(webhooks: WebhookServices, database: Database) -> tuple[Webhook, Secret]:
        return await carried_out(
            database, lambda _: webhooks.endpoints.create(params), made=lambda made: made[0].id
        )

    _print_secret(*_with_webhooks(config, data, action), as_json)


@webhook.command("list")
@_shared_options
def listed(config: Path | None, data: Path | None, as_json: bool) -> None:
    """All endpoints, newest first.

    \b
    Example:
      corral admin webhook list
    """

    async def action(webhooks: WebhookServices, _: Database) -> list[Webhook]:
        return (await webhooks.endpoints.list(Page(limit=1_000, order="desc"))).data

    found = _with_webhooks(config, data, action)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    rows = [(one.id, one.url, str(len(one.events)), _standing(one)) for one in found]
    _table(("ID", "URL", "EVENTS", "STATE"), rows)


@webhook.command("show")
@click.argument("webhook_id")
@click.option("--deliveries", type=click.IntRange(0, 1_000), default=10, show_default=True, help="How many.")
@_shared_options
def show(webhook_id: str, deliveries: int, config: Path | None, data: Path | None, as_json: bool) -> None:
    """An endpoint, and what became of the last events for it.

    \b
    Example:
      corral admin webhook show whep_01...
    """

    async def action(webhooks: WebhookServices, _: Database) -> tuple[Webhook, list[Delivery]]:
        found = await webhooks.endpoints.retrieve(webhook_id)
        if not deliveries:
            return found, []
        return found, (await webhooks.recent(webhook_id, Page(limit=deliveries, order="desc"))).data

    found, recent = _with_webhooks(config, data, action)
    if as_json:
        click.echo(msgspec.json.encode({"webhook": found, "deliveries": recent}).decode())
        return
    click.echo(f"{found.id}  {_standing(found)}")
    click.echo(f"url: {found.url}")
    if found.description:
        click.echo(f"description: {found.description}")
    if found.declared:
        click.echo(f"declared by the settings as: {found.declared}")
    if found.failing_since:
        click.echo(f"failing since: {found.failing_since}")
    click.echo(f"events: {', '.join(found.events)}")
    if recent:
        rows = [
            (one.occurred_at, one.event_type, one.subject_id, one.state, str(one.attempts), _answer(one))
            for one in recent
        ]
        _table(("WHEN", "EVENT", "ABOUT", "STATE", "ATTEMPTS", "LAST ANSWER"), rows)


@webhook.command("update")
@click.argument("webhook_id")
@click.option("--url", help="Where to send from now on.")
@click.option("--event", "events", multiple=True, help="Replaces the events; may be repeated.")
@click.option("--description", help="What it is for; an empty one is removed.")
@_shared_options
def update(
    webhook_id: str,
    url: str | None,
    events: tuple[str, ...],
    description: str | None,
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Change an endpoint's URL, events or description.

    \b
    Example:
      corral admin webhook update whep_01... --url https://new.example.com/corral
    """
    if url is None and not events and description is None:
        raise Failure("Nothing to change.", "give --url, --event or --description.")
    params = UpdateWebhook(
        url=msgspec.UNSET if url is None else url,
        events=list(events) if events else msgspec.UNSET,
        description=msgspec.UNSET if description is None else description,
    )
    changed = _change(
        config, data, webhook_id, lambda webhooks: webhooks.endpoints.update(webhook_id, params)
    )
    _print_changed(changed, "is changed", as_json)


@webhook.command("disable")
@click.argument("webhook_id")
@_shared_options
def disable(webhook_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:
    """Send an endpoint nothing from now on.

    \b
    Example:
      corral admin webhook disable whep_01...
    """
    changed = _change(config, data, webhook_id, lambda webhooks: webhooks.endpoints.disable(webhook_id))
    _print_changed(changed, "is disabled", as_json)


@webhook.command("enable")
@click.argument("webhook_id")
@_shared_options
def enable(webhook_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:
    """Send to an endpoint that was disabled again. What it missed is not sent.

    \b
    Example:
      corral admin webhook enable whep_01...
    """
    changed = _change(config, data, webhook_id, lambda webhooks: webhooks.endpoints.enable(webhook_id))
    _print_changed(changed, "is enabled", as_json)


@webhook.command("rotate-secret")
@click.argument("webhook_id")
@click.option(
    "--overlap",
    type=click.IntRange(0, 2_592_000),
    default=86_400,
    show_default=True,
    help="For how many seconds the former secret signs as well.",
)
@_shared_options
def rotate_secret(
    webhook_id: str, overlap: int, config: Path | None, data: Path | None, as_json: bool
) -> None:
    """Make a new signing secret and print it, this once.

    \b
    Example:
      corral admin webhook rotate-secret whep_01... --overlap 3600
    """
    made = _change(
        config, data, webhook_id, lambda webhooks: webhooks.endpoints.rotate_secret(webhook_id, overlap)
    )
    _print_secret(*made, as_json)


@webhook.command("delete")
@click.argument("webhook_id")
@_shared_options
def delete(webhook_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:
    """Remove an endpoint, and what waits for it.

    \b
    Example:
      corral admin webhook delete whep_01...
    """
    _change(config, data, webhook_id, lambda webhooks: webhooks.endpoints.delete(webhook_id))
    gone = {"id": webhook_id, "type": "webhook_deleted"}
    click.echo(msgspec.json.encode(gone).decode() if as_json else f"{webhook_id} is deleted.")


@webhook.command("test")
@click.argument("webhook_id")
@_shared_options
def test(webhook_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:
    """Send an endpoint a message of type webhook.test, from here and now, and say what came of it.

    Exits with 1 if it was not taken. Nothing is repeated, and the endpoint stays as it is.

    \b
    Example:
      corral admin webhook test whep_01...
    """

    async def action(webhooks: WebhookServices, _: Database) -> Trial:
        return await webhooks.test(webhook_id)

    trial = _with_webhooks(config, data, action)
    if as_json:
        click.echo(msgspec.json.encode(trial).decode())
    elif trial.delivered:
        click.echo(f"Taken with {trial.status} after {trial.seconds} s (event {trial.event_id}).")
    else:
        click.echo(f"Not taken after {trial.seconds} s: {trial.error}.", err=True)
    if not trial.delivered:
        raise click.exceptions.Exit(1)


@webhook.command("secret")
@json_option
def secret(as_json: bool) -> None:
    """Print a fresh signing secret, for an endpoint that the settings declare.

    \b
    Example:
      export CORRAL_WEBHOOKS__SECRETS="ci=$(corral admin webhook secret)"
    """
    text = new_secret().reveal()
    click.echo(msgspec.json.encode({"secret": text}).decode() if as_json else text)


def _standing(one: Webhook) -> str:
    return f"disabled ({one.disabled_reason})" if one.status == "disabled" else "enabled"


def _answer(one: Delivery) -> str:
    return one.last_error or (str(one.last_status) if one.last_status is not None else "-")


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    # Nothing is cut off, however narrow the terminal: ids and reasons are there to be copied.
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _print_changed(one: Webhook, what: str, as_json: bool) -> None:
    click.echo(msgspec.json.encode(one).decode() if as_json else f"{one.id} {what}.")


def _print_secret(one: Webhook, secret: Secret, as_json: bool) -> None:
    if as_json:
        shown = WebhookWithSecret(**msgspec.structs.asdict(one), secret=secret.reveal())
        click.echo(msgspec.json.encode(shown).decode())
        return
    click.echo(secret.reveal())
    click.echo(f"This is the signing secret of {one.id}. It cannot be shown again.", err=True)
