"""What sessions put out: the files below /mnt/session/outputs, as workers send them (contract section 9)."""

import re
from typing import Final

import msgspec

from corral.resources.blobs import Blob
from corral.resources.files import COLUMNS, Files, shown
from corral.store.database import Connection, Database
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.files import FILENAME_LENGTH, File, mime_type
from corral.wire.ids import new_id

_PATH_BYTES: Final = 4096
_DEPTH: Final = 32
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class OutputLimits(msgspec.Struct, frozen=True):
    """Most files of one session, and most bytes of them together."""

    files: int = 1000
    total_bytes: int = 10_737_418_240


class Outputs:
    """The outputs of a database's sessions."""

    def __init__(self, database: Database, files: Files, limits: OutputLimits) -> None:
        self._database = database
        self._files = files
        self._limits = limits

    @staticmethod
    def admitted_path(path: str | None) -> str:
        """The path of an output below the outputs folder, checked. It is the agent's word.

        Raises:
            InvalidRequest: it is no plain relative path.
        """
        if path is None:
            raise InvalidRequest("path: Field required")
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or len(parts) > _DEPTH:
            raise InvalidRequest("path: must be a relative path without empty, '.' and '..' components")
        if _CONTROLS.search(path) or len(path.encode()) > _PATH_BYTES or len(parts[-1]) > FILENAME_LENGTH:
            raise InvalidRequest("path: is too long, or holds control characters")
        return path

    async def put(self, session_id: str, path: str, blob: Blob) -> File:
        """Make a file of bytes that have been received, in place of an earlier one of this path.

        Where the earlier one has the same bytes it stays, and the new bytes are dropped.

        Raises:
            NotFound: there is no such session.
            InvalidRequest: the session has put out too much.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(
                "select 1 from sessions where id = %s for update", (session_id,)
            )
            if await cursor.fetchone() is None:
                raise NotFound(f"session {session_id} not found")
            cursor = await connection.execute(
                "select " + COLUMNS + ", b.sha256 from files f join blobs b on b.id = f.blob_id"
                " where f.session_id = %s and f.output_path = %s",
                (session_id, path),
            )
            before = await cursor.fetchone()
            if before is not None and bytes(before["sha256"]) == blob.sha256:
                await connection.execute(
                    "update blobs set state = 'doomed' where id = %s and state = 'writing'", (blob.id,)
                )
                return shown(before)
            await connection.execute(
                "delete from files where session_id = %s and output_path = %s", (session_id, path)
            )
            await self._check_room(connection, session_id, blob)
            return await self._insert(connection, session_id, path, blob)

    async def _check_room(self, connection: Connection, session_id: str, blob: Blob) -> None:
        cursor = await connection.execute(
            "select count(*) as files, coalesce(sum(size_bytes), 0)::bigint as total from files"
            " where session_id = %s and output_path is not null",
            (session_id,),
        )
        row = await cursor.fetchone()
        assert row is not None
        if row["files"] >= self._limits.files:
            raise InvalidRequest(f"The session has {row['files']} outputs, which is the most that are kept.")
        if row["total"] + blob.size_bytes > self._limits.total_bytes:
            raise InvalidRequest(
                f"The session's outputs would exceed {self._limits.total_bytes} bytes together."
            )

    async def _insert(self, connection: Connection, session_id: str, path: str, blob: Blob) -> File:
        await self._files.blobs.refer(connection, blob)
        # The last component alone: clients use it as a file's name.
        name = path.rpartition("/")[2]
        cursor = await connection.execute(
            "insert into files as f (id, blob_id, filename, mime_type, size_bytes, downloadable, session_id,"
            " output_path) values (%s, %s, %s, %s, %s, true, %s, %s) returning " + COLUMNS,
            (
                new_id("file"),
                blob.id,
                name.replace("\\", "_"),
                mime_type(None, name, blob.head),
                blob.size_bytes,
                session_id,
                path,
            ),
        )
        row = await cursor.fetchone()
        assert row is not None
        return shown(row)
