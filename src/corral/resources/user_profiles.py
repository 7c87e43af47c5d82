"""User profiles: plain records of whom a platform serves (contract section 22)."""

from datetime import UTC, datetime
from typing import Final, LiteralString

import msgspec
from psycopg.rows import DictRow

from corral.resources import listing
from corral.store.database import Database
from corral.wire import metadata as meta
from corral.wire import pagination
from corral.wire.errors import NotFound
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.times import to_wire
from corral.wire.user_profiles import (
    CreateUserProfile,
    ExternalUserDetails,
    Form,
    OrderBy,
    UpdateUserProfile,
    UserProfile,
)

LIST: Final = "user_profiles"
BY_NAME: Final = "user_profiles_by_name"
"""The lists that cursors belong to, by what they are ordered by."""

_COLUMNS: Final[LiteralString] = (
    "id, name, access_type, external_user_details::text as details, metadata, created_at, updated_at"
)


class UserProfiles:
    """The user profiles in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, params: CreateUserProfile, form: Form) -> UserProfile:
        """Make a profile; neither its name nor its reference need be unique.

        Raises:
            InvalidRequest: a field belongs to another form, or a rule for its value does not hold.
        """
        details = ExternalUserDetails(**params.details(form, datetime.now(UTC)))
        row = await self._database.fetch_one(
            "insert into user_profiles (id, name, access_type, external_user_details, metadata)"
            " values (%s, %s, %s, %s::json, %s::json) returning " + _COLUMNS,
            (
                new_id("uprof"),
                params.name or None,
                params.access_type,
                _json(details),
                _json(params.new_metadata()),
            ),
        )
        assert row is not None
        return _profile(row)

    async def retrieve(self, profile_id: str) -> UserProfile:
        """A profile.

        Raises:
            NotFound: there is no such profile.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from user_profiles where id = %s", (profile_id,)
        )
        return _profile(_found(row, profile_id))

    async def update(self, profile_id: str, params: UpdateUserProfile, form: Form) -> UserProfile:
        """Change what the request names; ``updated_at`` moves only if something changed.

        Raises:
            NotFound: there is no such profile.
            InvalidRequest: see `create`, or a detail would be cleared.
        """
        stated = params.details(form, datetime.now(UTC))
        async with self._database.transaction() as connection:
            cursor = await connection.execute(
                "select " + _COLUMNS + " from user_profiles where id = %s for update", (profile_id,)
            )
            stored = _profile(_found(await cursor.fetchone(), profile_id))
            new = msgspec.structs.replace(
                stored,
                name=stored.name if params.name is None else params.name or None,
                access_type=params.access_type or stored.access_type,
                external_user_details=msgspec.structs.replace(stored.external_user_details, **stated),
                metadata=meta.patched(stored.metadata, params.metadata, empty_deletes=True, nulls=False),
            )
            if new == stored:
                return stored
            cursor = await connection.execute(
                "update user_profiles set name = %s, access_type = %s, external_user_details = %s::json,"
                " metadata = %s::json, updated_at = now() where id = %s returning " + _COLUMNS,
                (
                    new.name,
                    new.access_type,
                    _json(new.external_user_details),
                    _json(new.metadata),
                    profile_id,
                ),
            )
            return _profile(_found(await cursor.fetchone(), profile_id))

    async def delete(self, profile_id: str) -> None:
        """Remove a profile.

        Raises:
            NotFound: there is no such profile.
        """
        if not await self._database.execute("delete from user_profiles where id = %s", (profile_id,)):
            raise _missing(profile_id)

    async def list(self, page: Page, order_by: OrderBy) -> Listing:
        """Profiles in the order of `page`, by their time of creation or by name; nameless ones come last."""
        rows = await (_by_name if order_by == "name" else _by_time)(self._database, page)
        if order_by == "created_at":
            kept, next_page = listing.split(rows, page, LIST)
            return Listing(data=[_profile(row) for row in kept], next_page=next_page)
        kept, next_page = rows[: page.limit], None
        if len(rows) > page.limit:
            last = kept[-1]
            position = (int(last["name_key"] is None), last["name_key"] or "", last["id"])
            next_page = pagination.encode(BY_NAME, position, order=page.order)
        return Listing(data=[_profile(row) for row in kept], next_page=next_page)


async def _by_time(database: Database, page: Page) -> list[DictRow]:
    moment, last = listing.start(page.after)
    beyond, direction = _direction(page)
    return await database.fetch(
        "select " + _COLUMNS + " from user_profiles"
        " where %(moment)s::timestamptz is null or (created_at, id) " + beyond + " (%(moment)s, %(last)s)"
        " order by created_at " + direction + ", id " + direction + " limit %(limit)s",
        {"moment": moment, "last": last, "limit": page.limit + 1},
    )


async def _by_name(database: Database, page: Page) -> list[DictRow]:
    nameless, key, last = page.after.position if page.after else (None, None, None)
    beyond, direction = _direction(page)
    return await database.fetch(
        "select name_key, " + _COLUMNS + " from user_profiles"
        " where %(nameless)s::int is null or (name_key is null)::int > %(nameless)s"
        " or ((name_key is null)::int = %(nameless)s"
        " and (coalesce(name_key, ''), id) " + beyond + " (%(key)s, %(last)s))"
        " order by (name_key is null)::int, name_key " + direction + ", id " + direction + " limit %(limit)s",
        {"nameless": nameless, "key": key, "last": last, "limit": page.limit + 1},
    )


def _direction(page: Page) -> tuple[LiteralString, LiteralString]:
    return (">", "asc") if page.order == "asc" else ("<", "desc")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _found(row: DictRow | None, profile_id: str) -> DictRow:
    if row is None:
        raise _missing(profile_id)
    return row


def _missing(profile_id: str) -> NotFound:
    return NotFound(f"User profile {profile_id} not found.")


def _profile(row: DictRow) -> UserProfile:
    return UserProfile(
        id=row["id"],
        name=row["name"],
        access_type=row["access_type"],
        external_user_details=msgspec.json.decode(row["details"], type=ExternalUserDetails),
        metadata=row["metadata"],
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
    )
