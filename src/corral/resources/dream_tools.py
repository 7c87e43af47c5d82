"""Carries out the tool calls of a dream's agent: on the output store, and on the transcripts of the inputs.

A call and its answer are one transaction under the dream's row. So however often a call is tried, by however
many servers, it is carried out once; and once a dream has ended, nothing of it is carried out any more.

A memory is replaced, moved or deleted only as the agent has last seen it (`dream_seen`): a change that
somebody else makes meanwhile is never lost, the agent is told of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from psycopg.rows import DictRow

from corral.resources import dream_transcripts, memories
from corral.session.events import Event
from corral.store.database import Connection, Database
from corral.wire.decode import describe
from corral.wire.errors import ApiError, InvalidRequest, MemoryPreconditionFailed, NotFound
from corral.wire.memories import (
    CreateMemory,
    Precondition,
    SessionActor,
    UpdateMemory,
    after_folder,
    check_path,
    check_prefix,
)
from corral.wire.text import clean, is_clean
from corral.wire.times import to_wire

LISTED: Final = 500
"""Memories in one part of a list."""
_CHANGED: Final = (
    "{path} was changed by somebody else since you last saw it. Read it again, then decide what should "
    "become of it."
)
_ENOUGH: Final = (
    "You have been given as much to read as fits. Write down what you have found and not written yet, then "
    "end."
)
_UNREAD: Final = "There is a memory at {path} which you have not read yet. Read it first, then decide."


class Answer(msgspec.Struct, frozen=True):
    """What the agent reads as the result of a call."""

    content: str
    is_error: bool


class _Nothing(msgspec.Struct):
    pass


class _List(msgspec.Struct):
    folder: str = "/"
    after: str = ""


class _Path(msgspec.Struct):
    path: str


class _Write(msgspec.Struct):
    path: str
    content: str


class _Move(msgspec.Struct):
    path: str
    new_path: str


class _ReadSession(msgspec.Struct):
    session_id: str
    after: int = 0
    event: int | None = None


@dataclass(frozen=True, slots=True)
class _Dream:
    """What a call may reach: the dream's row, locked, on its connection."""

    connection: Connection
    row: DictRow
    reading: int
    left: int
    """How many characters the agent may be given to read: in all, and still."""

    @property
    def id(self) -> str:
        return self.row["id"]

    @property
    def store_id(self) -> str:
        return self.row["output_store_id"]

    @property
    def spare(self) -> int:
        return self.reading // 4

    @property
    def actor(self) -> SessionActor:
        return SessionActor(self.row["session_id"])


async def carry_out(database: Database, dream_id: str, call: Event, *, reading: int) -> Answer | None:
    """The answer to a call, which is carried out unless it was already; None if the dream is not running.

    `reading` is how many characters the agent of one dream may be given in all: they have to fit its model's
    context. Memories can be read for a quarter more, so that what was found can still be written down.
    """
    async with database.transaction() as connection:
        cursor = await connection.execute(
            "select id, status, output_store_id, session_id, session_ids from dreams"
            " where id = %s for update",
            (dream_id,),
        )
        row = await cursor.fetchone()
        if row is None or row["status"] != "running":
            return None
        cursor = await connection.execute(
            "select content, is_error from dream_calls where dream_id = %s and call_id = %s",
            (dream_id, call.id),
        )
        if (known := await cursor.fetchone()) is not None:
            return Answer(known["content"], known["is_error"])
        dream = _Dream(connection, row, reading, reading - await _given(connection, dream_id))
        answer = await _attempt(dream, call.body["name"], call.body["input"])
        await connection.execute(
            "insert into dream_calls (dream_id, call_id, content, is_error) values (%s, %s, %s, %s)",
            (dream_id, call.id, answer.content, answer.is_error),
        )
        return answer


async def _given(connection: Connection, dream_id: str) -> int:
    cursor = await connection.execute(
        "select coalesce(sum(length(content)), 0)::bigint as given from dream_calls where dream_id = %s",
        (dream_id,),
    )
    row = await cursor.fetchone()
    assert row is not None
    return row["given"]


async def _attempt(dream: _Dream, name: str, given: Mapping[str, Any]) -> Answer:
    try:
        # What a call has done before it fails is undone, but not that it was made.
        async with dream.connection.transaction():
            return Answer(clean(await _perform(dream, name, given)), False)
    except msgspec.ValidationError as error:
        return Answer(clean(describe(str(error))), True)
    except ApiError as error:
        return Answer(clean(error.message), True)


async def _perform(dream: _Dream, name: str, given: Mapping[str, Any]) -> str:
    take, act = _TOOLS[name]
    params = msgspec.convert(given, take)
    for field in params.__struct_fields__:
        value = getattr(params, field)
        if isinstance(value, str) and not is_clean(value):
            raise InvalidRequest(f"{field}: holds a NUL character or an unpaired surrogate")
    return await act(dream, params)


async def _list(dream: _Dream, params: _List) -> str:
    check_prefix(params.folder)
    _check_left(dream, spare=True)
    cursor = await dream.connection.execute(
        "select path, content_size_bytes, updated_at from memories where store_id = %s and path >= %s"
        " and path < %s and path > %s order by path limit %s",
        (dream.store_id, params.folder, after_folder(params.folder), params.after, LISTED + 1),
    )
    rows = await cursor.fetchall()
    lines = [
        f"{row['path']}, {row['content_size_bytes']} bytes, {to_wire(row['updated_at'])}"
        for row in rows[:LISTED]
    ]
    if len(rows) > LISTED:
        lines.append(f"(there are more: go on with after={rows[LISTED - 1]['path']})")
    return "\n".join(lines) or f"(there are no memories below {params.folder})"


