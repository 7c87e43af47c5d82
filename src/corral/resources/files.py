"""Files: what is known of them, who may have their bytes, and the copies that sessions get (contract 18).

A file is never changed. Its bytes are a blob, which its copies share.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, LiteralString

import msgspec
import structlog
from psycopg.rows import DictRow

from corral.resources import listing
from corral.resources.blobs import Blob, Blobs
from corral.store.database import Connection, Database
from corral.wire import pagination
from corral.wire.errors import InternalError, InvalidRequest, NotFound
from corral.wire.files import File, FileScope, mime_type, stored_name, unnamed
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.times import to_wire

LIST: Final = "files"

COLUMNS: Final[LiteralString] = (
    "f.id, f.blob_id, f.filename, f.mime_type, f.size_bytes, f.downloadable, f.session_id, f.created_at,"
    " f.expires_at, (f.expires_at is not null and (f.blob_id is null or f.expires_at <= now())) as expired"
)

_log = structlog.get_logger(__name__)


class Content(msgspec.Struct, frozen=True):
    """A file on its way to a reader."""

    file: File
    pieces: AsyncIterator[bytes]


class Files:
    """The files in a database and its blob store."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self.blobs = blobs

    async def create(
        self, blob: Blob, *, filename: str | None, declared_type: str | None, expires_in: int | None = None
    ) -> File:
        """Make a file of bytes that have been received. `filename` and `declared_type` are as they were sent.

        Raises:
            InvalidRequest: the name is inadmissible.
        """
        name = stored_name(filename)
        mime = mime_type(declared_type, name, blob.head)
        async with self._database.transaction() as connection:
            await self.blobs.refer(connection, blob)
            cursor = await connection.execute(
                "insert into files as f (id, blob_id, filename, mime_type, size_bytes, expires_at)"
                " values (%s, %s, %s, %s, %s, now() + %s * interval '1 second') returning " + COLUMNS,
                (new_id("file"), blob.id, name or unnamed(mime), mime, blob.size_bytes, expires_in),
            )
            row = await cursor.fetchone()
        assert row is not None
        return shown(row)

    async def retrieve(self, file_id: str) -> File:
        """What is known of a file, also for a while after it has expired.

        Raises:
            NotFound: there is no such file.
        """
        return shown(await self.row(file_id))

    async def row(self, file_id: str, *, session_id: str | None = None) -> DictRow:
        """The row of a file, of one session only where that is given; raises `NotFound`."""
        row = await self._database.fetch_one(
            "select " + COLUMNS + " from files f where f.id = %s and (%s::text is null or f.session_id = %s)",
            (file_id, session_id, session_id),
        )
        if row is None:
            raise not_found(file_id)
        return row

    async def output_rows(self, session_id: str, most: int, path: str | None = None) -> list[DictRow]:
        """What a session has put out, in the order of paths, each with the total; only `path` if given."""
        return await self._database.fetch(
            "select " + COLUMNS + ", f.output_path, count(*) over () as total from files f"
            " where f.session_id = %s and f.output_path is not null"
            " and (%s::text is null or f.output_path = %s)"
            " order by f.output_path limit %s",
            (session_id, path, path, most),
        )

    async def beyond(
        self, file_id: str, *, older: bool, limit: int, scope_id: str | None
    ) -> tuple[list[File], bool]:
        """The files next to one, newest first, and whether there are more: paging as the old API had it.

        Raises:
            NotFound: there is no such file.
        """
        mark = await self.row(file_id)
        sides: tuple[LiteralString, LiteralString] = ("<", "desc") if older else (">", "asc")
        query: LiteralString = (
            "select " + COLUMNS + " from files f where (f.created_at, f.id) " + sides[0] + " (%s, %s)"
            " and (%s::text is null or f.session_id = %s)"
            " order by f.created_at " + sides[1] + ", f.id " + sides[1] + " limit %s"
        )
        rows = await self._database.fetch(
            query, (mark["created_at"], mark["id"], scope_id, scope_id, limit + 1)
        )
        more, rows = len(rows) > limit, rows[:limit]
        return [shown(row) for row in (rows if older else reversed(rows))], more

    async def named(self, ids: Sequence[str], *, scope_id: str | None = None) -> Listing:
        """The files of these ids that exist, newest first, on one page."""
        rows = await self._database.fetch(
            "select " + COLUMNS + " from files f where f.id = any(%s)"
            " and (%s::text is null or f.session_id = %s) order by f.created_at desc, f.id desc",
            (list(ids), scope_id, scope_id),
        )
        return Listing(data=[shown(row) for row in rows], next_page=None)

    async def delete(self, file_id: str) -> None:
        """Remove a file. Copies that sessions got of it stay.

        Raises:
            NotFound: there is no such file.
            InvalidRequest: it is mounted in a session.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute("select id from files where id = %s for update", (file_id,))
            if await cursor.fetchone() is None:
                raise not_found(file_id)
            cursor = await connection.execute(
                "select id, session_id from session_resources where file_id = %s", (file_id,)
            )
            mounted = await cursor.fetchone()
            if mounted is not None:
                raise InvalidRequest(
                    f"File {file_id} is mounted in session {mounted['session_id']}. "
                    f"Delete the session's resource {mounted['id']} instead."
                )
            await connection.execute("delete from files where id = %s", (file_id,))

    @asynccontextmanager
    async def downloading(self, file_id: str) -> AsyncGenerator[Content]:
        """The bytes of a file that may be downloaded.

        Raises:
            NotFound: there is no such file, or (``file_expired``) its bytes are gone.
            InvalidRequest: ``file_not_downloadable``.
        """
        row = await self.row(file_id)
        refuse_expired(row)
        if not row["downloadable"]:
            raise InvalidRequest(f"File '{file_id}' is not downloadable", error_code="file_not_downloadable")
        async with self._content(row) as content:
            yield content

    @asynccontextmanager
    async def delivering(self, session_id: str, file_id: str) -> AsyncGenerator[Content]:
        """The bytes of a file that is mounted in a session, for the worker that serves it.

        Raises:
            NotFound: nothing of that id is mounted there, or (``file_expired``) its bytes are gone.
        """
        row = await self._database.fetch_one(
            "select " + COLUMNS + " from files f join session_resources r on r.file_id = f.id"
            " where f.id = %s and r.session_id = %s",
            (file_id, session_id),
        )
        if row is None:
            raise not_found(file_id)
        refuse_expired(row)
        async with self._content(row) as content:
            yield content

    async def copy(self, connection: Connection, file_id: str, session_id: str, path: str) -> str:
        """Make a session's own copy of a file, which shares its bytes; the id of the copy.

        It expires when the original does. Raises:
            NotFound: there is no such file, or (``file_expired``) its bytes are gone; names `path`.
        """
        # The lock keeps the original, and so its blob's being referred to, until the copy is there.
        cursor = await connection.execute(
            "select " + COLUMNS + " from files f where f.id = %s for share", (file_id,)
        )
        row = await cursor.fetchone()
        if row is None:
            raise NotFound(f"{path}: file {file_id} not found")
        refuse_expired(row, path)
        copy_id = new_id("file")
        await connection.execute(
            "insert into files (id, blob_id, filename, mime_type, size_bytes, session_id, expires_at)"
            " values (%s, %s, %s, %s, %s, %s, %s)",
            (
                copy_id,
                row["blob_id"],
                row["filename"],
                row["mime_type"],
                row["size_bytes"],
                session_id,
                row["expires_at"],
            ),
        )
        return copy_id

    @asynccontextmanager
    async def _content(self, row: DictRow) -> AsyncGenerator[Content]:
        try:
            async with self.blobs.reading(row["blob_id"]) as pieces:
                yield Content(shown(row), pieces)
        except FileNotFoundError as error:
            _log.error("the bytes of a file are missing from the blob store", file_id=row["id"])
            raise InternalError("Internal server error") from error

    async def list(self, page: Page, *, scope_id: str | None = None) -> Listing:
        """Files, newest first; those of one session where `scope_id` is given."""
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + COLUMNS + " from files f"
            " where (%(moment)s::timestamptz is null or (f.created_at, f.id) < (%(moment)s, %(last)s))"
            " and (%(scope)s::text is null or f.session_id = %(scope)s)"
            " order by f.created_at desc, f.id desc limit %(limit)s",
            {"moment": moment, "last": last, "scope": scope_id, "limit": page.limit + 1},
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[shown(row) for row in kept], next_page=next_page)


def refuse_expired(row: DictRow, path: str | None = None) -> None:
    """Raise `NotFound` (``file_expired``) if the bytes of a file are no longer to be had."""
    if row["expired"]:
        where = f"{path}: " if path else ""
        raise NotFound(f"{where}File {row['id']} has expired.", error_code="file_expired")


def not_found(file_id: str) -> NotFound:
    """The error for a file that does not exist, or not for this credential."""
    return NotFound(f"File not found: {file_id}")


def cursor_of(text: str | None) -> pagination.Cursor | None:
    """The cursor of a list of files, with or without the prefix ``page_``; raises `InvalidRequest`."""
    plain = None if text is None else text.removeprefix("page_")
    return pagination.decode(plain, LIST, (int, str), order="desc")


def shown(row: DictRow) -> File:
    """The file of a row as the API shows it."""
    expires, session_id = row["expires_at"], row["session_id"]
    return File(
        id=row["id"],
        filename=row["filename"],
        mime_type=row["mime_type"],
        size_bytes=row["size_bytes"],
        created_at=to_wire(row["created_at"]),
        downloadable=row["downloadable"],
        expires_at=to_wire(expires) if expires is not None else None,
        scope=FileScope(id=session_id) if session_id is not None else None,
    )
