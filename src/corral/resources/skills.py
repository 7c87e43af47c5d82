"""Skills and their versions (contract section 17). What refers to them: `corral.resources.skill_references`.

A version is a whole folder and never changes; its archive is a blob. A skill holds one version at least.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, LiteralString

import msgspec
import structlog
from psycopg.rows import DictRow

from corral.resources import listing
from corral.resources.blobs import Blob, Blobs
from corral.resources.skill_packages import Package
from corral.store.database import Connection, Database
from corral.wire import pagination
from corral.wire.errors import InternalError, InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.skills import LATEST, Skill, SkillSource, SkillVersion
from corral.wire.times import to_wire

LIST: Final = "skills"
VERSIONS: Final = "skill_versions"
SOURCES: Final = ("custom", "anthropic")

_SKILL: Final[LiteralString] = (
    "select s.id, s.display_name, s.created_at, s.updated_at, l.id as latest from skills s"
    " join lateral (select v.id from skill_versions v where v.skill_id = s.id"
    " order by v.position desc limit 1) l on true"
)
# A skill is named by its id or, as in `{"type": "anthropic"}`, by its name: then the newest of that name.
_VERSION: Final[LiteralString] = (
    "select v.id, v.skill_id, s.name, v.description, v.blob_id, v.size_bytes, v.position, v.created_at"
    " from skill_versions v join skills s on s.id = v.skill_id"
    " where s.id = coalesce((select id from skills where id = %(skill)s),"
    " (select id from skills where name = %(skill)s order by created_at desc, id desc limit 1))"
    " and (v.id = %(version)s or %(version)s = 'latest') order by v.position desc limit 1"
)

_log = structlog.get_logger(__name__)


class SkillContent(msgspec.Struct, frozen=True):
    """A version's archive on its way to a reader."""

    name: str
    size_bytes: int
    pieces: AsyncIterator[bytes]


