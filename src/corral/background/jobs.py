"""One worker a server process for the jobs that all servers of a database share.

A periodic job is queued once for each of its times, whichever servers are there, and one of their workers
runs it. Jobs may run twice (a worker that dies in one leaves it to another), and late, so each must look for
itself at what there is to do, by the database's clock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import procrastinate
import psycopg
import structlog
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, ProcrastinateException
from procrastinate.jobs import Status

from corral.bus.hub import Bus, Subscription, heed_cancellation
from corral.store.database import Database, connection_bounds

QUEUE: Final = "corral"
APPLICATION: Final = "corral background"
"""The name of the worker's connections."""
_CONNECTIONS: Final = 2
"""Of the worker's own pool; one more listens for new jobs."""
_CONCURRENCY: Final = 4
_WAIT_SECONDS: Final = 5.0
"""How long a job waits for a connection."""
_GRACE_SECONDS: Final = 5.0
"""What running jobs get to finish in when the server stops."""
_CANCEL_AGAIN_SECONDS: Final = 2.0
_RESTART_SECONDS: Final = 2.0
_STALLED_SECONDS: Final = 30
"""A worker that has not been heard of for so long is taken for dead."""
_STALLED_CRON: Final = "* * * * *"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """A job that runs again and again.

    ``cron`` has five fields, and a sixth for seconds at its end where those matter. The clock is the
    server's, so it tells how often, not when exactly. A job that still waits is not queued once more.
    A job with a ``topic`` is queued as well whenever the bus says that something is there to do.
    """

    name: str
    cron: str
    run: Callable[[], Awaitable[object]]
    topic: str | None = None


class Background:
    """Runs jobs while it is open. Open with ``async with``; the schema has to be there.

    Jobs that have a topic need the `bus`.
    """

    def __init__(
        self,
        database: Database,
        jobs: Sequence[PeriodicJob],
        bus: Bus | None = None,
        *,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        self._bus = bus
        self._grace_seconds = grace_seconds
        self._jobs = tuple(jobs)
        self._app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(
                conninfo=database.direct_url,
                min_size=1,
                max_size=_CONNECTIONS,
                timeout=_WAIT_SECONDS,
                kwargs={"application_name": APPLICATION, **connection_bounds(database.direct_url)},
            )
        )
        for job in (*jobs, PeriodicJob("corral.stalled_jobs", _STALLED_CRON, self.clear_stalled)):
            self._register(job)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._app.open_async()
        self._tasks.append(asyncio.create_task(self._keep_working(), name="background worker"))
        for job in self._jobs:
            if self._bus is not None and job.topic is not None:
                heeding = self._heed(self._bus.subscribe(job.topic), job)
                self._tasks.append(asyncio.create_task(heeding, name=f"background {job.topic}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A cancellation can be lost on the way (see `heed_cancellation`), in a job as well as in the worker,
        # which would then go on for ever. So it is repeated, but not before running jobs have had their time.
        waiting = set(self._tasks)
        while waiting:
            for task in waiting:
                task.cancel()
            _, waiting = await asyncio.wait(waiting, timeout=self._grace_seconds + _CANCEL_AGAIN_SECONDS)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._app.close_async()

    def _register(self, job: PeriodicJob) -> None:
        async def run(timestamp: int) -> None:
            await job.run()

        task = self._app.task(name=job.name, queue=QUEUE, queueing_lock=job.name)(run)
        self._app.periodic(cron=job.cron, periodic_id=job.name)(task)

    async def _keep_working(self) -> None:
        while True:
            heed_cancellation()
            try:
                await self._app.run_worker_async(
                    queues=[QUEUE],
                    concurrency=_CONCURRENCY,
                    delete_jobs="always",
                    install_signal_handlers=False,
                    shutdown_graceful_timeout=self._grace_seconds,
                    stalled_worker_timeout=_STALLED_SECONDS,
                )
            except (psycopg.Error, ProcrastinateException, OSError) as error:
                _log.warning("the background worker lost its database; starting anew", error=_reason(error))
            await asyncio.sleep(_RESTART_SECONDS)

    async def _heed(self, subscription: Subscription, job: PeriodicJob) -> None:
        """Queue a job whenever its topic is poked; however many servers do it, it waits once."""
        async with subscription:
            while True:
                await subscription.wait()
                subscription.take()
                try:
                    deferrer = self._app.configure_task(job.name, queue=QUEUE, queueing_lock=job.name)
                    await deferrer.defer_async(timestamp=0)
                except AlreadyEnqueued:
                    continue
                except (psycopg.Error, ProcrastinateException) as error:
                    _log.warning("a job could not be queued; its next time will do", error=_reason(error))

    async def clear_stalled(self) -> None:
        """Remove what dead workers have left unfinished; its next time comes soon enough."""
        manager = self._app.job_manager
        for job in await manager.get_stalled_jobs(seconds_since_heartbeat=_STALLED_SECONDS):
            try:
                await manager.finish_job(job, Status.FAILED, delete_job=True)
            except ConnectorException:
                _log.debug("another server has removed a stalled job", job=job.id)


def _reason(error: BaseException) -> str:
    """What is at the bottom of an error: procrastinate wraps whatever the database says."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)
