"""Background jobs: once for each of their times, through failures and lost connections."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from corral.background.jobs import APPLICATION, Background, PeriodicJob
from corral.bus.postgres import PostgresBus
from corral.store.database import Database

EVERY_SECOND = "* * * * * *"
PATIENCE = 30.0


class Runs:
    """Counts the runs of a job, and lets a test wait for them."""

    def __init__(self, *, fails: bool = False) -> None:
        self.count = 0
        self._more = asyncio.Condition()
        self._fails = fails

    async def run(self) -> None:
        async with self._more:
            self.count += 1
            self._more.notify_all()
        if self._fails:
            raise RuntimeError("this job always fails")

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self._more:
            await self._more.wait_for(lambda: self.count >= count)


@asynccontextmanager
async def working(database: Database, runs: Runs) -> AsyncGenerator[Background]:
    async with Background(database, [PeriodicJob("test", EVERY_SECOND, runs.run)]) as background:
        yield background


async def test_a_job_runs_again_and_again_and_leaves_nothing_behind(database: Database) -> None:
    runs, before = Runs(), asyncio.all_tasks()
    async with working(database, runs):
        await runs.reach(3)
    counted = await database.fetch_one(
        "select (select count(*) from procrastinate_jobs where status <> 'todo') as jobs,"
        " (select count(*) from procrastinate_workers) as workers"
    )
    assert counted == {"jobs": 0, "workers": 0}
    assert asyncio.all_tasks() == before


async def test_several_servers_run_a_job_once_for_each_of_its_times(database: Database) -> None:
    runs = Runs()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with working(database, runs), working(database, runs), working(database, runs):
        await runs.reach(4)
    # The time before the start counts as well, and there may be one in the last moment.
    assert runs.count <= loop.time() - begun + 2


async def test_a_job_that_fails_is_run_at_its_next_time_all_the_same(database: Database) -> None:
    runs = Runs(fails=True)
    async with working(database, runs):
        await runs.reach(2)


async def test_jobs_go_on_after_their_connections_were_cut(database: Database) -> None:
    runs = Runs()
    async with working(database, runs):
        await runs.reach(1)
        await database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
            (APPLICATION,),
        )
        await runs.reach(runs.count + 2)


async def test_what_a_dead_worker_has_left_unfinished_is_cleared_away(database: Database) -> None:
    await database.execute(
        "insert into procrastinate_jobs (queue_name, task_name, status) values ('corral', 'test', 'doing')"
    )
    async with Background(database, []) as background:
        await background.clear_stalled()
        left = await database.fetch("select task_name from procrastinate_jobs where status = 'doing'")
    assert [row for row in left if row["task_name"] == "test"] == []


async def test_a_job_with_a_topic_runs_as_soon_as_the_bus_says_so(database: Database) -> None:
    runs = Runs()
    never = PeriodicJob("test", "0 0 29 2 *", runs.run, topic="something")
    async with (
        PostgresBus(database) as here,
        PostgresBus(database) as there,
        Background(database, [never], here),
    ):
        for count in (1, 2, 3):
            await there.publish("something")
            await runs.reach(count)


async def test_many_pokes_at_once_queue_a_job_once_among_all_servers(database: Database) -> None:
    runs = Runs()
    never = PeriodicJob("test", "0 0 29 2 *", runs.run, topic="something")
    async with (
        PostgresBus(database) as bus,
        Background(database, [never], bus),
        Background(database, [never], bus),
    ):
        for _ in range(100):
            await bus.publish("something")
        await runs.reach(1)
        waiting = await database.fetch_one(
            "select count(*) as jobs from procrastinate_jobs where task_name = 'test' and status = 'todo'"
        )
    assert waiting is not None
    assert waiting["jobs"] <= 1
    assert runs.count < 100


async def test_a_job_that_loses_its_cancellation_does_not_keep_the_server_from_stopping(
    database: Database,
) -> None:
    begun, lost = asyncio.Event(), asyncio.Event()

    async def deaf() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
        await asyncio.Event().wait()

    job = PeriodicJob("test", EVERY_SECOND, deaf)
    async with asyncio.timeout(PATIENCE):
        async with Background(database, [job], grace_seconds=0.1):
            await begun.wait()
    assert lost.is_set()
