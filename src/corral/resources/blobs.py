"""Blobs: bytes without a name, in a folder or an object store, and the rows that keep track of them.

The order of steps is what makes a crash harmless. A row is written before the bytes, so whatever is in the
store is known; a file refers to a blob only once its bytes are there for good; and bytes are removed only
after their row was doomed in a statement that saw no file refer to it. A crash between two steps leaves work
for the next sweep and nothing else.
"""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, LiteralString
from urllib.parse import unquote, urlsplit

import msgspec
import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from corral.store.database import Connection, Database
from corral.wire.errors import InvalidRequest, Overloaded, RequestTooLarge
from corral.wire.ids import new_id

# An upload holds at most three of these in memory. No part of an S3 upload may be smaller.
_PART_BYTES: Final = 5 * 1024 * 1024
_READ_BYTES: Final = 256 * 1024
_HEAD_BYTES: Final = 4096
_SWEPT_AT_ONCE: Final = 200

_MARK: Final[LiteralString] = """
update blobs b set unreferenced_since = now()
where b.state = 'stored' and b.unreferenced_since is null
  and not exists (select from files f where f.blob_id = b.id)
  and not exists (select from skill_versions v where v.blob_id = b.id)
"""
# A blob cannot be taken up again behind this statement's back: a copy locks the file that it is made of, so
# one of the two files is always seen.
_DOOM: Final[LiteralString] = """
update blobs b set state = 'doomed'
where (b.state = 'stored' and b.unreferenced_since <= now() - %(delay)s * interval '1 second'
       and not exists (select from files f where f.blob_id = b.id)
       and not exists (select from skill_versions v where v.blob_id = b.id))
   or (b.state = 'writing' and b.created_at < now() - interval '1 day')
"""
_EXPIRE: Final[LiteralString] = (
    "update files set blob_id = null where expires_at <= now() and blob_id is not null"
)
# What is known of an expired file can be read for 30 more days (contract section 18).
_FORGET: Final[LiteralString] = "delete from files where expires_at < now() - interval '30 days'"

_log = structlog.get_logger(__name__)


class Blob(msgspec.Struct, frozen=True):
    """Bytes that are in the store. ``head`` are the first 4096 of them."""

    id: str
    size_bytes: int
    sha256: bytes
    head: bytes


class BlobLimits(msgspec.Struct, frozen=True):
    """Bytes of one blob and of all, and the seconds that unreferenced bytes are kept."""

    most: int = 524_288_000
    quota: int = 1_099_511_627_776
    removal_delay: float = 600.0


