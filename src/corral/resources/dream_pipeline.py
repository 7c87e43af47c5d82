"""What becomes of dreams while they run (contract section 21): a session of an agent whose tools we answer.

Everything about a dream is in rows: its own, and its session's. `advance` looks at each dream that has not
stopped, does what there is to do next, and can be cut off anywhere: whoever looks next finds the same to do.
So any server carries on after any other.

- pending: its session, and the copy of the store where there is to be one, come into being together with the
  change to running, or none of them.
- running: the calls that the session waits for are carried out (`dream_tools`) and answered. When its turn
  is over the dream has completed, and both end in one transaction.
- ended, but not stopped: the session still works, since the dream was canceled or failed under it. It is
  interrupted, and archived once it is idle.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import psycopg
import structlog
from psycopg.rows import DictRow

from corral.bus.hub import Bus, session_topic
from corral.resources.dream_judging import Ended, judge
from corral.resources.dream_start import DreamLimits, DreamStart
from corral.resources.dream_tools import carry_out
from corral.resources.dreams import COLUMNS, usage_of
from corral.session.events import Event
from corral.session.records import Attach
from corral.session.sending import SendAuthority
from corral.session.service import Sessions
from corral.store.database import Connection, Database
from corral.wire.content import ResultTextBlock
from corral.wire.dreams import DreamUsage
from corral.wire.errors import InvalidRequest, NotFound, Overloaded
from corral.wire.events import ClientEvent, UserCustomToolResult, UserInterrupt

_AT_ONCE: Final = 4
"""How many dreams one server works on at the same moment; a step takes next to no time."""
_HELD_SECONDS: Final = 10
"""How long others leave a dream alone that a server works on; only to save work, not to be safe."""
_FOLLOWED_SECONDS: Final = 2.0
"""How long a dream is followed for what comes next, before it is left to the next look at all of them."""
_BATCH: Final = 100

# The database is away, or too much happens in the session: nothing that the dream could be blamed for.
_LATER: Final = (psycopg.OperationalError, psycopg.InterfaceError, Overloaded)

_log = structlog.get_logger(__name__)


class _Moved(Exception):
    """The dream is no longer as it was when this was decided; look again."""


class DreamPipeline:
    """Carries the dreams of a database on; see the module."""

    def __init__(self, database: Database, sessions: Sessions, bus: Bus, limits: DreamLimits) -> None:
        self._database = database
        self._sessions = sessions
        self._bus = bus
        self._limits = limits
        self._start = DreamStart(database, sessions, limits)

    async def advance(self) -> None:
        """Do what there is to do for every dream that has not stopped, and that nobody else works on."""
        rows = await self._database.fetch(
            "select id from dreams where stopped_at is null"
            " and (worked_until is null or worked_until < clock_timestamp()) order by created_at limit %s",
            (_BATCH,),
        )
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(dream_id: str) -> None:
            async with room:
                await self._work_on(dream_id)

        async with asyncio.TaskGroup() as tasks:
            for row in rows:
                tasks.create_task(one(row["id"]))

    async def _work_on(self, dream_id: str) -> None:
        taken = await self._database.execute(
            "update dreams set worked_until = clock_timestamp() + %s * interval '1 second'"
            " where id = %s and stopped_at is null"
            " and (worked_until is null or worked_until < clock_timestamp())",
            (_HELD_SECONDS, dream_id),
        )
        if not taken:
            return
        try:
            await self._follow(dream_id)
        except _LATER as error:
            _log.warning("a dream could not be carried on; trying again", dream_id=dream_id, error=str(error))
        except Exception:
            _log.exception("a dream failed inside", dream_id=dream_id)
            await self._fail(
                await self._row(dream_id), Ended.inside("the server failed inside; its log says why")
            )
        finally:
            await self._let_go(dream_id)

    async def _let_go(self, dream_id: str) -> None:
        try:
            await self._database.execute("update dreams set worked_until = null where id = %s", (dream_id,))
        except psycopg.Error as error:
            _log.debug("a dream stays held for a while", dream_id=dream_id, error=str(error))

    async def _follow(self, dream_id: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _FOLLOWED_SECONDS
        row = await self._row(dream_id)
        if row["status"] == "pending":
            match await self._start.start(row):
                case False:
                    return
                case Ended() as refused:
                    await self._fail(row, refused)
                    return
                case _:
                    row = await self._row(dream_id)
        async with self._bus.subscribe(session_topic(row["session_id"])) as news:
            while not await self.step(dream_id) and (left := until - loop.time()) > 0:
                await news.wait(left)
                news.take()

    async def step(self, dream_id: str) -> bool:
        """Do the next thing for a dream that was started; True once it has stopped."""
        row = await self._row(dream_id)
        if row["stopped_at"] is not None:
            return True
        await self._count(row)
        if row["status"] != "running":
            return await self._wind_down(row)
        match await judge(self._database, row, self._limits.timeout):
            case None:
                return False
            case Ended(status="completed"):
                return await self._complete(row)
            case Ended() as failure:
                await self._fail(row, failure)
                return await self._wind_down(row)
            case calls:
                await self._answer(row, calls)
                return False

    async def _answer(self, row: DictRow, calls: Sequence[Event]) -> None:
        results: list[ClientEvent] = []
        for call in calls:
            answer = await carry_out(self._database, row["id"], call, reading=self._limits.reading)
            if answer is None:
                return
            text = ResultTextBlock(text=answer.content)
            results.append(
                UserCustomToolResult(custom_tool_use_id=call.id, content=[text], is_error=answer.is_error)
            )
        await self._send(row, results)

    async def _send(self, row: DictRow, events: Sequence[ClientEvent]) -> None:
        try:
            await self._sessions.sending.send(row["session_id"], events, SendAuthority())
        except (InvalidRequest, NotFound) as error:
            # Answered by somebody else meanwhile, archived or deleted: the next look tells which.
            _log.info("a dream's session took no event", dream_id=row["id"], error=error.message)

    async def _complete(self, row: DictRow) -> bool:
        """End dream and session in one transaction; False if either has moved on."""

        async def attach(connection: Connection, session_id: str) -> None:
            cursor = await connection.execute(
                "update dreams set status = 'completed', ended_at = clock_timestamp()"
                " where id = %s and status = 'running' returning id",
                (row["id"],),
            )
            if await cursor.fetchone() is None:
                raise _Moved
            await _stop(connection, row["id"])

        return await self._archive_session(row, attach)

    async def _fail(self, row: DictRow, failure: Ended) -> None:
        """End a dream by an error, unless it has ended. One that never ran has stopped by that, too."""
        message = failure.message[:1].upper() + failure.message[1:] + "."
        if row["session_id"] is not None:
            message += (
                f" Memory store {row['output_store_id']} keeps what the dream wrote until then; its versions"
                f" of session {row['session_id']} are the changes."
            )
        await self._database.execute(
            "update dreams set status = 'failed', error_type = %s, error_message = %s,"
            " ended_at = clock_timestamp(),"
            " stopped_at = case when session_id is null then clock_timestamp() end"
            " where id = %s and status in ('pending', 'running')",
            (failure.error, message, row["id"]),
        )
        _log.warning("a dream failed", dream_id=row["id"], error_type=failure.error)

    async def _wind_down(self, row: DictRow) -> bool:
        """Bring the session of an ended dream to its rest; True once it is there."""
        session = await self._database.fetch_one(
            "select status, archived_at, exists (select 1 from inputs i where i.session_id = s.id"
            " and i.type = 'user.interrupt') as interrupted from sessions s where id = %s",
            (row["session_id"],),
        )
        if session is None or session["archived_at"] is not None:
            async with self._database.transaction() as connection:
                await _stop(connection, row["id"])
            return True
        if session["status"] == "idle":
            return await self._archive_session(row, lambda connection, _: _stop(connection, row["id"]))
        if not session["interrupted"]:
            await self._send(row, [UserInterrupt()])
        return False

    async def _archive_session(self, row: DictRow, attach: Attach) -> bool:
        try:
            await self._sessions.archive(row["session_id"], attach)
        except (InvalidRequest, NotFound, _Moved):
            return False  # it works again, or is gone, or the dream was canceled: look again
        return True

    async def _count(self, row: DictRow) -> None:
        if row["session_usage"] is None:
            return
        usage = _usage(row["session_usage"])
        if usage != msgspec.convert(row["usage"], DreamUsage):
            await self._database.execute(
                "update dreams set usage = %s::json where id = %s",
                (msgspec.json.encode(usage).decode(), row["id"]),
            )

    async def _row(self, dream_id: str) -> DictRow:
        row = await self._database.fetch_one(
            "select "
            + COLUMNS
            + ", s.usage::text as session_usage from dreams d left join sessions s on s.id = d.session_id"
            " where d.id = %s",
            (dream_id,),
        )
        assert row is not None
        return row


def _usage(text: str) -> DreamUsage:
    return usage_of(msgspec.json.decode(text))


async def _stop(connection: Connection, dream_id: str) -> None:
    """Nothing of the dream acts any more; what it needed for that can go."""
    cursor = await connection.execute(
        "select s.usage::text as usage from dreams d join sessions s on s.id = d.session_id where d.id = %s",
        (dream_id,),
    )
    session = await cursor.fetchone()
    usage = None if session is None else msgspec.json.encode(_usage(session["usage"])).decode()
    await connection.execute(
        "update dreams set stopped_at = clock_timestamp(), usage = coalesce(%s::json, usage)"
        " where id = %s and stopped_at is null",
        (usage, dream_id),
    )
    await connection.execute("delete from dream_calls where dream_id = %s", (dream_id,))
    await connection.execute("delete from dream_seen where dream_id = %s", (dream_id,))
