"""Runs of deployments: by hand, and when their time has come (contract section 19.3).

A run's record, its session and the schedule's next time are written in one transaction. So a server that dies
in between leaves nothing behind but a time that is still due, and however many servers see that it is due,
the row of the deployment lets one through. Only the database's clock decides what is due.
"""

import asyncio
from datetime import datetime
from typing import Any, Final, LiteralString

import msgspec
import psycopg
import structlog
from psycopg.rows import DictRow

from corral.resources import deployment_rows as deployments
from corral.resources import listing
from corral.resources.schedules import Due
from corral.resources.session_creation import SessionCreation
from corral.session.records import Attach
from corral.store.database import Connection, Database
from corral.wire.deployments import (
    DeploymentRun,
    ErrorPause,
    ManualTrigger,
    PauseError,
    Reference,
    RunError,
    ScheduleTrigger,
    TriggerType,
)
from corral.wire.errors import ApiError, InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page, check_within
from corral.wire.query import TimeRange
from corral.wire.run_errors import pauses, run_error
from corral.wire.times import to_wire

LIST: Final = "deployment_runs"
_AT_ONCE: Final = 4
"""How many runs one server starts at the same time; each holds a connection."""
_BATCH: Final = 1000

_COLUMNS: Final[LiteralString] = (
    "r.id, r.deployment_id, r.agent_id, r.agent_version, r.scheduled_at, r.session_id, r.error_type,"
    " r.error_message, r.created_at"
)
_INSERT: Final[LiteralString] = (
    "insert into deployment_runs as r (id, deployment_id, agent_id, agent_version, scheduled_at, session_id,"
    " error_type, error_message) values (%(id)s, %(deployment_id)s, %(agent_id)s, %(agent_version)s,"
    " %(scheduled_at)s, %(session_id)s, %(error_type)s, %(error_message)s) returning " + _COLUMNS
)
# Holds only as long as nobody has changed, paused or archived the deployment, or started this very run.
_STILL_DUE: Final[LiteralString] = (
    " where d.id = %(id)s and d.next_run_at = %(planned)s and d.updated_at = %(read)s returning d.id"
)

# The database is away, or another server was quicker: nothing that the deployment could be blamed for.
_LATER: Final = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.UniqueViolation)

_log = structlog.get_logger(__name__)


class _Withdrawn(Exception):
    """The deployment is no longer as it was when the run was begun; the run does not take place."""