class Skills:
    """The skills in a database and its blob store."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    async def create(self, package: Package, display_name: str | None) -> Skill:
        """Make a skill, whose first version this is.

        Raises:
            InvalidRequest: ``storage_quota_exceeded``.
            Overloaded: the blob store does not take it now.
        """
        async with self._stored(package) as blob, self._database.transaction() as connection:
            skill_id = new_id("skill")
            await connection.execute(
                "insert into skills (id, name, display_name) values (%s, %s, %s)",
                (skill_id, package.name, display_name or package.name),
            )
            await self._add_version(connection, skill_id, package, blob)
            cursor = await connection.execute(_SKILL + " where s.id = %s", (skill_id,))
            row = await cursor.fetchone()
        assert row is not None
        return _shown(row)

    async def create_version(self, skill_id: str, package: Package) -> SkillVersion:
        """Make the next version of a skill.

        Raises:
            NotFound: there is no such skill.
            InvalidRequest: the name is not the skill's, or ``storage_quota_exceeded``.
            Overloaded: the blob store does not take it now.
        """
        async with self._stored(package) as blob, self._database.transaction() as connection:
            skill = await _locked(connection, skill_id)
            if skill["name"] != package.name:
                raise InvalidRequest(
                    f"files: the name in SKILL.md is {package.name!r}, and that of the skill is "
                    f"{skill['name']!r}; all versions of a skill have one name"
                )
            version_id = await self._add_version(connection, skill_id, package, blob)
            await connection.execute("update skills set updated_at = now() where id = %s", (skill_id,))
            cursor = await connection.execute(_VERSION, {"skill": skill_id, "version": version_id})
            row = await cursor.fetchone()
        assert row is not None
        return shown_version(row)

    async def retrieve(self, skill_id: str) -> Skill:
        """A skill.

        Raises:
            NotFound: there is no such skill.
        """
        row = await self._database.fetch_one(_SKILL + " where s.id = %s", (skill_id,))
        if row is None:
            raise not_found(skill_id)
        return _shown(row)

    async def retrieve_version(self, skill_id: str, version: str) -> SkillVersion:
        """A version by its id, or the latest.

        Raises:
            NotFound: there is no such skill, or no such version of it.
        """
        return shown_version(await self._version(skill_id, version))

    @asynccontextmanager
    async def downloading(self, skill_id: str, version: str) -> AsyncGenerator[SkillContent]:
        """The archive of a version; raises `NotFound` as `retrieve_version` does."""
        row = await self._version(skill_id, version)
        try:
            async with self._blobs.reading(row["blob_id"]) as pieces:
                yield SkillContent(row["name"], row["size_bytes"], pieces)
        except FileNotFoundError as error:
            _log.error("the bytes of a skill are missing from the blob store", version_id=row["id"])
            raise InternalError("Internal server error") from error

    async def list(self, page: Page, *, source: str | None = None) -> Listing:
        """Skills, newest first. None comes from anywhere but from here, whatever `source` asks for."""
        if source not in (None, "custom"):
            return Listing(data=[], next_page=None)
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            _SKILL
            + " where (%(moment)s::timestamptz is null or (s.created_at, s.id) < (%(moment)s, %(last)s))"
            " order by s.created_at desc, s.id desc limit %(limit)s",
            {"moment": moment, "last": last, "limit": page.limit + 1},
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def versions(self, skill_id: str, page: Page) -> Listing:
        """The versions of a skill, newest first.

        Raises:
            NotFound: there is no such skill.
        """
        below = page.after.position[0] if page.after else None
        rows = await self._database.fetch(
            "select v.id, v.skill_id, s.name, v.description, v.position, v.created_at"
            " from skill_versions v join skills s on s.id = v.skill_id where s.id = %(skill)s"
            " and (%(below)s::bigint is null or v.position < %(below)s)"
            " order by v.position desc limit %(limit)s",
            {"skill": skill_id, "below": below, "limit": page.limit + 1},
        )
        if not rows:
            await self.retrieve(skill_id)
        kept, next_page = rows[: page.limit], None
        if len(rows) > page.limit:
            next_page = pagination.encode(VERSIONS, (kept[-1]["position"],), order=page.order, scope=skill_id)
        return Listing(data=[shown_version(row) for row in kept], next_page=next_page)

    async def delete(self, skill_id: str) -> None:
        """Remove a skill with all its versions, whoever refers to it.

        Raises:
            NotFound: there is no such skill.
        """
        if not await self._database.execute("delete from skills where id = %s", (skill_id,)):
            raise not_found(skill_id)

    async def delete_version(self, skill_id: str, version: str) -> str:
        """Remove a version, or the latest; the id of the one that is gone.

        Raises:
            NotFound: there is no such skill, or no such version of it.
            InvalidRequest: it is the only one.
        """
        async with self._database.transaction() as connection:
            await _locked(connection, skill_id)
            cursor = await connection.execute(
                "select id from skill_versions where skill_id = %s order by position desc", (skill_id,)
            )
            ids: list[str] = [row["id"] for row in await cursor.fetchall()]
            version_id = ids[0] if version == LATEST else version
            if version_id not in ids:
                raise version_not_found(version)
            if len(ids) == 1:
                raise InvalidRequest(
                    f"Version {version_id} is the only one of skill {skill_id}. Delete the skill instead."
                )
            await connection.execute("delete from skill_versions where id = %s", (version_id,))
            await connection.execute("update skills set updated_at = now() where id = %s", (skill_id,))
            return version_id

    async def _version(self, skill_id: str, version: str) -> DictRow:
        row = await self._database.fetch_one(_VERSION, {"skill": skill_id, "version": version})
        if row is None:
            found = await self._database.fetch_one(
                "select id from skills where id = %s or name = %s limit 1", (skill_id, skill_id)
            )
            raise not_found(skill_id) if found is None else version_not_found(version)
        return row

    @asynccontextmanager
    async def _stored(self, package: Package) -> AsyncGenerator[Blob]:
        """The archive in the blob store; given up again if nothing comes to refer to it."""
        blob = await self._blobs.receive(package.pieces())
        try:
            yield blob
        except BaseException:
            await self._blobs.drop(blob.id)
            raise

    async def _add_version(self, connection: Connection, skill_id: str, package: Package, blob: Blob) -> str:
        version_id = new_id("skver")
        await self._blobs.refer(connection, blob)
        await connection.execute(
            "insert into skill_versions (id, skill_id, description, blob_id, size_bytes)"
            " values (%s, %s, %s, %s, %s)",
            (version_id, skill_id, package.description, blob.id, blob.size_bytes),
        )
        return version_id


async def _locked(connection: Connection, skill_id: str) -> DictRow:
    cursor = await connection.execute("select id, name from skills where id = %s for update", (skill_id,))
    row = await cursor.fetchone()
    if row is None:
        raise not_found(skill_id)
    return row


def not_found(skill_id: str) -> NotFound:
    """The error for a skill that does not exist, or not for this credential."""
    return NotFound(f"Skill {skill_id} not found.")


def version_not_found(version: str) -> NotFound:
    """The error for a version that a skill does not have."""
    return NotFound(f"Skill version {version} not found.")


def shown_version(row: DictRow) -> SkillVersion:
    """The version of a row as the API shows it."""
    return SkillVersion(
        id=row["id"],
        skill_id=row["skill_id"],
        name=row["name"],
        description=row["description"],
        created_at=to_wire(row["created_at"]),
    )


def _shown(row: DictRow) -> Skill:
    return Skill(
        id=row["id"],
        display_name=row["display_name"],
        latest_version_id=row["latest"],
        source=SkillSource(type="custom"),
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
    )
