"""The skills of a session, brought to this machine: one copy of each version, shared by all sessions.

`<workspaces>/.skills/<version id>/<name>/` is such a copy; a session's folder of skills is made of links to
its files, so it costs names and no bytes. Nothing in it can be written from a sandbox, which shows it
read-only. Only what the API documents is asked for, so any server's skills can be brought.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import structlog

from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.pace import Backoff, Pace
from corral.wire import archives
from corral.wire.archives import ArchiveLimits
from corral.wire.errors import ApiError
from corral.wire.multiagent import member_agents
from corral.wire.secret import Secret
from corral.wire.skills import LATEST

FOLDER: Final = ".skills"
"""Beside the workspaces."""

_ATTEMPTS: Final = 4
_AT_ONCE: Final = 4
# Larger than what Corral's servers take in, since other servers may set other bounds.
_LIMITS: Final = ArchiveLimits(entries=10_000, total_bytes=100 * 1024 * 1024, depth=64)
_DRAFT: Final = ".draft-"
_READABLE, _RUNNABLE, _PASSABLE = 0o444, 0o555, 0o755

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AttachedSkill(msgspec.Struct, frozen=True):
    """A skill of a session's agent, as the session shows it. ``version`` may be ``latest``."""

    skill_id: str
    version: str


class _Version(msgspec.Struct, frozen=True):
    id: str
    name: str


def attached_skills(agent: dict[str, Any]) -> list[AttachedSkill]:
    """The skills of a session's agent, and of those that it may set to work: all lie in one folder.

    Raises:
        ApiFailure: one of them cannot be read.
    """
    listed: list[Any] = []
    for one in (agent, *member_agents(agent)):
        listed += one.get("skills") or []
    try:
        return list(dict.fromkeys(msgspec.convert(listed, list[AttachedSkill])))
    except msgspec.ValidationError as error:
        raise ApiFailure(f"the server sent a skill that cannot be read: {error}", status=400) from None


class SkillCache:
    """The copies of skill versions on this machine. Several workers may share the folder."""

    def __init__(self, workspaces: Path) -> None:
        self._folder = workspaces / FOLDER
        self._locks: dict[str, asyncio.Lock] = {}

    async def version(self, api: WorkApi, key: Secret, skill: AttachedSkill) -> tuple[str, Path]:
        """The name of a skill and the folder that holds its version; fetched unless it is here.

        Raises:
            ApiFailure: it cannot be had; status 404 if it is gone.
            OSError: it cannot be stored.
        """
        if skill.version != LATEST and (kept := await asyncio.to_thread(self._kept, skill.version)):
            return kept
        found = await api.ask("GET", _path(skill.skill_id, skill.version), key, _Version)
        _checked(found.name)
        async with self._locks.setdefault(_checked(found.id), asyncio.Lock()):
            kept = await asyncio.to_thread(self._kept, found.id)
            if kept is None:
                await self._fetch(api, key, skill.skill_id, found)
                kept = found.name, self._folder / found.id / found.name
        return kept

    async def sweep(self, retention: float) -> None:
        """Remove copies that no session has asked for in so many seconds. Folders of sessions keep theirs."""
        await asyncio.to_thread(self._sweep, retention)

    async def _fetch(self, api: WorkApi, key: Secret, skill_id: str, version: _Version) -> None:
        await asyncio.to_thread(_open_folder, self._folder)
        with tempfile.SpooledTemporaryFile(1024 * 1024) as archive:
            size = 0
            async with api.content(f"{_path(skill_id, version.id)}/content", key) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    if size > _LIMITS.total_bytes:
                        raise ApiFailure(f"the archive of skill {skill_id} is too large", status=400)
                    await asyncio.to_thread(archive.write, piece)
            try:
                await asyncio.to_thread(self._unpack, archive, version)
            except ApiError as error:
                raise ApiFailure(f"skill {skill_id}: {error.message}", status=400) from None
        _log.info("skill brought", skill_id=skill_id, version_id=version.id, bytes=size)

    def _kept(self, version_id: str) -> tuple[str, Path] | None:
        folder = self._folder / _checked(version_id)
        try:
            [name] = os.listdir(folder)
        except (FileNotFoundError, ValueError):
            return None
        os.utime(folder)
        return name, folder / name

    def _unpack(self, archive: Any, version: _Version) -> None:
        draft = self._folder / f"{_DRAFT}{uuid4().hex}"
        try:
            _unpack(archive, draft / version.name)
            draft.chmod(_PASSABLE)
            try:
                draft.rename(self._folder / version.id)
            except OSError:
                # Another worker was faster; versions never change.
                if self._kept(version.id) is None:
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _sweep(self, retention: float) -> None:
        if not self._folder.is_dir():
            return
        for folder in self._folder.iterdir():
            if time.time() - folder.stat().st_mtime > retention:
                # Out of the way in one step, so that half a copy is never taken for a whole one.
                grave = folder.with_name(f"{_DRAFT}{uuid4().hex}")
                folder.rename(grave)
                shutil.rmtree(grave)