def default_folder() -> Path:
    """Where blobs are kept if no setting says otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/corral/files")
    return Path.home() / ".local" / "share" / "corral" / "files"


def open_store(where: str | None) -> tuple[ObjectStore, Path | None]:
    """The store that a setting names, and its folder if it is one. The folder is made, closed to others.

    Raises:
        ValueError: the address names no store that is known, or not enough of one.
    """
    address = where or str(default_folder())
    scheme = urlsplit(address).scheme
    if scheme in ("", "file"):
        folder = Path(unquote(urlsplit(address).path) if scheme else address).absolute()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        return LocalStore(str(folder)), folder
    try:
        return from_url(address), None
    except BaseError as error:
        raise ValueError(f"files.store: {address} is not an address of a blob store: {error}") from error


class Blobs:
    """The blobs of a database and its store."""

    def __init__(
        self, database: Database, store: ObjectStore, folder: Path | None, limits: BlobLimits
    ) -> None:
        self._database = database
        self._store = store
        self._folder = folder
        self.limits = limits

    async def receive(self, chunks: AsyncIterable[bytes]) -> Blob:
        """Put bytes into the store as they come. Until a file refers to them (`refer`) nobody sees them.

        Raises:
            RequestTooLarge: they are more than one blob may have.
            InvalidRequest: ``storage_quota_exceeded``.
            Overloaded: the store does not take them now.
        """
        room = self.limits.quota - await self._used()
        blob_id = new_id("blob")
        await self._database.execute("insert into blobs (id) values (%s)", (blob_id,))
        digest, size, head = hashlib.sha256(), 0, b""
        try:
            async with obstore.open_writer_async(
                self._store, _key(blob_id), buffer_size=_PART_BYTES, max_concurrency=2
            ) as writer:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self.limits.most:
                        raise RequestTooLarge(f"file: exceeds the maximum of {self.limits.most} bytes")
                    if size > room:
                        raise InvalidRequest(
                            "The storage quota is used up. Delete files, or raise files.quota_bytes.",
                            error_code="storage_quota_exceeded",
                        )
                    digest.update(chunk)
                    if len(head) < _HEAD_BYTES:
                        head += chunk[: _HEAD_BYTES - len(head)]
                    await writer.write(chunk)
            if self._folder is not None:
                await asyncio.to_thread(_sync_file, self._folder / _key(blob_id))
        except (BaseError, OSError) as error:
            _log.error("the blob store did not take a file", reason=str(error))
            await self.drop(blob_id)
            raise Overloaded(
                "The server cannot store files at the moment; try again.", retry_after=5
            ) from error
        except Exception:
            await self.drop(blob_id)
            raise
        blob = Blob(blob_id, size, digest.digest(), head)
        await self._database.execute(
            "update blobs set size_bytes = %s, sha256 = %s where id = %s", (size, blob.sha256, blob_id)
        )
        return blob

    async def refer(self, connection: Connection, blob: Blob) -> None:
        """Mark the bytes as stored for good, in the transaction that makes a file of them."""
        await connection.execute(
            "update blobs set state = 'stored' where id = %s and state = 'writing'", (blob.id,)
        )

    async def drop(self, blob_id: str) -> None:
        """Give up bytes that no file refers to; the next sweep removes them."""
        await self._database.execute(
            "update blobs set state = 'doomed' where id = %s and state = 'writing'", (blob_id,)
        )

    @asynccontextmanager
    async def reading(self, blob_id: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The bytes of a blob, piece by piece.

        Raises:
            FileNotFoundError: the store has no such bytes.
            Overloaded: the store does not answer.
        """
        try:
            found = await obstore.get_async(self._store, _key(blob_id))
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            _log.error("the blob store did not answer", reason=str(error))
            raise Overloaded(
                "The server cannot read files at the moment; try again.", retry_after=5
            ) from error
        yield _pieces(found)

    async def read(self, blob_id: str, most: int) -> bytes:
        """Up to `most` bytes from the beginning; raises as `reading` does."""
        parts: list[bytes] = []
        size = 0
        async with self.reading(blob_id) as pieces:
            async for piece in pieces:
                parts.append(piece[: most - size])
                size += len(piece)
                if size >= most:
                    break
        return b"".join(parts)

    async def sweep(self) -> int:
        """Let expired files go, and remove bytes that nothing refers to; how many blobs were removed.

        Safe to be cut off anywhere, and to run on several servers at once.
        """
        await self._database.execute(_FORGET)
        await self._database.execute(_EXPIRE)
        await self._database.execute(_MARK)
        await self._database.execute(_DOOM, {"delay": self.limits.removal_delay})
        removed = 0
        while True:
            doomed = await self._database.fetch(
                "select id from blobs where state = 'doomed' order by id limit %s", (_SWEPT_AT_ONCE,)
            )
            for row in doomed:
                await self._remove(row["id"])
                removed += await self._database.execute(
                    "delete from blobs where id = %s and state = 'doomed'", (row["id"],)
                )
            if len(doomed) < _SWEPT_AT_ONCE:
                return removed

    async def tidy(self) -> None:
        """Sweep as a background job does: a store that does not answer is asked again the next time."""
        try:
            removed = await self.sweep()
        except (BaseError, OSError) as error:
            _log.warning("blobs could not be swept; trying again later", reason=str(error))
        else:
            if removed:
                _log.info("blobs removed", count=removed)

    async def _remove(self, blob_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._store, _key(blob_id))
        if self._folder is not None:
            await asyncio.to_thread(_remove_drafts, self._folder / _key(blob_id))

    async def _used(self) -> int:
        row = await self._database.fetch_one(
            "select coalesce(sum(size_bytes), 0)::bigint as used from blobs where state = 'stored'"
        )
        assert row is not None
        return int(row["used"])


async def _pieces(found: "obstore.GetResult") -> AsyncIterator[bytes]:
    async for piece in found.stream(min_chunk_size=_READ_BYTES):
        yield bytes(piece)


def _key(blob_id: str) -> str:
    # The end of an id is random: it spreads blobs over folders.
    return f"{blob_id[-2:]}/{blob_id}"


def _remove_drafts(path: Path) -> None:
    """Remove what a server that was killed in the middle of an upload has left beside the place of a blob."""
    for draft in path.parent.glob(f"{path.name}#*"):
        draft.unlink(missing_ok=True)


def _sync_file(path: Path) -> None:
    """Make sure that a file outlives a power cut, and so does its name."""
    for place in (path, path.parent, path.parent.parent):
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
