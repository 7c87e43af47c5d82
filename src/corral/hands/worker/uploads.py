"""The files that are mounted in a session, brought to this machine and kept in step with the session.

They lie in a folder beside the workspace that sandboxes show read-only as /mnt/session/uploads; so a file
that is added is seen by a sandbox that runs already. Nobody but the worker writes there.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from corral.hands.worker.answers import MountedFile
from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.pace import Backoff, Pace
from corral.wire.secret import Secret
from corral.wire.session_resources import UPLOADS

_ATTEMPTS: Final = 4

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Brought(msgspec.Struct):
    """What has been brought: the revision of the session's files, and each resource's path in the folder."""

    revision: str = ""
    paths: dict[str, str] = {}


class Uploads:
    """The uploads of one session, in `folder`; `record` is a file beside it that says what is there."""

    def __init__(
        self, api: WorkApi, folder: Path, record: Path, session_id: str, key: Secret, pace: Pace
    ) -> None:
        self._api = api
        self._folder = folder
        self._record = record
        self._session_id = session_id
        self._key = key
        self._pace = pace
        self._lock = asyncio.Lock()
        self._brought: _Brought | None = None

    async def bring(self, revision: str) -> None:
        """See to it that the folder holds the session's files as of `revision`, which the server has told.

        A file that is gone at the server is left out. Raises:
            ApiFailure: the files could not be had, after several attempts.
            OSError: they could not be stored.
        """
        async with self._lock:
            if self._brought is None:
                self._brought = await asyncio.to_thread(_read_record, self._record)
            if self._brought.revision == revision:
                return
            backoff = Backoff(self._pace)
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    await self._update(self._brought, revision)
                except ApiFailure as failure:
                    if not failure.may_pass or attempt == _ATTEMPTS:
                        raise
                    _log.info("files not brought yet", reason=str(failure), attempt=attempt)
                    await asyncio.sleep(backoff.next(failure.retry_after))
                else:
                    return

    async def _update(self, brought: _Brought, revision: str) -> None:
        wanted = {one.id: one for one in await self._api.mounted_files(self._session_id, self._key)}
        for resource_id in [one for one in brought.paths if one not in wanted]:
            await asyncio.to_thread(_take_away, self._folder, brought.paths.pop(resource_id))
            await asyncio.to_thread(_write_record, self._record, brought)
        for resource_id, file in wanted.items():
            if resource_id not in brought.paths and await self._place(file):
                brought.paths[resource_id] = _inner_path(file.mount_path)
                await asyncio.to_thread(_write_record, self._record, brought)
        brought.revision = revision
        await asyncio.to_thread(_write_record, self._record, brought)

    async def _place(self, file: MountedFile) -> bool:
        path = _inner_path(file.mount_path)
        draft = self._record.with_name(f"incoming-{uuid4().hex}")
        try:
            async with self._api.file_content(self._session_id, file.file_id, self._key) as pieces:
                with await asyncio.to_thread(draft.open, "xb") as out:
                    async for piece in pieces:
                        await asyncio.to_thread(out.write, piece)
            await asyncio.to_thread(_put, self._folder, path, draft)
        except ApiFailure as failure:
            if failure.status != 404:
                raise
            _log.warning("a mounted file is gone", file_id=file.file_id, path=file.mount_path)
            return False
        finally:
            await asyncio.to_thread(draft.unlink, missing_ok=True)
        _log.info("file mounted", file_id=file.file_id, path=file.mount_path)
        return True


def _inner_path(mount_path: str) -> str:
    """The path in the folder of a mount path. The server has checked it; it is checked again here."""
    parts = mount_path.removeprefix(f"{UPLOADS}/").split("/")
    if not mount_path.startswith(f"{UPLOADS}/") or any(part in ("", ".", "..") for part in parts):
        raise ApiFailure(f"the server sent a mount path that is none: {mount_path[:200]!r}", status=400)
    return "/".join(parts)


def _put(folder: Path, path: str, draft: Path) -> None:
    target = folder / path
    for parent in reversed(target.relative_to(folder).parents[:-1]):
        directory = folder / parent
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
    draft.chmod(0o444)
    draft.replace(target)


def _take_away(folder: Path, path: str) -> None:
    target = folder / path
    target.unlink(missing_ok=True)
    for parent in target.relative_to(folder).parents[:-1]:
        try:
            (folder / parent).rmdir()
        except OSError:
            return  # it holds other files


def _read_record(record: Path) -> _Brought:
    try:
        return msgspec.json.decode(record.read_bytes(), type=_Brought)
    except FileNotFoundError:
        return _Brought()
    except msgspec.MsgspecError:
        # Half a record is of no use: begin anew.
        _log.warning("the record of a session's files cannot be read; they are brought again")
        folder = record.parent / "uploads"
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        return _Brought()


def _write_record(record: Path, brought: _Brought) -> None:
    draft = record.with_name(f"record-{uuid4().hex}")
    draft.write_bytes(msgspec.json.encode(brought))
    os.replace(draft, record)
