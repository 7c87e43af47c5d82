"""The rows of threads: list, retrieve, archive (contract section 11.2).

A session that has its primary thread alone has no such rows: that one is made of the session's.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

from corral.session.records import append, locked, thread_terminated
from corral.session.shown import Row, thread_not_found, thread_object
from corral.store.database import Database
from corral.wire.errors import InvalidRequest

_COLUMNS: Final[LiteralString] = (
    "t.id, t.parent_thread_id, t.agent::text as agent, t.status, t.usage::text as usage, t.running_since,"
    " t.created_at, t.updated_at, t.archived_at, now() as read_at,"
    # The primary thread comes first, whatever its row's age.
    " case when t.parent_thread_id is null then to_timestamp(0) else t.created_at end as place"
)


class ThreadRecords:
    """Threads as rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, session: Row, statuses: Sequence[str] | None, *, after: tuple[datetime, str] | None, limit: int
    ) -> list[tuple[tuple[datetime, str], dict[str, Any]]]:
        """Up to `limit` threads of a session as the API shows them, oldest first, each with its place."""
        rows = await self._database.fetch(
            "select * from (select " + _COLUMNS + " from threads t where t.session_id = %(session)s) as t"
            " where (%(statuses)s::text[] is null or status = any(%(statuses)s))"
            " and (%(moment)s::timestamptz is null or (place, id) > (%(moment)s, %(last)s))"
            " order by place, id limit %(limit)s",
            {
                "session": session["id"],
                "statuses": None if statuses is None else list(statuses),
                "moment": after[0] if after else None,
                "last": after[1] if after else None,
                "limit": limit,
            },
        )
        if rows or after is not None or session["threads_active"] is not None:
            return [((row["place"], row["id"]), thread_object(session, row)) for row in rows]
        if statuses is not None and session["status"] not in statuses:
            return []
        return [((session["created_at"], session["primary_thread_id"]), thread_object(session))]

    async def retrieve(self, session: Row, thread_id: str) -> dict[str, Any]:
        """A thread as the API shows it.

        Raises:
            NotFound: the session has no such thread.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from threads t where t.session_id = %s and t.id = %s",
            (session["id"], thread_id),
        )
        if row is None and thread_id != session["primary_thread_id"]:
            raise thread_not_found(thread_id)
        return thread_object(session, row)

    async def archive(self, session_id: str, thread_id: str) -> dict[str, Any]:
        """Archive a child thread: it ends for good, and what it waits for is dropped.

        Raises:
            NotFound: there is no such session, or no such thread in it.
            InvalidRequest: it is the primary one, or it is running.
        """
        async with self._database.transaction() as connection:
            session = await locked(connection, session_id)
            cursor = await connection.execute(
                "select " + _COLUMNS + " from threads t where t.session_id = %s and t.id = %s",
                (session_id, thread_id),
            )
            thread = await cursor.fetchone()
            if thread_id == session["primary_thread_id"]:
                raise InvalidRequest("The primary thread cannot be archived. Archive the session instead.")
            if thread is None:
                raise thread_not_found(thread_id)
            if thread["archived_at"] is not None:
                return thread_object(session, thread)
            if thread["status"] in ("running", "rescheduling"):
                raise InvalidRequest(
                    "Cannot archive thread while it is running. Send an interrupt event or wait for the "
                    "thread to become idle."
                )
            shown = thread_object(session, thread)
            if thread["status"] != "terminated":
                await append(connection, session, thread_terminated(thread_id, shown["agent"]["name"]))
            await connection.execute(
                "update threads set status = 'terminated', archived_at = now(), updated_at = now()"
                " where session_id = %s and id = %s",
                (session_id, thread_id),
            )
            await connection.execute(
                "delete from inputs where session_id = %s and thread_id = %s", (session_id, thread_id)
            )
            # The session may have named calls of this thread as what it waits for.
            await connection.execute(
                "insert into wakes as w (session_id) values (%s)"
                " on conflict (session_id) do update set due_at = least(w.due_at, excluded.due_at)",
                (session_id,),
            )
            return await self._retrieved(connection, session_id, thread_id)

    async def _retrieved(self, connection: Any, session_id: str, thread_id: str) -> dict[str, Any]:
        cursor = await connection.execute(
            "select " + _COLUMNS + " from threads t where t.session_id = %s and t.id = %s",
            (session_id, thread_id),
        )
        return thread_object(await locked(connection, session_id), await cursor.fetchone())
