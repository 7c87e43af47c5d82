"""Group commit: one writer per process gathers the commits of all sessions and writes them in one statement.

There is no linger: while a group is being written the next one gathers, so one session alone pays nothing
and many sessions share each fsync (docs/design/log.md has the figures). A commit's caller returns after its
group is durable. If the database goes away mid-group, the writer reconnects and asks the log which of the
group's commits had landed, so a commit is never written twice and never lost in silence.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, LiteralString, NamedTuple, Self

import psycopg
import structlog
from psycopg.rows import DictRow

from corral.bus.hub import WAKES_TOPIC, Bus, session_topic
from corral.bus.landed import Landed, LandedEvent
from corral.session.chain import digests_of
from corral.session.commit import Commit, CommitRefused, Committed, LogUnavailable
from corral.session.commit_statement import statement
from corral.store.database import Connection, Database

_GROUP_ROWS: Final = 2_000
_GROUP_BYTES: Final = 16 * 1024 * 1024
_LANES: Final = 2
"""Groups that are written at the same time: while one waits for the disk, the next is under way."""
_UNAVAILABLE_SECONDS: Final = 60.0
"""How long a commit waits for a database that does not answer."""
_RECONNECT_SECONDS: Final = 0.2

_log = structlog.get_logger(__name__)
_FIND: Final[LiteralString] = """
select e.seq - 1 as base, s.last_input as input_base, e.processed_at as at
from events e join sessions s on s.id = e.session_id
where e.session_id = %(session)s and e.id = %(id)s and e.seq > %(after)s
union all
select s.last_seq, i.position - 1, i.created_at
from inputs i join sessions s on s.id = i.session_id
where i.session_id = %(session)s and i.id = %(id)s
limit 1
"""


class _Waiting(NamedTuple):
    commit: Commit
    texts: list[tuple[str, str | None]]
    digests: list[str]
    size: int
    done: "asyncio.Future[Committed]"


class LogWriter:
    """The process's one writer of logs. Open with ``async with``; `commit` may be called by any task."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._queue: deque[_Waiting] = deque()
        self._busy: set[str] = set()
        """Sessions of which a commit is being written: of one session, one at a time."""
        self._wanted = asyncio.Event()
        self.written = set[str]()
        """Sessions whose log has grown, for whoever takes them out; see `corral.session.sealing`."""
        self._lanes = [_Lane(database, bus, self.written) for _ in range(_LANES)]
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    async def __aenter__(self) -> Self:
        for lane in self._lanes:
            await lane.open()
        self._tasks = [asyncio.create_task(self._run(lane)) for lane in self._lanes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._wanted.set()
        await asyncio.gather(*self._tasks)
        for lane in self._lanes:
            await lane.close()

    async def commit(self, commit: Commit) -> Committed:
        """Write one commit; returns once it is durable.

        Raises:
            CommitRefused: its fence does not hold, or the session is gone. Nothing was written.
            LogUnavailable: the database stayed away for a minute.
        """
        if self._closing:
            raise LogUnavailable("the log's writer is closed")
        texts = [(event.body_text(), event.private_text()) for event in commit.events]
        size = sum(len(body) + len(private or "") for body, private in texts)
        digests = digests_of(commit.events, texts, commit.fence.seq)
        waiting = _Waiting(commit, texts, digests, size, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._wanted.set()
        # A caller that is cancelled cancels its waiting alone: the commit is in the queue, and is written.
        return await waiting.done

    @property
    def queued(self) -> int:
        """How many commits wait to be written."""
        return len(self._queue)

    async def _run(self, lane: "_Lane") -> None:
        while True:
            group = self._next_group()
            if not group:
                if self._closing and not self._queue:
                    return
                self._wanted.clear()
                await self._wanted.wait()
                continue
            sessions = {waiting.commit.session_id for waiting in group}
            self._busy |= sessions
            try:
                await lane.write(group)
            finally:
                self._busy -= sessions
                self._wanted.set()

    def _next_group(self) -> list[_Waiting]:
        """The oldest waiting commits that may be written now, one per session, up to a group's bounds."""
        group: list[_Waiting] = []
        later: deque[_Waiting] = deque()
        sessions = set(self._busy)
        rows = size = 0
        while self._queue:
            waiting = self._queue.popleft()
            if waiting.commit.session_id in sessions or (
                group and (rows + waiting.commit.weight > _GROUP_ROWS or size + waiting.size > _GROUP_BYTES)
            ):
                later.append(waiting)
                # Of one session, the order of arrival is the order of writing.
                sessions.add(waiting.commit.session_id)
                continue
            group.append(waiting)
            sessions.add(waiting.commit.session_id)
            rows += waiting.commit.weight
            size += waiting.size
        self._queue = later
        return group


class _Lane:
    """One connection of the writer, and what it takes to write a group through it."""

    def __init__(self, database: Database, bus: Bus, written: set[str]) -> None:
        self._database = database
        self._bus = bus
        self._written = written
        self._connection: Connection | None = None
        self._backend: DictRow | None = None
        """The server's process behind the connection: its pid, and when it started."""

    async def open(self) -> None:
        self._connection = await self._connect()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def write(self, group: Sequence[_Waiting]) -> None:
        """Write a group; every commit in it is settled when this returns."""
        deadline: float | None = None
        while group:
            try:
                rows = await self._execute(group)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                _log.warning("the database went away during a commit", commits=len(group), error=str(error))
                if deadline is None:
                    deadline = asyncio.get_running_loop().time() + _UNAVAILABLE_SECONDS
                else:
                    await asyncio.sleep(_RECONNECT_SECONDS)
                group = await self._recover(group, deadline)
            except Exception as error:
                if len(group) == 1:
                    _fail(group[0], error)
                    return
                # One commit is at fault; the others must not suffer for it.
                for waiting in group:
                    await self.write([waiting])
                return
            else:
                await self._settle(group, rows)
                return

    async def _settle(
        self, group: Sequence[_Waiting], rows: dict[str, Committed], *, found: bool = False
    ) -> None:
        """Answer those who wait. Where a commit was `found` afterwards, the log may have gone on since."""
        topics: dict[str, None] = {}
        landed: dict[str, Landed] = {}
        for waiting in group:
            committed = rows.get(waiting.commit.session_id)
            if committed is None:
                _fail(waiting, CommitRefused(waiting.commit.session_id))
                continue
            if not waiting.done.done():
                waiting.done.set_result(committed)
            if waiting.commit.events:
                self._written.add(waiting.commit.session_id)
            if waiting.commit.events or waiting.commit.inputs:
                topic = session_topic(waiting.commit.session_id)
                topics[topic] = None
                if not found and self._bus.takes_commits(topic):
                    landed[topic] = _landed(waiting, committed)
            if waiting.commit.wake is not None and waiting.commit.wake.kind != "done":
                topics[WAKES_TOPIC] = None
        if topics:
            await self._bus.publish(*topics, landed=landed)

    async def _connect(self) -> Connection:
        connection = await self._database.dedicated()
        # The statement never changes and its arrays tell the planner nothing: plan it once.
        await connection.execute("set plan_cache_mode = force_generic_plan")
        cursor = await connection.execute(
            "select pid, backend_start from pg_stat_activity where pid = pg_backend_pid()"
        )
        self._backend = await cursor.fetchone()
        return connection

    async def _execute(self, group: Sequence[_Waiting]) -> dict[str, Committed]:
        assert self._connection is not None
        cursor = await self._connection.execute(*statement(group), binary=True)
        return {
            row["session_id"]: Committed(row["base"], row["input_base"], row["at"])
            for row in await cursor.fetchall()
        }

    async def _recover(self, group: Sequence[_Waiting], deadline: float) -> Sequence[_Waiting]:
        """Reconnect, settle the commits of the group that were written, and return the others.

        If the database stays away past `deadline` (the loop's time) all fail and none is returned.
        """
        loop = asyncio.get_running_loop()
        while True:
            lost = self._backend
            try:
                if self._connection is not None:
                    await self._connection.close()
                if loop.time() >= deadline:
                    raise psycopg.OperationalError("the commit failed again and again")
                self._connection = await self._connect()
                await _end(self._connection, lost)
                landed = {
                    waiting.commit.session_id: found
                    for waiting in group
                    if (found := await _find(self._connection, waiting.commit)) is not None
                }
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if loop.time() >= deadline:
                    for waiting in group:
                        _fail(waiting, LogUnavailable(f"the database did not come back: {error}"))
                    return []
                self._backend = lost
                await asyncio.sleep(_RECONNECT_SECONDS)
                continue
            written = [waiting for waiting in group if waiting.commit.session_id in landed]
            await self._settle(written, landed, found=True)
            return [waiting for waiting in group if waiting.commit.session_id not in landed]


async def _end(connection: Connection, lost: DictRow | None) -> None:
    """See that the server's process behind a lost connection is gone: it may still be writing.

    Raises:
        psycopg.OperationalError: it does not end.
    """
    if lost is None:
        return
    cursor = await connection.execute(
        "select pg_terminate_backend(pid, 5000) as ended from pg_stat_activity"
        " where pid = %(pid)s and backend_start = %(backend_start)s",
        lost,
    )
    row = await cursor.fetchone()
    if row is not None and not row["ended"]:
        raise psycopg.OperationalError("the server still works on the lost connection")


async def _find(connection: Connection, commit: Commit) -> Committed | None:
    """Whether a commit of unknown outcome was written, told by the id of its first event or input."""
    first = commit.events[0].id if commit.events else commit.inputs[0].id if commit.inputs else None
    if first is None:
        return None
    cursor = await connection.execute(
        _FIND, {"session": commit.session_id, "id": first, "after": commit.fence.seq or 0}
    )
    row = await cursor.fetchone()
    return None if row is None else Committed(row["base"], row["input_base"], row["at"])


def _landed(waiting: _Waiting, committed: Committed) -> Landed:
    """A commit for those who follow its session in this process."""
    commit = waiting.commit
    events = tuple(
        LandedEvent(event.id, event.type, event.thread_id, body, event.crossposted)
        for event, (body, _) in zip(commit.events, waiting.texts, strict=True)
    )
    inputs = tuple(LandedEvent(new.id, new.type, new.thread_id, new.body_text()) for new in commit.inputs)
    return Landed(committed.base, committed.input_base, committed.at, events, inputs)


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)
        waiting.done.exception()  # seen: its caller may have been cancelled, and nobody asks for it then