class SessionSkills:
    """The skills of one session, shown in `folder`, which is made of what `cache` has."""

    def __init__(
        self,
        api: WorkApi,
        cache: SkillCache,
        folder: Path,
        skills: Sequence[AttachedSkill],
        key: Secret,
        pace: Pace,
    ) -> None:
        self._api = api
        self._cache = cache
        self._folder = folder
        self._skills = skills
        self._key = key
        self._pace = pace
        self._lock = asyncio.Lock()
        self._there = False

    async def bring(self) -> None:
        """See to it that the folder is there, with all skills in it. One that is gone is left out.

        Raises:
            ApiFailure: the skills could not be had, after several attempts.
            OSError: they could not be stored.
        """
        async with self._lock:
            if self._there:
                return
            if not await asyncio.to_thread(self._folder.is_dir):
                await asyncio.to_thread(_link_all, await self._found(), self._folder)
            self._there = True

    async def _found(self) -> dict[str, Path]:
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(skill: AttachedSkill) -> tuple[str, Path] | None:
            async with room:
                return await self._version(skill)

        found = await asyncio.gather(*(one(skill) for skill in self._skills))
        return dict(each for each in found if each is not None)

    async def _version(self, skill: AttachedSkill) -> tuple[str, Path] | None:
        backoff = Backoff(self._pace)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._cache.version(self._api, self._key, skill)
            except ApiFailure as failure:
                if failure.status in (400, 403, 404):
                    _log.warning("a skill is left out", skill_id=skill.skill_id, reason=str(failure))
                    return None
                if not failure.may_pass or attempt == _ATTEMPTS:
                    raise
                _log.info("skill not brought yet", skill_id=skill.skill_id, reason=str(failure))
                await asyncio.sleep(backoff.next(failure.retry_after))
        return None


def _path(skill_id: str, version: str) -> str:
    return f"/v1/skills/{_checked(skill_id)}/versions/{_checked(version)}"


def _checked(name: str) -> str:
    """Ids and names become parts of addresses and names of folders; whatever is sent, they are plain."""
    plain = name.replace("-", "").replace("_", "")
    if not plain.isascii() or not plain.isalnum() or len(name) > 128:
        raise ApiFailure(f"the server sent a skill's id or name that is none: {name[:64]!r}", status=400)
    return name


def _open_folder(folder: Path) -> None:
    # Sandboxes show what is in it, so their user must be able to pass.
    folder.mkdir(mode=0o711, exist_ok=True)
    folder.chmod(0o711)


def _unpack(archive: Any, target: Path) -> None:
    """Unpack the files of an archive's one folder into `target`, readable for all and writable for nobody."""
    target.mkdir(parents=True)
    with archives.opened(archive, _LIMITS) as packed:
        for entry in packed.entries:
            _, _, inner = entry.path.partition("/")
            if not inner:
                raise ApiFailure(
                    f"the archive has a file beside its folder: {entry.path[:200]!r}", status=400
                )
            place = target / inner
            _make_parents(place, target)
            with place.open("xb") as out:
                out.writelines(packed.pieces(entry.path))
            place.chmod(_RUNNABLE if entry.executable else _READABLE)
    target.chmod(_PASSABLE)


def _make_parents(place: Path, top: Path) -> None:
    for parent in reversed(place.relative_to(top).parents[:-1]):
        (top / parent).mkdir(exist_ok=True)
        (top / parent).chmod(_PASSABLE)


def _link_all(skills: dict[str, Path], folder: Path) -> None:
    """Make `folder` show skills under their names, all in one step."""
    draft = folder.with_name(f"{_DRAFT}{uuid4().hex}")
    draft.mkdir()
    try:
        for name, source in skills.items():
            shutil.copytree(source, draft / name, copy_function=os.link)
        draft.chmod(_PASSABLE)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
