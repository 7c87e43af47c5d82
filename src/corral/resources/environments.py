"""Environments: where the tools of a session run (contract section 7)."""

from typing import Final

import msgspec
from psycopg import errors
from psycopg.rows import DictRow

from corral.resources import listing
from corral.store.database import Connection, Database
from corral.wire import metadata as meta
from corral.wire.environments import (
    Config,
    ConfigParams,
    CreateEnvironment,
    Environment,
    UpdateEnvironment,
    merge_config,
)
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.fields import UNSET
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.times import to_wire

LIST: Final = "environments"

_COLUMNS: Final = (
    "id, name, description, config::text as config, scope, metadata, created_at, updated_at, archived_at"
)


class Environments:
    """The environments in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, params: CreateEnvironment) -> Environment:
        """Store a new environment; names need not be unique.

        Raises:
            InvalidRequest: a rule of contract section 7 does not hold.
        """
        async with self._database.connection() as connection:
            return await _insert(connection, params)

    async def ensure_named(self, name: str, config: ConfigParams | None = None) -> Environment:
        """The oldest live environment of this name, made if there is none; safe against a race."""
        params = CreateEnvironment(name=name, config=config)
        async with self._database.transaction() as connection:
            await connection.execute("select pg_advisory_xact_lock(hashtext('corral environments'))")
            cursor = await connection.execute(
                "select " + _COLUMNS + " from environments where name = %s and archived_at is null"
                " order by created_at, id limit 1",
                (name,),
            )
            row = await cursor.fetchone()
            return _shown(row) if row is not None else await _insert(connection, params)

    async def retrieve(self, environment_id: str) -> Environment:
        """An environment, archived or not.

        Raises:
            NotFound: there is no such environment.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from environments where id = %s", (environment_id,)
        )
        return _shown(_found(row, environment_id))

    async def for_session(self, environment_id: str) -> Environment:
        """The environment of a new session.

        Raises:
            NotFound: there is no such environment.
            InvalidRequest: ``environment_archived``.
        """
        environment = await self.retrieve(environment_id)
        if environment.archived_at is not None:
            raise _archived(environment_id)
        return environment

    async def update(self, environment_id: str, params: UpdateEnvironment) -> Environment:
        """Change an environment; it takes effect for sandboxes that start later.

        Raises:
            NotFound: there is no such environment.
            InvalidRequest: ``environment_archived``, ``invalid_config_type_change``, ``invalid_metadata``, or
                another rule of contract section 7.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(
                "select " + _COLUMNS + " from environments where id = %s for update", (environment_id,)
            )
            row = _found(await cursor.fetchone(), environment_id)
            if row["archived_at"] is not None:
                raise _archived(environment_id)
            stored = _shown(row)
            new = msgspec.structs.replace(
                stored,
                name=stored.name if params.name is None else params.name,
                description=stored.description if params.description is UNSET else params.description,
                config=merge_config(stored.config, params.config),
                metadata=meta.patched(stored.metadata, params.metadata, empty_deletes=True),
            )
            if new == stored:
                return stored
            cursor = await connection.execute(
                "update environments set name = %s, description = %s, config = %s::json,"
                " metadata = %s::json, updated_at = now() where id = %s returning " + _COLUMNS,
                (new.name, new.description, _json(new.config), _json(new.metadata), environment_id),
            )
            return _shown(_found(await cursor.fetchone(), environment_id))

    async def archive(self, environment_id: str) -> Environment:
        """Take no new sessions from now on; an archived environment stays as it is.

        Raises:
            NotFound: there is no such environment.
        """
        await self._database.execute(
            "update environments set archived_at = now(), updated_at = now()"
            " where id = %s and archived_at is null",
            (environment_id,),
        )
        return await self.retrieve(environment_id)

    async def delete(self, environment_id: str) -> None:
        """Remove an environment that no session refers to, and revoke its keys.

        Raises:
            NotFound: there is no such environment.
            InvalidRequest: a session refers to it.
        """
        try:
            async with self._database.transaction() as connection:
                await connection.execute(
                    "update keys set revoked_at = now() where environment_id = %s and revoked_at is null",
                    (environment_id,),
                )
                await connection.execute("delete from workers where environment_id = %s", (environment_id,))
                cursor = await connection.execute(
                    "delete from environments where id = %s returning id", (environment_id,)
                )
                _found(await cursor.fetchone(), environment_id)
        except errors.ForeignKeyViolation:
            raise InvalidRequest(
                f"Environment {environment_id} has sessions. Delete them first, or archive the environment."
            ) from None

    async def list(self, page: Page, *, include_archived: bool = False) -> Listing:
        """Environments, newest first."""
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + _COLUMNS + " from environments"
            " where (%(moment)s::timestamptz is null or (created_at, id) < (%(moment)s, %(last)s))"
            " and (%(archived)s or archived_at is null)"
            " order by created_at desc, id desc limit %(limit)s",
            {"moment": moment, "last": last, "archived": include_archived, "limit": page.limit + 1},
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)


async def _insert(connection: Connection, params: CreateEnvironment) -> Environment:
    cursor = await connection.execute(
        "insert into environments (id, name, description, config, metadata)"
        " values (%s, %s, %s, %s::json, %s::json) returning " + _COLUMNS,
        (
            new_id("env"),
            params.name,
            params.description,
            _json(merge_config(None, params.config)),
            _json(meta.created(params.metadata)),
        ),
    )
    row = await cursor.fetchone()
    assert row is not None
    return _shown(row)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _archived(environment_id: str) -> InvalidRequest:
    return InvalidRequest(f"Environment {environment_id} is archived.", error_code="environment_archived")


def _found(row: DictRow | None, environment_id: str) -> DictRow:
    if row is None:
        raise NotFound(f"Environment {environment_id} not found.", error_code="environment_not_found")
    return row


def _shown(row: DictRow) -> Environment:
    archived = row["archived_at"]
    return Environment(
        id=row["id"],
        name=row["name"],
        description=row["description"],
        config=msgspec.json.decode(row["config"], type=Config),
        scope=row["scope"],
        metadata=row["metadata"],
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
        archived_at=to_wire(archived) if archived is not None else None,
    )
