"""The audit trail: who changed what, and when; and what policy said of each tool call.

A record is written before the change is carried out, and completed afterwards with its outcome: so nothing is
changed without a record, whenever the process dies. It names the caller's credential by its id and the things
that were changed by theirs; it never holds what was sent. Decisions on tool calls are written with the call
itself (`corral.session.commit`), in one statement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, convert
from psycopg.rows import DictRow

from corral.resources import listing
from corral.store.database import Database
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page

LIST: Final = "audit"
"""Kind of the list's cursors."""

ActorKind: TypeAlias = Literal["api", "command", "policy"]
RECORDED: Final[tuple[ActorKind, ...]] = ("api", "command", "policy")


class GateRecord(Struct, frozen=True):
    """What the operator's policy said; without a `rule` it was the default."""

    effect: str
    rule: str | None
    policy: str


class JudgeRecord(Struct, frozen=True, kw_only=True):
    """What the judge said; a `failure` says why there was no judgement."""

    permission: str
    reason: str
    failure: str | None
    model: str
    prompt: int


class Decision(Struct, frozen=True, kw_only=True):
    """A decision on a tool call: what became of it, and what the policies said that led to it."""

    tool: str
    permission: str
    agent_policy: str | None
    gate: GateRecord | None = None
    judge: JudgeRecord | None = None


class AuditRecord(Struct, frozen=True, kw_only=True):
    """One administrative act, or a decision on a tool call (of kind ``policy``, which has a ``decision``).

    ``status`` is the HTTP status that an act ended with, None where unknown.
    """

    type: Literal["audit_record"] = "audit_record"
    id: str
    created_at: datetime
    actor_kind: ActorKind
    actor_id: str
    action: str
    objects: list[str]
    request_id: str | None
    status: int | None
    decision: Decision | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Which records are wanted; whatever is None does not matter."""

    actor_id: str | None = None
    object_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    actor_kinds: Sequence[str] | None = None


class AuditTrail:
    """The records in the database."""

    def __init__(self, database: Database, keep_days: int) -> None:
        self._database = database
        self._keep_days = keep_days

    async def begin(
        self,
        actor_kind: ActorKind,
        actor_id: str,
        action: str,
        objects: Sequence[str] = (),
        request_id: str | None = None,
    ) -> str:
        """Note that something is about to be done; returns the record's id."""
        record_id = new_id("audit")
        await self._database.execute(
            "insert into audit (id, actor_kind, actor_id, action, objects, request_id)"
            " values (%s, %s, %s, %s, %s, %s)",
            (record_id, actor_kind, actor_id, action, list(objects), request_id),
        )
        return record_id

    async def complete(self, record_id: str, status: int, made: str | None = None) -> None:
        """Note how it ended, and the id of what it made."""
        await self._database.execute(
            "update audit set status = %s,"
            " objects = case when %s::text is null or %s = any(objects) then objects else objects || %s end"
            " where id = %s",
            (status, made, made, [made], record_id),
        )

    async def list(self, page: Page, narrow: Narrowing) -> Listing:
        """Records, newest first."""
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select id, created_at, actor_kind, actor_id, action, objects, request_id, status, decision"
            " from audit"
            " where (%(actor)s::text is null or actor_id = %(actor)s)"
            " and (%(object)s::text is null or objects @> array[%(object)s::text])"
            " and (%(kinds)s::text[] is null or actor_kind = any(%(kinds)s))"
            " and (%(since)s::timestamptz is null or created_at >= %(since)s)"
            " and (%(until)s::timestamptz is null or created_at <= %(until)s)"
            " and (%(moment)s::timestamptz is null or (created_at, id) < (%(moment)s, %(last)s))"
            " order by created_at desc, id desc limit %(limit)s",
            {
                "actor": narrow.actor_id,
                "object": narrow.object_id,
                "kinds": None if narrow.actor_kinds is None else list(narrow.actor_kinds),
                "since": narrow.since,
                "until": narrow.until,
                "moment": moment,
                "last": last,
                "limit": page.limit + 1,
            },
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_record(row) for row in kept], next_page=next_page)

    async def prune(self) -> None:
        """Remove the records that are older than they are to be kept."""
        await self._database.execute(
            "delete from audit where created_at < now() - make_interval(days => %s)", (self._keep_days,)
        )


def _record(row: DictRow) -> AuditRecord:
    return convert({name: value for name, value in row.items() if name != "decision" or value}, AuditRecord)