class DeploymentRuns:
    """The runs in a database."""

    def __init__(self, database: Database, creation: SessionCreation) -> None:
        self._database = database
        self._creation = creation

    async def retrieve(self, run_id: str) -> DeploymentRun:
        """A run; raises `NotFound`."""
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from deployment_runs r where r.id = %s", (run_id,)
        )
        if row is None:
            raise NotFound(f"Deployment run {run_id} not found.")
        return _shown(row)

    async def list(
        self,
        page: Page,
        times: TimeRange,
        *,
        deployment_id: str | None = None,
        has_error: bool | None = None,
        trigger: TriggerType | None = None,
    ) -> Listing:
        """Runs, newest first; of a deployment that does not exist there are none.

        Raises:
            InvalidRequest: ``times`` excludes the position of the cursor.
        """
        check_within(page.after, times)
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + _COLUMNS + " from deployment_runs r"
            " where (%(moment)s::timestamptz is null or (r.created_at, r.id) < (%(moment)s, %(last)s))"
            " and (%(deployment_id)s::text is null or r.deployment_id = %(deployment_id)s)"
            " and (%(failed)s::boolean is null or (r.error_type is not null) = %(failed)s)"
            " and (%(scheduled)s::boolean is null or (r.scheduled_at is not null) = %(scheduled)s)"
            " and (%(gt)s::timestamptz is null or r.created_at > %(gt)s)"
            " and (%(gte)s::timestamptz is null or r.created_at >= %(gte)s)"
            " and (%(lt)s::timestamptz is null or r.created_at < %(lt)s)"
            " and (%(lte)s::timestamptz is null or r.created_at <= %(lte)s)"
            " order by r.created_at desc, r.id desc limit %(limit)s",
            {
                "moment": moment,
                "last": last,
                "deployment_id": deployment_id,
                "failed": has_error,
                "scheduled": None if trigger is None else trigger == "schedule",
                **msgspec.structs.asdict(times),
                "limit": page.limit + 1,
            },
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def start(self, deployment_id: str) -> DeploymentRun:
        """Run a deployment now, paused or not; that no session could be made is recorded in the run.

        Raises:
            NotFound: there is no such deployment.
            InvalidRequest: it is archived.
        """
        row = await deployments.fetch(self._database, deployment_id)
        if row["archived_at"] is not None:
            raise _archived()
        made: list[DictRow] = []

        async def record(connection: Connection, session_id: str) -> None:
            cursor = await connection.execute(
                "select 1 from deployments where id = %s and archived_at is null for share", (deployment_id,)
            )
            if await cursor.fetchone() is None:
                raise _Withdrawn
            made.append(await _insert(connection, row, session_id=session_id))

        try:
            await self._make_session(row, record)
        except _Withdrawn:
            raise _archived() from None
        except ApiError as error:
            if error.status >= 500:
                raise
            async with self._database.connection() as connection:
                made.append(await _insert(connection, row, error=_recorded(error, row)))
        return _shown(made[0])

    async def start_due(self) -> None:
        """Start every run whose time has come, each once, whoever else is about it at the same moment.

        What fails for want of the database stays due, and is left for the next call.
        """
        due = await self._database.fetch(
            "select d.id from deployments d where d.next_run_at <= clock_timestamp()"
            " and d.next_run_at + d.jitter <= clock_timestamp() order by d.next_run_at limit %s",
            (_BATCH,),
        )
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(deployment_id: str) -> None:
            async with room:
                await self._start_guarded(deployment_id)

        async with asyncio.TaskGroup() as tasks:
            for row in due:
                tasks.create_task(one(row["id"]))

    async def _start_guarded(self, deployment_id: str) -> None:
        try:
            await self._start_scheduled(deployment_id)
        except _Withdrawn:
            _log.debug("a scheduled run was somebody else's", deployment_id=deployment_id)
        except (*_LATER, ApiError) as error:
            _log.warning("a scheduled run stays due", deployment_id=deployment_id, error=str(error))

    async def _start_scheduled(self, deployment_id: str) -> None:
        row = await self._due_row(deployment_id)
        if row is None:
            return
        if row["agent_gone"]:
            # A run would fail each time, and the agent never comes back (contract section 19.3).
            await self._settle(row, Due(None, None), archive=True)
            return
        cron = deployments.cron_of(row)
        due = Due(None, None) if cron is None else cron.due(row["next_run_at"], row["read_at"])
        if due.start is None or await self._ran(deployment_id, due.start):
            await self._settle(row, due)
            _log.warning(
                "a scheduled time was missed", deployment_id=deployment_id, planned=str(row["next_run_at"])
            )
            return
        try:
            await self._make_session(row, _claim(row, due))
        except (_Withdrawn, *_LATER):
            raise
        except ApiError as error:
            if error.status >= 500:
                raise
            await self._fail(row, due, _recorded(error, row))
        except Exception:
            _log.exception("a scheduled run failed", deployment_id=deployment_id)
            message = "the server failed to make a session; its log says why"
            await self._fail(row, due, RunError(type="unknown_error", message=message))

    async def _make_session(self, row: DictRow, attach: Attach) -> None:
        definition = deployments.definition_of(row)
        session = definition.session
        session.check()
        await self._creation.create(
            session, initial_events=definition.initial_events, deployment_id=row["id"], attach=attach
        )

    async def _due_row(self, deployment_id: str) -> DictRow | None:
        return await self._database.fetch_one(
            "select " + deployments.COLUMNS + ", (a.id is null or a.archived_at is not null) as agent_gone"
            " from deployments d left join agents a on a.id = d.agent_id"
            " where d.id = %s and d.next_run_at <= clock_timestamp()",
            (deployment_id,),
        )

    async def _ran(self, deployment_id: str, moment: datetime) -> bool:
        row = await self._database.fetch_one(
            "select 1 from deployment_runs where deployment_id = %s and scheduled_at = %s",
            (deployment_id, moment),
        )
        return row is not None

    async def _fail(self, row: DictRow, due: Due, error: RunError) -> None:
        async with self._database.transaction() as connection:
            await _advance(connection, row, due, error)
            await _insert(connection, row, scheduled_at=due.start, error=error)
        _log.info("a scheduled run failed", deployment_id=row["id"], error_type=error.type)

    async def _settle(self, row: DictRow, due: Due, *, archive: bool = False) -> None:
        """Go on without a run."""
        await self._database.execute(
            "update deployments d set next_run_at = %(following)s,"
            " archived_at = case when %(archive)s then now() end,"
            " updated_at = case when %(archive)s then now() else d.updated_at end" + _STILL_DUE,
            {**_as_read(row), "following": due.following, "archive": archive},
        )


