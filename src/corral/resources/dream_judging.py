"""What a running dream's session waits for, or how the dream has ended, read from rows alone."""

from typing import Final, Literal, LiteralString

import msgspec
from psycopg.rows import DictRow

from corral.session.events import Event
from corral.session.log import event_from_row
from corral.store.database import Database
from corral.wire.dreams import DreamErrorType

_STANDING: Final[LiteralString] = (
    "select s.id is null as gone, s.archived_at is not null as archived, s.status,"
    " clock_timestamp() > d.started_at + %(timeout)s * interval '1 second' as late,"
    " exists (select 1 from inputs i where i.session_id = s.id) as waiting,"
    " exists (select 1 from memory_stores m where m.id = d.input_store_id and m.archived_at is null)"
    " as input,"
    " exists (select 1 from memory_stores m where m.id = d.output_store_id and m.archived_at is null)"
    " as output,"
    " (select count(*) from sessions x where x.id = any(d.session_ids)) = cardinality(d.session_ids)"
    " as sessions from dreams d left join sessions s on s.id = d.session_id where d.id = %(dream)s"
)
_OPEN_CALLS: Final[LiteralString] = (
    "select seq, id, type, thread_id, body::text as body, private::text as private, processed_at"
    " from events e where session_id = %s and type = 'agent.custom_tool_use' and not exists"
    " (select 1 from events r where r.session_id = e.session_id and r.resolves = e.id) order by seq"
)
_LAST_WORDS: Final[LiteralString] = (
    "select"
    " (select body::text from events where session_id = %(session)s and type = 'session.status_idle'"
    " order by seq desc limit 1) as idle,"
    " (select body::text from events where session_id = %(session)s and type = 'session.error'"
    " order by seq desc limit 1) as error,"
    " exists (select 1 from events where session_id = %(session)s and type = 'user.interrupt') as interrupted"
)


class Ended(msgspec.Struct, frozen=True):
    """How a dream has ended; with an error if it failed."""

    status: Literal["completed", "failed"]
    error: DreamErrorType = "internal_error"
    message: str = ""

    @classmethod
    def inside(cls, message: str) -> "Ended":
        """A failure for which there is no type of its own."""
        return cls("failed", "internal_error", message)


async def judge(database: Database, row: DictRow, timeout: float) -> Ended | list[Event] | None:
    """The end of a running dream, the calls that wait for an answer, or None while its session is at work."""
    standing = await database.fetch_one(_STANDING, {"dream": row["id"], "timeout": timeout})
    if standing is None:
        return None
    if failure := _failure(standing, row, timeout):
        return failure
    if standing["status"] != "idle":
        return None
    session_id: str = row["session_id"]
    if calls := await database.fetch(_OPEN_CALLS, (session_id,)):
        return [event_from_row(call) for call in calls]
    return None if standing["waiting"] else await _ending(database, session_id)


def _failure(standing: DictRow, row: DictRow, timeout: float) -> Ended | None:
    if not standing["input"]:
        return unavailable_store(row)
    if not standing["sessions"]:
        return Ended("failed", "input_session_unavailable", "one of the input sessions was deleted")
    if standing["gone"] or standing["archived"]:
        what = "deleted" if standing["gone"] else "archived"
        return Ended.inside(f"the dream's own session was {what} while it was running")
    if not standing["output"]:
        return Ended.inside(f"the output memory store {row['output_store_id']} was archived or deleted")
    if standing["late"]:
        message = f"the dream did not come to an end within {timeout:g} seconds; give it fewer sessions"
        return Ended("failed", "timeout", message)
    return None


async def _ending(database: Database, session_id: str) -> Ended | None:
    last = await database.fetch_one(_LAST_WORDS, {"session": session_id})
    if last is None or last["idle"] is None:
        return None
    if last["interrupted"]:
        return Ended.inside("the dream's session was interrupted; cancel the dream instead to end it")
    match msgspec.json.decode(last["idle"])["stop_reason"]["type"]:
        case "end_turn":
            return Ended("completed")
        case "requires_action":
            return None  # answered just now; the session goes on
        case "refusal":
            return Ended.inside("the model refused to go on; its session tells more")
        case other:
            error = None if last["error"] is None else msgspec.json.decode(last["error"])["error"]["message"]
            return Ended.inside(f"the dream's session stopped: {error or other}")


def unavailable_store(row: DictRow) -> Ended:
    """The failure of a dream whose input store cannot be read any more."""
    message = f"the input memory store {row['input_store_id']} was archived or deleted"
    return Ended("failed", "input_memory_store_unavailable", message)