async def _read(dream: _Dream, params: _Path) -> str:
    _check_left(dream, spare=True)
    row = await _existing(dream, params.path)
    await _see(dream, params.path, row["content_sha256"])
    return row["content"] or "(the memory is empty)"


async def _write(dream: _Dream, params: _Write) -> str:
    check_path(params.path)
    row = await _memory(dream, params.path)
    if row is None:
        create = CreateMemory(path=params.path, content=params.content)
        create.check()
        made = await memories.create_in(dream.connection, dream.store_id, create, dream.actor)
        await _see(dream, params.path, made.content_sha256)
        return f"Created {params.path}."
    update = UpdateMemory(content=params.content, precondition=await _as_seen(dream, params.path))
    update.check()
    changed = await _guarded(
        memories.update_in(dream.connection, dream.store_id, row["id"], update, dream.actor), params.path
    )
    await _see(dream, params.path, changed.content_sha256)
    return f"Replaced {params.path}."


async def _move(dream: _Dream, params: _Move) -> str:
    check_path(params.new_path, "new_path")
    row = await _existing(dream, params.path)
    seen = await _as_seen(dream, params.path)
    update = UpdateMemory(path=params.new_path, precondition=seen)
    await _guarded(
        memories.update_in(dream.connection, dream.store_id, row["id"], update, dream.actor), params.path
    )
    await _forget(dream, params.path)
    await _see(dream, params.new_path, seen.content_sha256)
    return f"Moved {params.path} to {params.new_path}."


async def _delete(dream: _Dream, params: _Path) -> str:
    row = await _existing(dream, params.path)
    seen = await _as_seen(dream, params.path)
    await _guarded(
        memories.delete_in(
            dream.connection, dream.store_id, row["id"], dream.actor, expected_sha256=seen.content_sha256
        ),
        params.path,
    )
    await _forget(dream, params.path)
    return f"Deleted {params.path}."


async def _list_sessions(dream: _Dream, params: _Nothing) -> str:
    return await dream_transcripts.list_sessions(dream.connection, dream.row["session_ids"])


async def _read_session(dream: _Dream, params: _ReadSession) -> str:
    if params.session_id not in dream.row["session_ids"]:
        raise NotFound(f"session_id: {params.session_id} is none of the sessions that session_list names")
    number = params.after if params.event is None else params.event
    if not 0 <= number < 2**62:
        raise InvalidRequest("the number of an entry must be 0 or more")
    _check_left(dream)
    if params.event is None:
        return await dream_transcripts.read_part(dream.connection, params.session_id, params.after)
    entry = await dream_transcripts.read_entry(dream.connection, params.session_id, params.event)
    if entry is None:
        raise NotFound(f"event: the transcript has no entry with the number {params.event}")
    return entry


_TOOLS: Final[Mapping[str, tuple[type[Any], Callable[[_Dream, Any], Awaitable[str]]]]] = {
    "memory_list": (_List, _list),
    "memory_read": (_Path, _read),
    "memory_write": (_Write, _write),
    "memory_move": (_Move, _move),
    "memory_delete": (_Path, _delete),
    "session_list": (_Nothing, _list_sessions),
    "session_read": (_ReadSession, _read_session),
}


def _check_left(dream: _Dream, *, spare: bool = False) -> None:
    if dream.left + (dream.spare if spare else 0) <= 0:
        raise InvalidRequest(_ENOUGH)


async def _memory(dream: _Dream, path: str) -> DictRow | None:
    cursor = await dream.connection.execute(
        "select m.id, m.content_sha256, v.content from memories m"
        " join memory_versions v on v.id = m.version_id where m.store_id = %s and m.path = %s",
        (dream.store_id, path),
    )
    return await cursor.fetchone()


async def _existing(dream: _Dream, path: str) -> DictRow:
    row = await _memory(dream, path)
    if row is None:
        raise NotFound(f"There is no memory at {path}; memory_list tells what there is.")
    return row


async def _as_seen(dream: _Dream, path: str) -> Precondition:
    """What the memory must hold for a change of it to be made: what the agent has last seen there."""
    cursor = await dream.connection.execute(
        "select content_sha256 from dream_seen where dream_id = %s and path = %s", (dream.id, path)
    )
    row = await cursor.fetchone()
    if row is None:
        raise InvalidRequest(_UNREAD.format(path=path))
    return Precondition(content_sha256=row["content_sha256"])


async def _see(dream: _Dream, path: str, sha256: str) -> None:
    await dream.connection.execute(
        "insert into dream_seen (dream_id, path, content_sha256) values (%s, %s, %s)"
        " on conflict (dream_id, path) do update set content_sha256 = excluded.content_sha256",
        (dream.id, path, sha256),
    )


async def _forget(dream: _Dream, path: str) -> None:
    await dream.connection.execute(
        "delete from dream_seen where dream_id = %s and path = %s", (dream.id, path)
    )


async def _guarded(change: Awaitable[Any], path: str) -> Any:
    try:
        return await change
    except MemoryPreconditionFailed:
        raise InvalidRequest(_CHANGED.format(path=path)) from None