def _claim(row: DictRow, due: Due) -> Attach:
    """Takes the run for the session that is being made, unless somebody else has it."""

    async def claim(connection: Connection, session_id: str) -> None:
        await _advance(connection, row, due)
        await _insert(connection, row, scheduled_at=due.start, session_id=session_id)

    return claim


async def _advance(connection: Connection, row: DictRow, due: Due, error: RunError | None = None) -> None:
    """Turn the schedule to its next time, or stop it if `error` is one of those that stop it."""
    reason = None
    if error is not None and pauses(error.type):
        reason = ErrorPause(error=PauseError(type=error.type))
    cursor = await connection.execute(
        "update deployments d set last_run_at = clock_timestamp(), next_run_at = %(following)s,"
        " paused_reason = %(reason)s::json,"
        " updated_at = case when %(stops)s then clock_timestamp() else d.updated_at end" + _STILL_DUE,
        {
            **_as_read(row),
            "following": due.following if reason is None else None,
            "stops": reason is not None,
            "reason": None if reason is None else deployments.encoded(reason),
        },
    )
    if await cursor.fetchone() is None:
        raise _Withdrawn


def _as_read(row: DictRow) -> dict[str, Any]:
    return {"id": row["id"], "planned": row["next_run_at"], "read": row["updated_at"]}


async def _insert(
    connection: Connection,
    row: DictRow,
    *,
    scheduled_at: datetime | None = None,
    session_id: str | None = None,
    error: RunError | None = None,
) -> DictRow:
    cursor = await connection.execute(
        _INSERT,
        {
            "id": new_id("drun"),
            "deployment_id": row["id"],
            "agent_id": row["agent_id"],
            "agent_version": row["agent_version"],
            "scheduled_at": scheduled_at,
            "session_id": session_id,
            "error_type": None if error is None else error.type,
            "error_message": None if error is None else error.message,
        },
    )
    made = await cursor.fetchone()
    assert made is not None
    return made


def _recorded(error: ApiError, row: DictRow) -> RunError:
    return RunError(type=run_error(error, row["environment_id"]), message=error.message)


def _archived() -> InvalidRequest:
    return InvalidRequest("Cannot run archived deployment")


def _shown(row: DictRow) -> DeploymentRun:
    error = None
    if row["error_type"] is not None:
        error = RunError(type=row["error_type"], message=row["error_message"])
    scheduled = row["scheduled_at"]
    return DeploymentRun(
        id=row["id"],
        deployment_id=row["deployment_id"],
        agent=Reference(id=row["agent_id"], version=row["agent_version"]),
        trigger_context=ManualTrigger()
        if scheduled is None
        else ScheduleTrigger(scheduled_at=to_wire(scheduled)),
        session_id=row["session_id"],
        error=error,
        created_at=to_wire(row["created_at"]),
    )
