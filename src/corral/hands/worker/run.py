"""The worker as a whole: polls, gives each item a run of its own, keeps house, ends in good order."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx
import structlog

from corral.hands.sandbox.provider import MIB, Limits, SandboxProvider
from corral.hands.sandbox.select import provider_named
from corral.hands.worker.answers import OtherItem, WorkItem
from corral.hands.worker.client import WorkApi
from corral.hands.worker.disk import DiskLimits
from corral.hands.worker.failures import ApiFailure, CredentialRefused, WorkerMisconfigured
from corral.hands.worker.pace import STANDARD, Backoff, Pace
from corral.hands.worker.presence import Presence
from corral.hands.worker.repositories import RepositoryCache
from corral.hands.worker.results import Undelivered
from corral.hands.worker.sandboxes import Sandboxes
from corral.hands.worker.serving import End, ItemRun
from corral.hands.worker.session_hands import Bench
from corral.hands.worker.skills import SkillCache
from corral.hands.worker.workspaces import Owner, Workspaces, default_directory
from corral.settings import Limits as LimitSettings
from corral.settings import Worker as WorkerSettings
from corral.wire.secret import Secret

_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_KEPT_CONNECTIONS: Final = 64
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Employer:
    """Whom a worker works for. environment_id: None for the pool, every `cloud` environment."""

    base_url: str
    key: Secret
    environment_id: str | None


def employer(settings: WorkerSettings) -> Employer:
    """Whom the settings name. Raises `WorkerMisconfigured` if they name nobody, or two."""
    if settings.base_url is None:
        raise WorkerMisconfigured(
            "no server to work for: set ANTHROPIC_BASE_URL (or worker.base_url) to its address"
        )
    if settings.pool_key is not None:
        if settings.environment_key is not None or settings.environment_id is not None:
            raise WorkerMisconfigured(
                "both a pool key and an environment are set: keep CORRAL_WORKER__POOL_KEY to serve every "
                "cloud environment, or the environment's id and key to serve that one"
            )
        return Employer(settings.base_url, settings.pool_key, None)
    if settings.environment_key is None or settings.environment_id is None:
        raise WorkerMisconfigured(
            "no key to work with: set ANTHROPIC_ENVIRONMENT_ID and ANTHROPIC_ENVIRONMENT_KEY to serve one "
            "environment, or CORRAL_WORKER__POOL_KEY to serve every cloud environment"
        )
    return Employer(settings.base_url, settings.environment_key, settings.environment_id)


async def run_worker(
    settings: WorkerSettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None] | None = None,
    *,
    provider: SandboxProvider | None = None,
    pace: Pace = STANDARD,
    limits: LimitSettings | None = None,
) -> None:
    """Work until `stop` is set; then end all calls, items and sandboxes, within 4 seconds.

    on_ready: called once, when a sandbox has been seen to work and the server has answered a poll. provider:
    in place of the one that the settings name. limits: of each sandbox.

    Raises:
        WorkerMisconfigured: the settings do not say whom to work for.
        SandboxUnavailable: no sandbox can be started here; nothing is run without one.
        CredentialRefused: the server does not take the key, now or no longer.
    """
    works_for = employer(settings)
    limits = limits or LimitSettings()
    provides = provider or provider_named(
        settings.sandbox, waiting=settings.sandboxes_waiting, limits=_sandbox_limits(limits)
    )
    try:
        if not await _probed(provides, stop):
            return
        async with httpx.AsyncClient(
            timeout=_TIMEOUT,
            # A server on this machine is never behind a proxy.
            trust_env=httpx.URL(works_for.base_url).host not in _LOOPBACK,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS),
        ) as http:
            worker = _Worker(settings, works_for, provides, http, pace, limits)
            await worker.run(stop, on_ready)
    finally:
        await provides.close()


async def _probed(provider: SandboxProvider, stop: asyncio.Event) -> bool:
    """Probe; False if `stop` was set before that was done."""
    probing, stopping = asyncio.create_task(provider.probe()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([probing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if probing.done():
            await probing
        return probing.done()
    finally:
        for task in (probing, stopping):
            task.cancel()
        await asyncio.gather(probing, stopping, return_exceptions=True)


def _sandbox_limits(limits: LimitSettings) -> Limits:
    return Limits(
        memory_bytes=limits.memory_mib * MIB,
        processes=limits.processes,
        file_bytes=limits.file_mib * MIB,
        open_files=limits.open_files,
        scratch_bytes=limits.scratch_mib * MIB,
        cpus=limits.cpus,
    )


class _Worker:
    """The poll loop and the runs that it has started."""

    def __init__(
        self,
        settings: WorkerSettings,
        works_for: Employer,
        provider: SandboxProvider,
        http: httpx.AsyncClient,
        pace: Pace,
        limits: LimitSettings,
    ) -> None:
        self._works_for = works_for
        self._pace = pace
        self._most = settings.max_sessions
        worker_id = f"{socket.gethostname()}-{uuid4().hex[:12]}"
        self._api = WorkApi(http, works_for.base_url, worker_id, pace)
        directory = Path(settings.workspace_dir) if settings.workspace_dir else default_directory()
        self._workspaces = Workspaces(
            directory, Owner(works_for.base_url.rstrip("/"), works_for.environment_id)
        )
        self._presence = Presence(directory, worker_id)
        self._sandboxes = Sandboxes(
            provider,
            self._workspaces,
            idle_seconds=settings.sandbox_idle_seconds,
            most=settings.max_sessions,
            # Without a mount namespace there is no place where only the session would see them.
            shows_files=settings.sandbox != "process",
            limits=_sandbox_limits(limits),
            disk=DiskLimits(
                session_bytes=limits.session_disk_mib * MIB,
                session_entries=limits.session_disk_entries,
                free_bytes=limits.free_disk_mib * MIB,
            ),
        )
        self._skills = SkillCache(directory)
        self._repositories = RepositoryCache(self._workspaces.repositories)
        self._bench = Bench(
            self._api,
            self._sandboxes,
            Undelivered(),
            pace,
            settings.session_idle_seconds,
            self._skills,
            self._repositories,
        )
        self._runs: dict[asyncio.Task[None], ItemRun] = {}
        self._latest: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None] | None) -> None:
        await self._workspaces.open()
        async with self._presence:
            await self._work(stop, on_ready)

    async def _work(self, stop: asyncio.Event, on_ready: Callable[[], None] | None) -> None:
        tasks = [
            asyncio.create_task(self._poll(on_ready), name="poll"),
            asyncio.create_task(self._sandboxes.reap(), name="reap sandboxes"),
            asyncio.create_task(self._sandboxes.watch_disk(), name="watch disk"),
            asyncio.create_task(self._sweep(), name="sweep workspaces"),
        ]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopping, *tasks):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_runs()
            await self._sandboxes.doors.close_all()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _poll(self, on_ready: Callable[[], None] | None) -> None:
        backoff = Backoff(self._pace)
        block_ms = 1  # the first answer shows that the key is good
        while True:
            await self._free_place()
            asked = time.monotonic()
            try:
                item = await self._api.poll(self._works_for.key, self._works_for.environment_id, block_ms)
            except ApiFailure as failure:
                if not failure.may_pass:
                    raise self._refusal(failure) from failure
                wait = backoff.next(failure.retry_after)
                _log.warning("poll failed", reason=str(failure), seconds=round(wait, 1))
                await asyncio.sleep(wait)
                continue
            backoff.reset()
            waited_ms = block_ms
            if block_ms == 1 and self._api.is_corral:
                await self._release_the_dead()
            if on_ready is not None:
                _log.info("ready", environment_id=self._works_for.environment_id or "every cloud environment")
                on_ready()
                on_ready = None
            pooled = self._works_for.environment_id is None
            block_ms = self._pace.pool_block_ms if pooled else self._pace.poll_block_ms
            match item:
                case WorkItem():
                    self._start(item)
                case OtherItem():
                    await self._put_away(item)
                case None:
                    await self._pause(asked, waited_ms)

    async def _release_the_dead(self) -> None:
        """Give back what workers of this machine held that were killed; their leases would hold it longer."""
        for worker_id in await self._presence.the_dead():
            try:
                await self._api.release(worker_id, self._works_for.key)
            except ApiFailure as failure:
                _log.warning("a dead worker's items wait for their leases", reason=str(failure))
            else:
                _log.info("a dead worker's items are on offer again", worker_id=worker_id)
                await self._presence.forget(worker_id)

    async def _pause(self, asked: float, block_ms: int) -> None:
        """After an empty poll: Corral has kept us waiting already, unless it is about to stop."""
        if not self._api.is_corral:
            await asyncio.sleep(self._pace.pause())
        elif time.monotonic() - asked < block_ms / 2000:
            await asyncio.sleep(self._pace.backoff_first)

    def _refusal(self, failure: ApiFailure) -> CredentialRefused:
        what = (
            f"the key of environment {self._works_for.environment_id}: check ANTHROPIC_ENVIRONMENT_ID and "
            "ANTHROPIC_ENVIRONMENT_KEY, or make a new one with `corral admin environment-key create`"
            if self._works_for.environment_id is not None
            else "the pool key: make one with `corral admin pool-key create`, and set it as "
            "CORRAL_WORKER__POOL_KEY (only a Corral server has a pool)"
        )
        return CredentialRefused(f"{self._works_for.base_url} does not take {what} ({failure})")

    async def _free_place(self) -> None:
        """Wait until one more session can be served; the one that has rested longest makes room."""
        while len(self._runs) >= self._most:
            resting = [
                (run.resting_since, id(run), run)
                for run in self._runs.values()
                if run.resting_since is not None
            ]
            if resting:
                min(resting)[2].end(End.RESTED)
            self._changed.clear()
            await self._changed.wait()

    def _start(self, item: WorkItem) -> None:
        run = ItemRun(self._bench, item, self._works_for.key, self._changed.set)
        task = asyncio.create_task(run.run(self._latest.get(item.session_id)), name=f"item {item.id}")
        self._runs[task] = run
        self._latest[item.session_id] = task
        task.add_done_callback(lambda done: self._finished(done, item))

    def _finished(self, task: asyncio.Task[None], item: WorkItem) -> None:
        del self._runs[task]
        if self._latest.get(item.session_id) is task:
            del self._latest[item.session_id]
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a run failed", work_id=item.id, session_id=item.session_id, exc_info=error)

    async def _put_away(self, item: OtherItem) -> None:
        """Acknowledge and end an item that asks for nothing, such as a health check."""
        try:
            await self._api.acknowledge(item, self._works_for.key)
            await self._api.stop(item, self._works_for.key)
        except ApiFailure as failure:
            _log.info("item not put away", work_id=item.id, kind=item.kind, reason=str(failure))

    async def _sweep(self) -> None:
        while True:
            try:
                for session_id, unused in await self._workspaces.kept():
                    if session_id not in self._latest and await self._is_gone(session_id, unused):
                        await self._sandboxes.discard(session_id)
                await self._skills.sweep(self._pace.retention)
                await self._repositories.sweep(self._pace.retention)
            except OSError as error:
                _log.warning("workspaces could not be swept", reason=str(error))
            await asyncio.sleep(self._pace.sweep)

    async def _is_gone(self, session_id: str, unused: float) -> bool:
        """Whether a workspace can go. Where the key may not ask for the session, its age decides."""
        try:
            return (await self._api.session(session_id, self._works_for.key)).is_over
        except ApiFailure as failure:
            if failure.may_pass:
                return False
            return failure.status == 404 or unused > self._pace.retention

    async def _end_runs(self) -> None:
        tasks = list(self._runs)
        for run in list(self._runs.values()):
            run.end(End.SHUTDOWN)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=2.5 * self._pace.farewell)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
