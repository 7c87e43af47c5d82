"""What a session's agent puts into /mnt/session/outputs, found and sent to the server.

Everything in that folder is the agent's: names, links, sizes, and what happens there while it is read. So
each path is walked anew from the folder's descriptor with every link refused, and only regular files are
read, no further than the size that was seen.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.wire.secret import Secret

_DEPTH: Final = 32
_ENTRIES: Final = 20_000
_READ_BYTES: Final = 1024 * 1024
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: a named pipe must not hold the worker up before it is seen to be one.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FAILURES: Final = 3
_REFUSED: Final = frozenset({400, 413, 422})

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Found(msgspec.Struct, frozen=True):
    """A regular file: its size, and by which it is known whether it has changed."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int


class Outputs:
    """The outputs of one session, in `folder`; `record` is a file beside it that says what was sent."""

    def __init__(self, api: WorkApi, folder: Path, record: Path, session_id: str, key: Secret) -> None:
        self._api = api
        self._folder = folder
        self._record = record
        self._session_id = session_id
        self._key = key
        self._lock = asyncio.Lock()
        self._sent: dict[str, Found] | None = None
        self.most: int | None = None
        """The largest file that the server takes, in bytes, once that is known."""

    async def collect(self) -> None:
        """Send what is new or has changed. What fails is tried again the next time; nothing is raised."""
        async with self._lock:
            try:
                await self._collect()
            except ApiFailure as failure:
                _log.info("outputs not sent yet", session_id=self._session_id, reason=str(failure))
            except OSError as error:
                _log.warning("outputs could not be read", session_id=self._session_id, reason=str(error))

    async def _collect(self) -> None:
        if self._sent is None:
            self._sent = await asyncio.to_thread(_read_record, self._record)
        found = await asyncio.to_thread(scan, self._folder)
        changed = {path: seen for path, seen in found.items() if self._sent.get(path) != seen}
        if not changed:
            return
        failures = 0
        try:
            for path, seen in changed.items():
                try:
                    if await self._send(path, seen):
                        self._sent[path] = seen
                except ApiFailure as failure:
                    # One file may be at fault: it may have shrunk under our hands.
                    failures += 1
                    if failures == _FAILURES or not failure.may_pass:
                        raise
                    _log.info("an output was not sent yet", path=path, reason=str(failure))
        finally:
            # What is not noted is sent again, and the server knows that it has it.
            await asyncio.to_thread(_write_record, self._record, self._sent)

    async def _send(self, path: str, seen: Found) -> bool:
        """Send one file; whether it is done with. Raises `ApiFailure` if it has to be tried again."""
        if self.most is not None and seen.size > self.most:
            # A sparse file costs the agent nothing to make, and would cost minutes to send.
            _log.warning("an output is too large", session_id=self._session_id, path=path, size=seen.size)
            return True
        try:
            with await asyncio.to_thread(_Reading, self._folder, path) as reading:
                await self._api.send_output(
                    self._session_id, path, self._key, reading.pieces(seen.size), seen.size
                )
        except OSError:
            return False  # gone, or something else by now
        except ApiFailure as failure:
            if failure.status not in _REFUSED:
                raise
            _log.warning("an output was refused", session_id=self._session_id, path=path, reason=str(failure))
        else:
            _log.info("output sent", session_id=self._session_id, path=path, size=seen.size)
        return True


class _Reading:
    """An open output. Raises OSError if what is at the path is no regular file in the folder itself."""

    def __init__(self, folder: Path, path: str) -> None:
        self._descriptor = _open(folder, path)

    def __enter__(self) -> "_Reading":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    async def pieces(self, size: int) -> AsyncGenerator[bytes]:
        """The first `size` bytes; fewer if the file has shrunk, which the server then refuses."""
        left = size
        while left:
            piece = await asyncio.to_thread(os.read, self._descriptor, min(left, _READ_BYTES))
            if not piece:
                return
            left -= len(piece)
            yield piece


def scan(folder: Path) -> dict[str, Found]:
    """The regular files below a folder by relative path; links and anything special are left out. Blocking.

    At most 20,000 entries are looked at, 32 levels deep; a name that is no text, or holds control characters,
    is left out too.
    """
    found: dict[str, Found] = {}
    looked_at = 0
    with _descriptor(os.open(folder, _FOLDER)) as top:
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            parts = waiting.pop()
            try:
                entries = list(_entries(top, parts))
            except OSError:
                continue  # removed or replaced meanwhile
            for name, status in entries:
                looked_at += 1
                if looked_at > _ENTRIES:
                    _log.warning("too many files among the outputs; the rest is not looked at")
                    return found
                if not _is_text(name):
                    continue
                if stat.S_ISDIR(status.st_mode) and len(parts) + 1 < _DEPTH:
                    waiting.append((*parts, name))
                elif stat.S_ISREG(status.st_mode):
                    found["/".join((*parts, name))] = Found(
                        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
                    )
    return dict(sorted(found.items()))


def _entries(top: int, parts: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result]]:
    with _descriptor(_folder_at(top, parts)) as directory, os.scandir(directory) as entries:
        for _, entry in zip(range(_ENTRIES + 1), entries, strict=False):
            yield entry.name, entry.stat(follow_symlinks=False)


def _open(folder: Path, path: str) -> int:
    *parents, name = path.split("/")
    with _descriptor(os.open(folder, _FOLDER)) as top, _descriptor(_folder_at(top, tuple(parents))) as parent:
        descriptor = os.open(name, _FILE, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return descriptor


def _folder_at(top: int, parts: tuple[str, ...]) -> int:
    """A descriptor of the folder at a path below `top`, reached without following any link."""
    descriptor = os.dup(top)
    for part in parts:
        with _descriptor(descriptor) as parent:
            descriptor = os.open(part, _FOLDER, dir_fd=parent)
    return descriptor


@contextmanager
def _descriptor(descriptor: int) -> Generator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_text(name: str) -> bool:
    return name.isprintable() and not any("\ud800" <= character <= "\udfff" for character in name)


def _read_record(record: Path) -> dict[str, Found]:
    try:
        return msgspec.json.decode(record.read_bytes(), type=dict[str, Found])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError:
        # Everything is sent again; the server knows what it has.
        _log.warning("the record of a session's outputs cannot be read", path=str(record))
        return {}


def _write_record(record: Path, sent: dict[str, Found]) -> None:
    draft = record.with_name(f"record-{uuid4().hex}")
    draft.write_bytes(msgspec.json.encode(sent))
    os.replace(draft, record)
