"""A session's repositories: cloned into its workspace before a call needs them, by way of its own door.

git runs in sandboxes that are made for it. The first one reaches the network and sees a bare copy of the
repository, which sessions share, and nothing of the workspace; every fetch into it goes out as the session,
so whoever may not read the repository gets nothing of the copy either. The second one sees the workspace, and
has no network. So nothing that an agent has left in its workspace can change what sessions share, and what a
repository holds is never read outside of a sandbox.
"""

import asyncio
import hashlib
import os
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from corral.hands.sandbox.provider import (
    Bind,
    DiskFull,
    Egress,
    Recipe,
    SandboxLost,
    SandboxUnavailable,
    ToolOutput,
)
from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.sandboxes import Sandboxes
from corral.wire.egress import PlannedRepository
from corral.wire.secret import Secret

_RECORD: Final = "repositories.json"
_CACHE: Final = "/mnt/corral-cache"
_BARE: Final = f"{_CACHE}/repository.git"
_FETCH_MS: Final = 900_000
_CHECKOUT_MS: Final = 600_000
_AGAIN_SECONDS: Final = 60.0
_CHECKOUT_FAILED: Final = "corral: cannot check out"
_SETTINGS: Final = (
    "set -e; export GIT_TERMINAL_PROMPT=0 GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C "
    "GIT_ALLOW_PROTOCOL={protocols}; "
)
# What git says of an answer, by what has to be done about it. The first that is found counts.
_SAID: Final = (
    ("repository_authentication_error", ("could not read Username", "Authentication failed", "error: 401")),
    ("repository_not_found_error", ("error: 404", "not found")),
    ("repository_forbidden_error", ("error: 403",)),
)
_ADVICE: Final = {
    "repository_authentication_error": "The repository wants a valid authorization_token.",
    "repository_forbidden_error": "The authorization_token may not read the repository.",
    "repository_not_found_error": "There is no such repository, or the authorization_token does not see it.",
    "repository_checkout_error": "The branch or commit does not exist in the repository.",
    "repository_clone_error": "The repository could not be cloned.",
}

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Failed(Exception):
    """A repository is not there; `kind` is the documented error, the text is git's."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class _Attempt:
    """The last attempt that failed: at which revision, when, and what was told of it."""

    revision: str
    at: float
    kind: str


class RepositoryCache:
    """Bare copies in a folder, one a URL, which the sessions of a worker share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, url: str) -> asyncio.Lock:
        """Held by whoever fetches into the copy or clones from it."""
        return self._locks.setdefault(url, asyncio.Lock())

    async def place(self, url: str) -> Path:
        """The folder of a URL's copy, which is made."""
        return await asyncio.to_thread(self._place, url)

    async def scratch(self) -> Path:
        """A new, empty folder; the caller removes it."""
        return await asyncio.to_thread(self._made, f"scratch-{uuid4().hex}")

    async def forget(self, url: str) -> None:
        """Remove a copy that git cannot use."""
        place = await self.place(url)
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    async def sweep(self, seconds: float) -> None:
        """Remove copies that no session has asked for in so long, and what a killed worker has left."""
        await asyncio.to_thread(self._sweep, seconds)

    def _place(self, url: str) -> Path:
        place = self._made(hashlib.sha256(url.encode()).hexdigest()[:40])
        os.utime(place)
        return place

    def _made(self, name: str) -> Path:
        self._folder.mkdir(exist_ok=True)  # several sessions may be the first at once
        self._folder.chmod(0o711)
        place = self._folder / name
        place.mkdir(mode=0o700, exist_ok=True)
        return place

    def _sweep(self, seconds: float) -> None:
        if not self._folder.exists():
            return
        for place in self._folder.iterdir():
            if time.time() - place.stat().st_mtime > seconds:
                shutil.rmtree(place, ignore_errors=True)


