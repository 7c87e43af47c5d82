"""Credentials of applications (`api`), workers of one environment (`environment`) and of all clouds (`pool`).

A key is shown once, when it is made; the database has its SHA-256 alone. That is enough because a key is 256
random bits: there is nothing to guess that a slow hash would protect. Revoking works at once, since nothing
caches a key.
"""

import hashlib
import secrets
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, convert

from corral.store.database import Database
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.ids import Prefix, new_id

KeyKind: TypeAlias = Literal["api", "environment", "pool"]

_MARKS: Final[dict[KeyKind, str]] = {"api": "corral_ak_", "environment": "corral_ek_", "pool": "corral_pk_"}
_IDS: Final[dict[KeyKind, Prefix]] = {"api": "apikey", "environment": "ekey", "pool": "pkey"}
_SHORTEST_GIVEN_KEY: Final = 16


class Key(Struct, frozen=True, kw_only=True):
    """A key as it may be shown and passed on: everything but the key itself."""

    id: str
    kind: KeyKind
    environment_id: str | None
    name: str
    created_at: datetime
    revoked_at: datetime | None


class Keys:
    """The keys in the database. Each call is one round trip."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ping(self) -> None:
        """Return if keys can be looked up; raises psycopg's error if the database does not answer."""
        await self._database.fetch_one("select 1 as one from keys limit 1")

    async def create(self, kind: KeyKind, name: str, environment_id: str | None = None) -> tuple[Key, str]:
        """Make a key; returns its record and the key itself, which nobody can have again.

        ``environment_id`` belongs to an `environment` key and to no other. Raises `NotFound` if there is no
        such environment or it is archived.
        """
        if (kind == "environment") != (environment_id is not None):
            raise InvalidRequest("An environment key, and no other, belongs to an environment.")
        text = _MARKS[kind] + secrets.token_urlsafe(32)
        row = await self._database.fetch_one(
            "insert into keys (id, kind, environment_id, name, hash)"
            " select %(id)s, %(kind)s, %(environment_id)s, %(name)s, %(hash)s"
            " where %(environment_id)s::text is null or exists"
            " (select from environments where id = %(environment_id)s and archived_at is null)"
            " returning id, kind, environment_id, name, created_at, revoked_at",
            {
                "id": new_id(_IDS[kind]),
                "kind": kind,
                "environment_id": environment_id,
                "name": name,
                "hash": _hash(text),
            },
        )
        if row is None:
            raise NotFound(f"Environment {environment_id} does not exist or is archived.")
        return _record(row), text

    async def ensure(self, kind: KeyKind, text: str, name: str, environment_id: str | None = None) -> Key:
        """Make a key that the operator chose known; again is no error.

        Raises `InvalidRequest` if it is shorter than 16 characters, has been revoked (which no restart takes
        back), or is a key of another kind or environment already.
        """
        if len(text) < _SHORTEST_GIVEN_KEY:
            raise InvalidRequest(
                f"The {kind} key is too short ({len(text)} characters); use at least {_SHORTEST_GIVEN_KEY}, "
                "such as the output of `openssl rand -hex 32`."
            )
        row = await self._database.fetch_one(
            "insert into keys (id, kind, environment_id, name, hash) values (%s, %s, %s, %s, %s)"
            " on conflict (hash) do update set name = keys.name"  # changes nothing, returns the row
            " returning id, kind, environment_id, name, created_at, revoked_at",
            (new_id(_IDS[kind]), kind, environment_id, name, _hash(text)),
        )
        assert row is not None
        key = _record(row)
        if (key.kind, key.environment_id) != (kind, environment_id):
            raise InvalidRequest(f"The given {kind} key is in use already as {key.kind} key {key.id}.")
        if key.revoked_at is not None:
            raise InvalidRequest(f"The given {kind} key ({key.id}) has been revoked. Choose a new one.")
        return key

    async def verify(self, token: str) -> Key | None:
        """The record of a key that is valid now, or None: unknown and revoked are the same to the caller."""
        row = await self._database.fetch_one(
            "select id, kind, environment_id, name, created_at, revoked_at from keys"
            " where hash = %s and revoked_at is null",
            (_hash(token),),
        )
        return None if row is None else _record(row)

    async def list(self, kind: KeyKind, environment_id: str | None = None) -> list[Key]:
        """All keys of a kind (of one environment), newest first, revoked ones included."""
        rows = await self._database.fetch(
            "select id, kind, environment_id, name, created_at, revoked_at from keys"
            " where kind = %(kind)s"
            " and (%(environment_id)s::text is null or environment_id = %(environment_id)s)"
            " order by created_at desc, id desc",
            {"kind": kind, "environment_id": environment_id},
        )
        return [_record(row) for row in rows]

    async def revoke(self, key_id: str, kind: KeyKind | None = None) -> Key:
        """Make a key (of this kind) invalid from now on; again is no error.

        Raises `NotFound` if there is no such key.
        """
        row = await self._database.fetch_one(
            "update keys set revoked_at = coalesce(revoked_at, now())"
            " where id = %(id)s and (%(kind)s::text is null or kind = %(kind)s)"
            " returning id, kind, environment_id, name, created_at, revoked_at",
            {"id": key_id, "kind": kind},
        )
        if row is None:
            raise NotFound(f"There is no {kind or ''} key {key_id}.".replace("  ", " "))
        return _record(row)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _record(row: dict[str, Any]) -> Key:
    return convert(row, Key)
