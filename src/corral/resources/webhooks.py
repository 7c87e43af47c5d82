"""Webhook endpoints: who is told what, and the secrets that messages are signed with (contract section 23).

A signing secret is shown once, when it is made. Unlike the secrets of vaults it lies in the database as it
is, since the servers that sign must read it (docs/security.md); those of endpoints that the settings declare
stay in the environment.
"""

from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

from psycopg.rows import DictRow

from corral.resources import listing
from corral.resources.webhook_outbox import drop_waiting
from corral.store.database import Connection, Database
from corral.wire.addresses import Internal
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.fields import UNSET
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.secret import Secret
from corral.wire.times import to_wire
from corral.wire.webhook_signing import new_secret
from corral.wire.webhooks import CreateWebhook, UpdateWebhook, Webhook, check_endpoint, chosen

LIST: Final = "webhooks"
ENDPOINTS: Final = 100
"""Most endpoints of a deployment: each is looked at whenever something happens."""

_COLUMNS: Final[LiteralString] = (
    "e.id, e.declared, e.description, e.url, e.events, e.disabled_at, e.disabled_reason, e.failing_since,"
    " case when e.former_until > now() then e.former_until end as former_until, e.created_at, e.updated_at"
)


class Webhooks:
    """The endpoints in a database. ``internal`` are the hosts that may be told though they are private."""

    def __init__(
        self,
        database: Database,
        internal: Internal,
        declared_secrets: Mapping[str, Sequence[Secret]] | None = None,
    ) -> None:
        self._database = database
        self._internal = internal
        self._declared_secrets = declared_secrets or {}

    async def create(self, params: CreateWebhook) -> tuple[Webhook, Secret]:
        """Register an endpoint; it is told what happens from now on. Returns its secret, this once.

        Raises:
            InvalidRequest: an event does not exist, the URL is none that may be told, or there are too many.
        """
        events = chosen(params.events)
        check_endpoint(params.url, self._internal)
        secret = new_secret()
        async with self._database.transaction() as connection:
            await _begin(connection)
            cursor = await connection.execute(
                "insert into webhook_endpoints as e (id, description, url, events, secret)"
                " select %s, %s, %s, %s, %s where (select count(*) from webhook_endpoints) < %s"
                " returning " + _COLUMNS,
                (
                    new_id("whep"),
                    params.description or None,
                    params.url,
                    events,
                    secret.reveal(),
                    ENDPOINTS,
                ),
            )
            row = await cursor.fetchone()
        if row is None:
            raise InvalidRequest(
                f"There are {ENDPOINTS} webhooks, which is the limit. Delete those no longer needed."
            )
        return _shown(row), secret

    async def retrieve(self, webhook_id: str) -> Webhook:
        """An endpoint; raises `NotFound`."""
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from webhook_endpoints e where e.id = %s", (webhook_id,)
        )
        return _shown(_found(row, webhook_id))

    async def list(self, page: Page) -> Listing:
        """All endpoints, newest first."""
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + _COLUMNS + " from webhook_endpoints e"
            " where (%(moment)s::timestamptz is null or (e.created_at, e.id) < (%(moment)s, %(last)s))"
            " order by e.created_at desc, e.id desc limit %(limit)s",
            {"moment": moment, "last": last, "limit": page.limit + 1},
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def update(self, webhook_id: str, params: UpdateWebhook) -> Webhook:
        """Change an endpoint. What waits for it goes to the new URL; what it did not ask for stays untold.

        Raises:
            NotFound: there is no such endpoint.
            InvalidRequest: see `create`, or the settings declare it.
        """
        async with self._database.transaction() as connection:
            row = await _own(connection, webhook_id, "change its url and events there")
            url = row["url"] if params.url is UNSET else params.url
            events = row["events"] if params.events is UNSET else chosen(params.events)
            description = row["description"] if params.description is UNSET else params.description or None
            if params.url is not UNSET:
                check_endpoint(url, self._internal)
            if (url, events, description) == (row["url"], row["events"], row["description"]):
                return _shown(row)
            cursor = await connection.execute(
                "update webhook_endpoints e set url = %(url)s, events = %(events)s,"
                " description = %(description)s, updated_at = now(),"
                " failing_since = case when e.url = %(url)s then e.failing_since end"
                " where e.id = %(id)s returning " + _COLUMNS,
                {"url": url, "events": events, "description": description, "id": webhook_id},
            )
            return _shown(_found(await cursor.fetchone(), webhook_id))

    async def disable(self, webhook_id: str) -> Webhook:
        """Tell an endpoint nothing from now on, not even what waits; again changes nothing.

        Raises:
            NotFound: there is no such endpoint.
        """
        async with self._database.transaction() as connection:
            row = await _locked(connection, webhook_id)
            if row["disabled_at"] is not None:
                return _shown(row)
            cursor = await connection.execute(
                "update webhook_endpoints e set disabled_at = now(), disabled_reason = 'disabled by request',"
                " updated_at = now() where e.id = %s returning " + _COLUMNS,
                (webhook_id,),
            )
            row = _found(await cursor.fetchone(), webhook_id)
            await drop_waiting(connection, webhook_id)
            return _shown(row)

    async def enable(self, webhook_id: str) -> Webhook:
        """Tell an endpoint what happens from now on; what it missed is not told. Again changes nothing.

        Raises:
            NotFound: there is no such endpoint.
            InvalidRequest: its URL is none that may be told.
        """
        async with self._database.transaction() as connection:
            row = await _locked(connection, webhook_id)
            if row["disabled_at"] is None:
                return _shown(row)
            check_endpoint(row["url"], self._internal)
            # Something may have been under way to it in the moment in which it was disabled.
            await drop_waiting(connection, webhook_id)
            cursor = await connection.execute(
                "update webhook_endpoints e set disabled_at = null, disabled_reason = null,"
                " failing_since = null, updated_at = now() where e.id = %s returning " + _COLUMNS,
                (webhook_id,),
            )
            return _shown(_found(await cursor.fetchone(), webhook_id))

    async def rotate_secret(self, webhook_id: str, overlap_seconds: int) -> tuple[Webhook, Secret]:
        """Make a new secret; messages bear the signatures of both for `overlap_seconds`.

        Raises:
            NotFound: there is no such endpoint.
            InvalidRequest: the settings declare it.
        """
        secret = new_secret()
        async with self._database.transaction() as connection:
            await _own(connection, webhook_id, "set its secret in CORRAL_WEBHOOKS__SECRETS")
            cursor = await connection.execute(
                "update webhook_endpoints e set secret = %(secret)s,"
                " former_secret = case when %(overlap)s > 0 then e.secret end,"
                " former_until = case when %(overlap)s > 0"
                " then now() + %(overlap)s * interval '1 second' end,"
                " updated_at = now() where e.id = %(id)s returning " + _COLUMNS,
                {"secret": secret.reveal(), "overlap": overlap_seconds, "id": webhook_id},
            )
            return _shown(_found(await cursor.fetchone(), webhook_id)), secret

    async def delete(self, webhook_id: str) -> None:
        """Remove an endpoint with its deliveries.

        Raises:
            NotFound: there is no such endpoint.
            InvalidRequest: the settings declare it.
        """
        async with self._database.transaction() as connection:
            await _own(connection, webhook_id, "remove it there, or disable it")
            await _remove(connection, webhook_id)

    async def declare(self, endpoints: Mapping[str, tuple[str, Sequence[str]]]) -> None:
        """Make the declared endpoints (URL and events by name) these, and remove those that are no longer.

        One that was disabled stays so, unless its URL changes.

        Raises:
            InvalidRequest: an event does not exist, a URL is none that may be told, or a secret is missing.
        """
        for name in endpoints:
            if not self._declared_secrets.get(name):
                raise InvalidRequest(
                    f"{name} has no signing secret; set CORRAL_WEBHOOKS__SECRETS to {name}=whsec_… "
                    "(`corral admin webhook secret` makes one)"
                )
        if not endpoints and not await self._database.fetch_one(
            "select 1 from webhook_endpoints where declared is not null limit 1"
        ):
            return
        async with self._database.transaction() as connection:
            await _begin(connection)
            cursor = await connection.execute(
                "select id from webhook_endpoints where declared is not null and declared <> all(%s)",
                (list(endpoints),),
            )
            for row in await cursor.fetchall():
                await _remove(connection, row["id"])
            for name, (url, events) in endpoints.items():
                check_endpoint(url, self._internal)
                await connection.execute(
                    "insert into webhook_endpoints as e (id, declared, url, events)"
                    " values (%(id)s, %(name)s, %(url)s, %(events)s)"
                    " on conflict (declared) do update set url = excluded.url, events = excluded.events,"
                    " disabled_at = case when e.url = excluded.url then e.disabled_at end,"
                    " disabled_reason = case when e.url = excluded.url then e.disabled_reason end,"
                    " failing_since = case when e.url = excluded.url then e.failing_since end,"
                    " updated_at = now()"
                    " where (e.url, e.events) is distinct from (excluded.url, excluded.events)",
                    {"id": new_id("whep"), "name": name, "url": url, "events": chosen(events)},
                )

    async def signing(self, webhook_id: str) -> tuple[Webhook, Sequence[Secret]]:
        """An endpoint and what its messages are signed with now.

        Raises:
            NotFound: there is no such endpoint.
            InvalidRequest: the settings declare it, and these settings have no secret for it.
        """
        row = await self._database.fetch_one(
            "select e.secret, case when e.former_until > now() then e.former_secret end as former_secret, "
            + _COLUMNS
            + " from webhook_endpoints e where e.id = %s",
            (webhook_id,),
        )
        row = _found(row, webhook_id)
        if row["declared"] is None:
            texts = (row["secret"], row["former_secret"])
            return _shown(row), [Secret(text) for text in texts if text is not None]
        found = self._declared_secrets.get(row["declared"], ())
        if not found:
            raise InvalidRequest(
                f"The settings declare {webhook_id} as {row['declared']!r}, and its secret is not known "
                "here; set CORRAL_WEBHOOKS__SECRETS."
            )
        return _shown(row), found