class SessionRepositories:
    """The repositories of one session while a work item is served. share: the session's folder of records."""

    def __init__(
        self,
        api: WorkApi,
        sandboxes: Sandboxes,
        cache: RepositoryCache,
        share: Path | None,
        session_id: str,
        key: Secret,
    ) -> None:
        self._api = api
        self._sandboxes = sandboxes
        self._cache = cache
        self._record = None if share is None else share / _RECORD
        self._session_id = session_id
        self._key = key
        self._lock = asyncio.Lock()
        self._brought = ""
        self._failed: dict[str, _Attempt] = {}

    async def bring(self, revision: str) -> None:
        """See to it that the session's repositories of `revision`, which the server has told, are cloned.

        One that cannot be is told in the session's log and tried again later; the call goes on without it.

        Raises:
            ApiFailure: the server does not say which they are.
            OSError: nothing can be stored here.
        """
        if revision == "" or (revision == self._brought and not self._is_due()):
            return
        async with self._lock:
            if revision == self._brought and not self._is_due():
                return
            plan = await self._api.sandbox_plan(self._session_id, self._key)
            cloned = await asyncio.to_thread(self._read_record)
            for repository in plan.repositories:
                if repository.id in cloned or not self._may_try(repository):
                    continue
                try:
                    if plan.way is None or self._record is None:
                        raise _Failed("repository_clone_error", "sandboxes here have no way to the gateway")
                    door = await self._sandboxes.doors.open(self._session_id, plan.way, self._key)
                    await self._clone(repository, Egress(door, plan.way.certificate))
                except _Failed as failed:
                    await self._tell(repository, failed)
                else:
                    self._failed.pop(repository.id, None)
                    cloned.append(repository.id)
                    await asyncio.to_thread(self._write_record, cloned)
            self._brought = revision

    def _is_due(self) -> bool:
        return any(time.monotonic() - one.at > _AGAIN_SECONDS for one in self._failed.values())

    def _may_try(self, repository: PlannedRepository) -> bool:
        last = self._failed.get(repository.id)
        return (
            last is None
            or last.revision != repository.revision
            or time.monotonic() - last.at > _AGAIN_SECONDS
        )

    async def _tell(self, repository: PlannedRepository, failed: _Failed) -> None:
        last = self._failed.get(repository.id)
        self._failed[repository.id] = _Attempt(repository.revision, time.monotonic(), failed.kind)
        _log.warning("a repository is not cloned", url=repository.url, kind=failed.kind, reason=str(failed))
        if last is not None and (last.kind, last.revision) == (failed.kind, repository.revision):
            return
        message = f"{_ADVICE[failed.kind]} ({repository.url}: {_last_line(str(failed))})"
        try:
            await self._api.report_repository(
                self._session_id, repository.id, self._key, error=failed.kind, message=message[:2000]
            )
        except ApiFailure as failure:
            _log.warning("a failed clone could not be told", url=repository.url, reason=str(failure))

    async def _clone(self, repository: PlannedRepository, egress: Egress) -> None:
        begun = time.monotonic()
        async with self._cache.lock(repository.url):
            try:
                place = await self._fetched(repository, egress)
                await self._check_out(repository, place)
            except DiskFull as full:
                raise _Failed("repository_clone_error", str(full)) from full
        seconds = round(time.monotonic() - begun, 3)
        _log.info("repository cloned", url=repository.url, path=repository.mount_path, seconds=seconds)

    async def _fetched(self, repository: PlannedRepository, egress: Egress) -> Path:
        """The copy, up to date. One that was left half done or is broken is given up."""
        place = await self._cache.place(repository.url)
        try:
            await self._fetch(repository, place, egress)
        except DiskFull:
            await self._cache.forget(repository.url)
            raise
        except _Failed as failed:
            if failed.kind != "repository_clone_error":
                raise
            # The copy may be broken; a new one is made once.
            await self._cache.forget(repository.url)
            place = await self._cache.place(repository.url)
            await self._fetch(repository, place, egress)
        return place

    async def _fetch(self, repository: PlannedRepository, place: Path, egress: Egress) -> None:
        scratch = await self._cache.scratch()
        try:
            recipe = Recipe(
                session_id=self._session_id,
                workspace=scratch,
                binds=(Bind(place, _CACHE, writable=True),),
                limits=self._sandboxes.limits,
                egress=egress,
            )
            said = await self._run(recipe, fetching(repository), _FETCH_MS)
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
        if said.is_error:
            raise _failure(_text(said))

    async def _check_out(self, repository: PlannedRepository, place: Path) -> None:
        recipe = Recipe(
            session_id=self._session_id,
            workspace=await self._sandboxes.workspace(self._session_id),
            binds=(Bind(place, _CACHE),),
            limits=self._sandboxes.limits,
        )
        said = await self._run(recipe, checking_out(repository), _CHECKOUT_MS)
        if said.is_error:
            raise _failure(_text(said))

    async def _run(self, recipe: Recipe, command: str, milliseconds: int) -> ToolOutput:
        try:
            async with self._sandboxes.apart(recipe) as sandbox:
                return await sandbox.execute("bash", {"command": command, "timeout_ms": milliseconds})
        except (SandboxLost, SandboxUnavailable) as error:
            raise _Failed("repository_clone_error", f"no sandbox for git: {error}") from error

    def _read_record(self) -> list[str]:
        if self._record is None:
            return []
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=list[str])
        except FileNotFoundError:
            return []

    def _write_record(self, cloned: list[str]) -> None:
        assert self._record is not None
        draft = self._record.with_name(f"record-{uuid4().hex}")
        draft.write_bytes(msgspec.json.encode(cloned))
        os.replace(draft, self._record)


