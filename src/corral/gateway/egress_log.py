"""What was decided about sandboxes' requests: a line in the log, and counts by host in the database.

Neither has a path, a query or a header. Counts are gathered while the last lot is being written, so a busy
sandbox costs one statement for many requests; and a sandbox that asks for ever new hosts fills no table.
"""

import asyncio
from collections import Counter
from typing import Final, Literal, LiteralString, NamedTuple, TypeAlias

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from corral.store.database import Database

Decision: TypeAlias = Literal["allowed", "denied", "failed"]

HOSTS: Final = 500
"""Most rows of one session; what goes beyond is counted under one name."""
OTHERS: Final = "(other hosts)"
_AT_ONCE: Final = 200
_PAUSE_SECONDS: Final = 0.2

_WRITE: Final[LiteralString] = """
with given as (
    select * from unnest(
        %(sessions)s::text[], %(hosts)s::text[], %(ports)s::int[], %(decisions)s::text[],
        %(reasons)s::text[], %(counts)s::bigint[]
    ) as g (session_id, host, port, decision, reason, requests)
), named as (
    select g.session_id, g.decision, g.requests, known.yes,
        case when known.yes then g.host else %(others)s end as host,
        case when known.yes then g.port else 0 end as port,
        case when known.yes then g.reason else '' end as reason
    from given g join sessions s on s.id = g.session_id, lateral (
        select (select count(*) from egress_decisions d where d.session_id = g.session_id) < %(most)s
            or exists (
                select 1 from egress_decisions d where d.session_id = g.session_id and d.host = g.host
                and d.port = g.port and d.decision = g.decision and d.reason = g.reason
            ) as yes
    ) known
)
insert into egress_decisions as d (session_id, host, port, decision, reason, requests)
select session_id, host, port, decision, reason, sum(requests) from named
group by session_id, host, port, decision, reason
order by session_id, host, port, decision, reason
on conflict (session_id, host, port, decision, reason) do update
set requests = d.requests + excluded.requests, last_at = now()
"""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Key(NamedTuple):
    session_id: str
    host: str
    port: int
    decision: Decision
    reason: str


class EgressLog:
    """Takes down decisions. Use it with ``async with``: what was noted is written before it ends."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting = Counter[_Key]()
        self._news = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._busy = False
        self.total = Counter[Decision]()
        """Decisions since the start."""

    async def __aenter__(self) -> "EgressLog":
        self._writing = asyncio.create_task(self._run(), name="egress log")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writing is not None
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        while self._waiting and await self._write():
            pass

    @property
    def pending(self) -> bool:
        """Whether something was noted that is not written yet."""
        return bool(self._waiting) or self._busy

    def note(self, session_id: str, host: str, port: int, decision: Decision, reason: str) -> None:
        """Note one request: which host it was for, what was decided, and the rule that said so."""
        key = _Key(session_id, host[:253], port, decision, reason[:200])
        if key not in self._waiting:
            write = _log.info if decision == "allowed" else _log.warning
            write(f"egress {decision}", session_id=session_id, host=key.host, port=port, reason=key.reason)
        self._waiting[key] += 1
        self.total[decision] += 1
        self._news.set()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting and await self._write():
                pass
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _write(self) -> bool:
        """Write a lot; False if the database is out of reach, and then it is kept for the next time."""
        lot = dict(list(self._waiting.items())[:_AT_ONCE])
        for key in lot:
            del self._waiting[key]
        self._busy = True
        try:
            await self._database.execute(
                _WRITE,
                {
                    "sessions": [key.session_id for key in lot],
                    "hosts": [key.host for key in lot],
                    "ports": [key.port for key in lot],
                    "decisions": [key.decision for key in lot],
                    "reasons": [key.reason for key in lot],
                    "counts": list(lot.values()),
                    "others": OTHERS,
                    "most": HOSTS,
                },
            )
        except (psycopg.Error, PoolTimeout) as error:
            _log.warning("egress decisions are written later", reason=str(error), rows=len(lot))
            self._waiting.update(lot)
            self._news.set()
            return False
        except asyncio.CancelledError:
            self._waiting.update(lot)
            raise
        finally:
            self._busy = False
        return True
