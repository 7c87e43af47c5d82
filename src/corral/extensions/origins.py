"""Where sessions come from that are copies of others."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from corral.session.shown import not_found
from corral.store.database import Connection, Database
from corral.wire.forks import Origin, SessionOrigin
from corral.wire.times import to_wire


class Origins:
    """The origins of a database's sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, session_id: str) -> SessionOrigin:
        """Where a session comes from; raises `NotFound`."""
        row = await self._database.fetch_one(
            "select s.id, o.kind, o.source_session_id, o.source_event_id, o.source_seq, o.source_head,"
            " o.details::text as details, o.created_at"
            " from sessions s left join session_origins o on o.session_id = s.id where s.id = %s",
            (session_id,),
        )
        if row is None:
            raise not_found(session_id)
        if row["kind"] is None:
            return SessionOrigin(session_id=session_id, origin=None)
        details: dict[str, Any] = msgspec.json.decode(row["details"])
        head: bytes | None = row["source_head"]
        origin = Origin(
            kind=row["kind"],
            session_id=row["source_session_id"],
            event_id=row["source_event_id"],
            seq=row["source_seq"],
            head=None if head is None else head.hex(),
            left_out=details.get("left_out", []),
            signed_by=details.get("signed_by"),
            created_at=to_wire(row["created_at"]),
        )
        return SessionOrigin(session_id=session_id, origin=origin)


async def write_origin(
    connection: Connection,
    session_id: str,
    kind: Literal["fork", "import"],
    origin: Mapping[str, Any],
    left_out: Sequence[str],
    signed_by: str | None = None,
) -> None:
    """Note where a session comes from that is being made."""
    head: str | None = origin["head"]
    details = {"left_out": list(left_out), **({"signed_by": signed_by} if signed_by else {})}
    await connection.execute(
        "insert into session_origins (session_id, kind, source_session_id, source_event_id, source_seq,"
        " source_head, details) values (%s, %s, %s, %s, %s, %s, %s)",
        (
            session_id,
            kind,
            origin["session_id"],
            origin["event_id"],
            origin["seq"],
            None if head is None else bytes.fromhex(head),
            msgspec.json.encode(details).decode(),
        ),
    )