def fetching(repository: PlannedRepository) -> str:
    """The command that brings the shared copy up to date, and with it the commit that is asked for."""
    url = shlex.quote(repository.url)
    git = f"git --git-dir={_BARE}"
    steps = [
        f"[ -d {_BARE} ] || git init -q --bare --template= {_BARE}",
        f"{git} fetch -q --prune --no-auto-gc {url} '+refs/heads/*:refs/heads/*' '+refs/tags/*:refs/tags/*'",
        f"head=$({git} ls-remote --symref {url} HEAD | sed -n 's/^ref: \\(.*\\)\\tHEAD$/\\1/p')",
        # The server has chosen the text.
        f'case "$head" in refs/heads/*) {git} symbolic-ref HEAD "$head";; esac',
    ]
    sha = _commit(repository)
    if sha is not None:
        wanted = shlex.quote(sha)
        # One that no branch leads to has to be asked for by itself.
        steps.append(
            f'[ -n "$({git} for-each-ref --count=1 --contains {wanted} 2>/dev/null)" ] || '
            f"{git} fetch -q --no-auto-gc {url} {wanted} || "
            f"{{ echo '{_CHECKOUT_FAILED}'; exit 1; }}"
        )
        steps.append(f"{git} update-ref refs/corral/{wanted} {wanted}^{{commit}}")
    return f"({_SETTINGS.format(protocols='https')}{'; '.join(steps)})"


def checking_out(repository: PlannedRepository) -> str:
    """The command that clones the shared copy into the workspace, as if from the repository itself."""
    target = shlex.quote(repository.mount_path)
    git = f"git -C {target}"
    sha = _commit(repository)
    steps = [
        f"[ ! -e {target} ] || rmdir {target}",
        f"mkdir -p {shlex.quote(str(Path(repository.mount_path).parent))}",
        f"git clone -q --no-local --no-checkout --template= {_BARE} {target}",
        f"{git} remote set-url origin {shlex.quote(repository.url)}",
    ]
    failed = f"{{ echo '{_CHECKOUT_FAILED}'; rm -rf {target}; exit 1; }}"
    if sha is not None:
        wanted = shlex.quote(sha)
        steps.append(f"{git} fetch -q {_BARE} refs/corral/{wanted}")
        steps.append(f"{git} -c advice.detachedHead=false checkout -q --detach {wanted} || {failed}")
    elif repository.checkout is not None:
        branch = shlex.quote(f"{repository.checkout['name']}")
        steps.append(f"{git} checkout -q -B {branch} --track refs/remotes/origin/{branch} || {failed}")
    else:
        # An empty repository has nothing to check out.
        steps.append(f"! {git} rev-parse -q --verify HEAD >/dev/null || {git} checkout -q || {failed}")
    return f"({_SETTINGS.format(protocols='file')}{'; '.join(steps)})"


def _commit(repository: PlannedRepository) -> str | None:
    checkout = repository.checkout
    return str(checkout["sha"]) if checkout is not None and checkout["type"] == "commit" else None


def _failure(text: str) -> _Failed:
    if _CHECKOUT_FAILED in text:
        return _Failed("repository_checkout_error", text)
    for kind, signs in _SAID:
        if any(sign in text for sign in signs):
            return _Failed(kind, text)
    return _Failed("repository_clone_error", text)


def _text(output: ToolOutput) -> str:
    return "\n".join(str(block.get("text", "")) for block in output.content)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and line.strip() != _CHECKOUT_FAILED]
    return lines[-1].strip()[:500] if lines else "git said nothing"
