"""Past sessions as a dream's agent reads them: entries of plain text, a bounded part at a time."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from corral.session.in_words import SPEAKERS, entry_text, shortened
from corral.store.database import Connection
from corral.wire.times import to_wire

PART: Final = 16_000
"""Characters of one part of a transcript, about."""
ENTRY: Final = 2_000
"""Characters of one entry in it; the rest is left out."""
WHOLE: Final = 60_000
"""Characters of an entry that is asked for by itself."""
_PAGE: Final = 200


async def list_sessions(connection: Connection, session_ids: Sequence[str]) -> str:
    """A line for each session; what is gone meanwhile is left out."""
    cursor = await connection.execute(
        "select id, title, created_at, last_seq, agent ->> 'name' as agent from sessions where id = any(%s)"
        " order by created_at, id",
        (list(session_ids),),
    )
    lines = [
        f"{row['id']}: {row['title'] or '(no title)'}, agent {row['agent']},"
        f" made {to_wire(row['created_at'])}, {row['last_seq']} events"
        for row in await cursor.fetchall()
    ]
    return "\n".join(lines)


async def read_part(connection: Connection, session_id: str, after: int) -> str:
    """The entries behind the event with number `after`, as many as a part holds."""
    parts: list[str] = []
    size = 0
    while size < PART:
        rows = await _rows(connection, session_id, after, _PAGE)
        for seq, kind, body in rows:
            entry = f"[{seq}] {shortened(entry_text(kind, body), ENTRY)}"
            parts.append(entry)
            size += len(entry)
            after = seq
            if size >= PART:
                break
        if len(rows) < _PAGE and size < PART:
            return "\n\n".join([*parts, "(the end of the transcript)"])
    return "\n\n".join([*parts, f"(there is more: go on with after={after})"])


async def read_entry(connection: Connection, session_id: str, seq: int) -> str | None:
    """One entry, whole; None if there is none with this number."""
    for found, kind, body in await _rows(connection, session_id, seq - 1, 1):
        if found == seq:
            return f"[{seq}] {shortened(entry_text(kind, body), WHOLE)}"
    return None


async def _rows(
    connection: Connection, session_id: str, after: int, limit: int
) -> list[tuple[int, str, dict[str, Any]]]:
    cursor = await connection.execute(
        "select seq, type, body::text as body from events where session_id = %s and seq > %s"
        " and type = any(%s) order by seq limit %s",
        (session_id, after, list(SPEAKERS), limit),
    )
    return [(row["seq"], row["type"], msgspec.json.decode(row["body"])) for row in await cursor.fetchall()]
