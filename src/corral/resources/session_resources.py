"""What is attached to sessions (contract section 9): a row each, in the order in which they were attached.

Another type adds its case to `attaching`; the rows, the lists and the session object take any type.
"""

from collections.abc import Sequence
from typing import Any, Final, LiteralString

import msgspec
from psycopg.rows import DictRow

from corral.resources import memory_mounts
from corral.resources.files import Files
from corral.resources.repositories import AttachedRepositories
from corral.session.records import Attach
from corral.store.database import Connection, Database
from corral.wire import pagination
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.pagination import Cursor, Listing
from corral.wire.session_resources import (
    RESOURCES,
    AddResource,
    FileResourceParams,
    MemoryStoreParams,
    RepositoryParams,
    ResourceParams,
    UpdateResource,
    check_overlap,
    refused_on_self_hosted,
    resource_object,
    upload_path,
)
from corral.wire.times import to_wire

LIST: Final = "session_resources"

_COLUMNS: Final[LiteralString] = (
    "r.id, r.session_id, r.position, r.type, r.mount_path, r.file_id, r.body, r.created_at, r.updated_at"
)


class SessionResources:
    """The resources of a database's sessions."""

    def __init__(
        self, database: Database, files: Files, repositories: AttachedRepositories | None = None
    ) -> None:
        self._database = database
        self._files = files
        self._repositories = repositories or AttachedRepositories()

    def attaching(self, resources: Sequence[ResourceParams]) -> Attach:
        """Attaches resources to a session that is being made; all of them, or the session is not made.

        Raises (when it is called):
            InvalidRequest: a mount path is inadmissible, or overlaps with another; a store is archived.
            NotFound: a file or a memory store does not exist, or a file has expired.
        """

        async def attach(connection: Connection, session_id: str) -> None:
            taken: list[str] = []
            for index, params in enumerate(resources):
                where = f"resources[{index}]."
                match params:
                    case FileResourceParams():
                        row = await self._attach_file(connection, session_id, params, taken, where)
                        taken.append(row["mount_path"])
                    case MemoryStoreParams():
                        path = await memory_mounts.attach(connection, session_id, params, taken, where)
                        taken.append(path)
                    case RepositoryParams():
                        row = await self._repositories.attach(connection, session_id, params, taken, where)
                        taken.append(row["mount_path"])

        return attach

    async def add(self, session_id: str, params: AddResource) -> dict[str, Any]:
        """Attach a file or a repository to a session that exists; its sandbox has it from the next call on.

        Raises:
            NotFound: there is no such session or file, or the file has expired.
            InvalidRequest: the session is archived or takes no files, has too many resources, or the mount
                path is inadmissible.
        """
        async with self._database.transaction() as connection:
            await self._lock(connection, session_id)
            cursor = await connection.execute(
                "select mount_path from session_resources where session_id = %s", (session_id,)
            )
            taken = [row["mount_path"] for row in await cursor.fetchall()]
            if len(taken) >= RESOURCES:
                raise InvalidRequest(f"resources: a session has at most {RESOURCES}")
            match params.params:
                case FileResourceParams() as file:
                    row = await self._attach_file(connection, session_id, file, taken, "")
                case RepositoryParams() as repository:
                    row = await self._repositories.attach(connection, session_id, repository, taken, "")
            await _touch(connection, session_id)
            return shown(row)

    async def list(self, session_id: str, *, limit: int | None, after: Cursor | None) -> Listing:
        """A session's resources in the order of their attachment; all of them where no limit is given."""
        rows = await self._database.fetch(
            "select " + _COLUMNS + " from session_resources r where r.session_id = %s and r.position > %s"
            " order by r.position limit %s",
            (session_id, after.position[0] if after else 0, None if limit is None else limit + 1),
        )
        next_page = None
        if limit is not None and len(rows) > limit:
            rows = rows[:limit]
            next_page = pagination.encode(LIST, (rows[-1]["position"],), order="asc", scope=session_id)
        return Listing(data=[shown(row) for row in rows], next_page=next_page)

    async def retrieve(self, session_id: str, resource_id: str) -> dict[str, Any]:
        """One resource; raises `NotFound`."""
        return shown(await self._row(session_id, resource_id))

    async def update(self, session_id: str, resource_id: str, params: UpdateResource) -> dict[str, Any]:
        """Give a repository another token, which counts from the next request on.

        Raises:
            NotFound: there is no such resource.
            InvalidRequest: it is no repository, the session is archived, or this server cannot seal.
        """
        row = await self._row(session_id, resource_id)
        if row["type"] != "github_repository":
            raise InvalidRequest(
                f"authorization_token: only a github_repository has one; {resource_id} is a {row['type']}"
            )
        async with self._database.transaction() as connection:
            await self._lock(connection, session_id)
            await self._repositories.seal_token(connection, resource_id, params.authorization_token)
            cursor = await connection.execute(
                "update session_resources r set updated_at = now() where r.id = %s returning " + _COLUMNS,
                (resource_id,),
            )
            changed = await cursor.fetchone()
            if changed is None:
                raise _not_found(resource_id)
            await _touch(connection, session_id)
            return shown(changed)

    async def delete(self, session_id: str, resource_id: str) -> None:
        """Detach a resource. A file's copy goes with it, the file that was uploaded stays; a repository's
        token goes, what the sandbox has cloned stays.

        Raises:
            NotFound: there is no such resource.
            InvalidRequest: the session is archived, or the resource was attached for good.
        """
        async with self._database.transaction() as connection:
            await self._lock(connection, session_id)
            cursor = await connection.execute(
                "select " + _COLUMNS + " from session_resources r where r.session_id = %s and r.id = %s",
                (session_id, resource_id),
            )
            row = await cursor.fetchone()
            if row is None:
                raise _not_found(resource_id)
            if row["type"] not in ("file", "github_repository"):
                raise InvalidRequest(f"A {row['type']} resource stays attached as long as its session lasts.")
            await connection.execute("delete from session_resources where id = %s", (resource_id,))
            await connection.execute("delete from files where id = %s", (row["file_id"],))
            await _touch(connection, session_id)

    async def revision(self, session_id: str) -> str:
        """A text that changes whenever the session's files do; empty where it has none.

        A worker compares it with that of the files which it has brought.
        """
        row = await self._database.fetch_one(
            "select coalesce(md5(string_agg(id, ',' order by position)), '') as revision"
            " from session_resources where session_id = %s and file_id is not null",
            (session_id,),
        )
        assert row is not None
        return str(row["revision"])

    async def _attach_file(
        self,
        connection: Connection,
        session_id: str,
        params: FileResourceParams,
        taken: Sequence[str],
        where: str,
    ) -> DictRow:
        path = upload_path(params.mount_path, params.file_id, where)
        check_overlap(path, taken, where)
        copy_id = await self._files.copy(connection, params.file_id, session_id, f"{where}file_id")
        body = {"file_id": copy_id, "mount_path": path}
        cursor = await connection.execute(
            "insert into session_resources as r (id, session_id, type, mount_path, file_id, body)"
            " values (%s, %s, 'file', %s, %s, %s) returning " + _COLUMNS,
            (new_id("sesrsc"), session_id, path, copy_id, msgspec.json.encode(body).decode()),
        )
        row = await cursor.fetchone()
        assert row is not None
        return row

    async def _lock(self, connection: Connection, session_id: str) -> None:
        """Lock the session's row, before any other row of it; refuse sessions that cannot change."""
        cursor = await connection.execute(
            "select s.archived_at, s.environment_id, e.config ->> 'type' as hosting from sessions s"
            " join environments e on e.id = s.environment_id where s.id = %s for update of s",
            (session_id,),
        )
        row = await cursor.fetchone()
        if row is None:
            raise NotFound(f"session {session_id} not found")
        if row["hosting"] == "self_hosted":
            raise refused_on_self_hosted(row["environment_id"])
        if row["archived_at"] is not None:
            raise InvalidRequest("Cannot modify archived session")

    async def _row(self, session_id: str, resource_id: str) -> DictRow:
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from session_resources r where r.session_id = %s and r.id = %s",
            (session_id, resource_id),
        )
        if row is None:
            raise _not_found(resource_id)
        return row


async def _touch(connection: Connection, session_id: str) -> None:
    await connection.execute("update sessions set updated_at = now() where id = %s", (session_id,))


def _not_found(resource_id: str) -> NotFound:
    return NotFound(f"session resource {resource_id} not found")


def shown(row: DictRow) -> dict[str, Any]:
    """The resource of a row as the API shows it."""
    created, updated = to_wire(row["created_at"]), to_wire(row["updated_at"])
    return resource_object(row["id"], row["type"], row["body"], created, updated)