def _found(row: DictRow | None, webhook_id: str) -> DictRow:
    if row is None:
        raise NotFound(f"Webhook {webhook_id} not found.")
    return row


async def _begin(connection: Connection) -> None:
    """Let nobody else make endpoints meanwhile, and the log's trigger know that there will be some."""
    await connection.execute(
        "select pg_advisory_xact_lock(hashtext('corral webhook endpoints')), nextval('webhook_presence')"
    )


async def _locked(connection: Connection, webhook_id: str) -> DictRow:
    cursor = await connection.execute(
        "select " + _COLUMNS + " from webhook_endpoints e where e.id = %s for update", (webhook_id,)
    )
    return _found(await cursor.fetchone(), webhook_id)


async def _own(connection: Connection, webhook_id: str, instead: str) -> DictRow:
    """The row of an endpoint that the settings do not declare, locked."""
    row = await _locked(connection, webhook_id)
    if row["declared"] is not None:
        raise InvalidRequest(
            f"Webhook {webhook_id} is declared by the settings, as {row['declared']!r}: {instead}."
        )
    return row


async def _remove(connection: Connection, webhook_id: str) -> None:
    await connection.execute("delete from webhook_endpoints where id = %s", (webhook_id,))
    await connection.execute("delete from webhook_deliveries where endpoint_id = %s", (webhook_id,))


def _shown(row: DictRow) -> Webhook:
    failing, former = row["failing_since"], row["former_until"]
    return Webhook(
        id=row["id"],
        declared=row["declared"],
        description=row["description"],
        url=row["url"],
        events=row["events"],
        status="enabled" if row["disabled_at"] is None else "disabled",
        disabled_reason=row["disabled_reason"],
        failing_since=None if failing is None else to_wire(failing),
        former_secret_until=None if former is None else to_wire(former),
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
    )
