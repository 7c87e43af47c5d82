"""The workspaces: one directory a session, which outlives its sandboxes and this process.

`<directory>/<session id>` is the workspace; `.owners/<session id>` beside them says for whom it is kept, and
by its time when it was last in use; `.begun/<session id>/` has an empty file for each call that was begun
here; `.shares/<session id>/` holds the files that were mounted in it, those that it puts out, and its skills;
`.skills` what all sessions' skills are linked to (see `corral.hands.worker.skills`). Only what
this worker's credential can ask about, or nobody has used for long, is ever removed.
"""

import asyncio
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from corral.hands.worker.trees import remove_tree

_OWNERS: Final = ".owners"
_BEGUN: Final = ".begun"
_GONE: Final = ".gone-"
_SHARES: Final = ".shares"
_DOORS: Final = ".doors"
_REPOSITORIES: Final = ".repositories"

UPLOADS_FOLDER: Final = "uploads"
OUTPUTS_FOLDER: Final = "outputs"
SKILLS_FOLDER: Final = "skills"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Owner(msgspec.Struct, frozen=True):
    """For whom a workspace is kept: a server, and one environment of it or (None) its pool."""

    base_url: str
    environment_id: str | None


def default_directory() -> Path:
    """Where workspaces are kept if no setting says otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/corral/workspaces")
    return Path.home() / ".local" / "share" / "corral" / "workspaces"


class Workspaces:
    """The workspaces in a directory, used by one owner. Session ids must be safe as names of files."""

    def __init__(self, directory: Path, owner: Owner) -> None:
        self._directory = directory
        self._owner = owner
        self.doors: Final = directory / _DOORS
        """Where sandboxes' ways out are."""
        self.repositories: Final = directory / _REPOSITORIES
        """Where repositories are kept that several sessions may clone."""

    @property
    def directory(self) -> Path:
        """Where all of them are."""
        return self._directory

    def writable(self, session_id: str) -> list[Path]:
        """What a session's agent can write to: its workspace, outputs and memory stores. Blocking."""
        share = self._directory / _SHARES / session_id
        shown = list(share.iterdir()) if share.is_dir() else []
        return [self._directory / session_id, *(one for one in shown if one.name != UPLOADS_FOLDER)]

    async def open(self) -> None:
        """Make the directory, and finish what a worker that was killed had begun to remove."""
        await asyncio.to_thread(self._open)

    async def take(self, session_id: str) -> Path:
        """The workspace of a session, noted as in use now. The directory itself is made by the provider."""
        await asyncio.to_thread(self._note, session_id)
        return self._directory / session_id

    async def share(self, session_id: str) -> Path:
        """The folder of a session's `uploads` and `outputs`, both of which are made."""
        return await asyncio.to_thread(self._share, session_id)

    async def skills(self, session_id: str) -> Path:
        """The folder of a session's skills, which is made by whoever brings them."""
        return await asyncio.to_thread(self._share, session_id) / SKILLS_FOLDER

    async def begin_call(self, session_id: str, call_id: str) -> bool:
        """Note that a call is about to run; False if it was noted before, by whatever worker of this machine.

        For servers that keep no such record themselves.
        """
        return await asyncio.to_thread(self._begin_call, session_id, call_id)

    async def remove(self, session_id: str) -> None:
        """Remove a workspace with all that is in it; that there is none is no failure."""
        await asyncio.to_thread(self._remove, session_id)

    async def kept(self) -> list[tuple[str, float]]:
        """The sessions that this owner keeps a workspace for, with the seconds since each was in use."""
        return await asyncio.to_thread(self._kept)

    def _open(self) -> None:
        # The sandbox's user must be able to pass, and has no business to look around.
        _make(self._directory, 0o711)
        for beside in (_OWNERS, _BEGUN):
            (self._directory / beside).mkdir(mode=0o700, exist_ok=True)
        # Sandboxes show parts of it, so their user must be able to pass.
        (self._directory / _SHARES).mkdir(mode=0o711, exist_ok=True)
        (self._directory / _SHARES).chmod(0o711)
        for left in self._directory.glob(f"{_GONE}*"):
            remove_tree(left)

    def _share(self, session_id: str) -> Path:
        share = self._directory / _SHARES / session_id
        for folder, mode in (
            (share, 0o711),
            (share / UPLOADS_FOLDER, 0o755),
            (share / OUTPUTS_FOLDER, 0o700),
        ):
            _make(folder, mode)
        return share

    def _begin_call(self, session_id: str, call_id: str) -> bool:
        folder = self._directory / _BEGUN / session_id
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            # A call's id is the server's word: not to be trusted as a name.
            (folder / hashlib.sha256(call_id.encode(errors="replace")).hexdigest()).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _note(self, session_id: str) -> None:
        path = self._directory / _OWNERS / session_id
        draft = path.with_name(f"{_GONE}{uuid4().hex}")
        draft.write_bytes(msgspec.json.encode(self._owner))
        draft.replace(path)

    def _kept(self) -> list[tuple[str, float]]:
        kept: list[tuple[str, float]] = []
        for path in (self._directory / _OWNERS).iterdir():
            try:
                owner = msgspec.json.decode(path.read_bytes(), type=Owner)
            except msgspec.MsgspecError:
                _log.warning("an owner file cannot be read and is left alone", path=str(path))
                continue
            if owner == self._owner and not path.name.startswith("."):
                kept.append((path.name, time.time() - path.stat().st_mtime))
        return kept

    def _remove(self, session_id: str) -> None:
        # Out of the way in one step, so that half a workspace is never taken for a whole one.
        for folder in (self._directory / session_id, self._directory / _SHARES / session_id):
            grave = self._directory / f"{_GONE}{uuid4().hex}"
            try:
                folder.rename(grave)
            except FileNotFoundError:
                continue
            remove_tree(grave)
        shutil.rmtree(self._directory / _BEGUN / session_id, ignore_errors=True)
        (self._directory / _OWNERS / session_id).unlink(missing_ok=True)


def _make(folder: Path, mode: int) -> None:
    """Make a folder, open to whom ``mode`` says, unless another session or worker has just done so."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return
    folder.chmod(mode)
