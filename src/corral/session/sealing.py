"""Seals what sessions have written, every so often; see `corral.session.seals`.

Each server seals the sessions that it has written to. What it missed, since it was killed or wrote past the
log's writer, is found by looking through the sessions at its start and every hour.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Final, LiteralString, Self

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from corral.session.chain import StoredEvent, genesis, link, own_digest
from corral.session.seals import FIRST, Entry, SigningKey, seal_digest
from corral.store.database import Connection, Database

_AT_ONCE: Final = 1_000
"""Sessions of one seal."""
_PAGE: Final = 2_000
_MISSED_SECONDS: Final = 3600.0
_LOCK: Final = 0x636F7272616C_0002
"""The key of the lock under which seals get their numbers."""

EVENT_COLUMNS: Final[LiteralString] = (
    "seq, id, type, thread_id, body::text as body, private::text as private, resolves, crossposted,"
    " processed_at, digest"
)
# The texts are read only where they have to be digested.
_LINKS: Final[LiteralString] = (
    "select seq, id, type, thread_id, case when digest is null then body::text else '' end as body,"
    " case when digest is null then private::text end as private, resolves, crossposted, processed_at, digest"
    " from events where session_id = %s and seq > %s order by seq limit %s"
)
_LAST: Final[LiteralString] = (
    "select seq, head from chain_seal_entries where session_id = %s order by number desc limit 1"
)
_MISSED: Final[LiteralString] = """
select s.id from sessions s
where s.last_seq > coalesce((
    select e.seq from chain_seal_entries e where e.session_id = s.id order by e.number desc limit 1
), 0)
limit %s
"""

_log = structlog.get_logger(__name__)


class Sealing:
    """One server's seals. `written` is the set of sessions to seal, which is emptied."""

    def __init__(
        self, database: Database, key: SigningKey | None, written: set[str], *, seconds: float
    ) -> None:
        self._database = database
        self._key = key
        self._written = written
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        """The last seal that this server has seen."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="sealing")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time()
        while True:
            try:
                if loop.time() >= look_at:
                    missed = await self.find_missed()
                    # Many are left where the chain is new: some at each turn.
                    look_at = loop.time() + (0.0 if missed == _AT_ONCE else _MISSED_SECONDS)
                await self.seal()
            except (psycopg.Error, PoolTimeout) as problem:
                _log.warning("the chain could not be sealed; trying again later", reason=str(problem))
            await asyncio.sleep(self._seconds)

    async def find_missed(self) -> int:
        """Put sessions that are not sealed to their end among those to seal; how many were found."""
        missed = await self._database.fetch(_MISSED, (_AT_ONCE,))
        self._written.update(row["id"] for row in missed)
        return len(missed)

    async def seal(self) -> int:
        """Seal what has been written; how many sessions. What fails is left for the next time."""
        sessions = sorted(self._written)[:_AT_ONCE]
        # Before they are read: what is written from here on is for the next time.
        self._written.difference_update(sessions)
        try:
            entries = [entry for session in sessions if (entry := await self._entry(session)) is not None]
            if entries:
                await self._write(entries)
        except BaseException:
            self._written.update(sessions)
            raise
        return len(entries)

    async def _entry(self, session_id: str) -> Entry | None:
        last = await self._database.fetch_one(_LAST, (session_id,))
        seq, head = (0, genesis(session_id)) if last is None else (last["seq"], last["head"])
        sealed = seq
        while True:
            rows = await self._database.fetch(_LINKS, (session_id, seq, _PAGE))
            for row in rows:
                event = StoredEvent(**row)
                seq = event.seq
                head = link(head, seq, event.processed_at, event.digest or own_digest(event))
            if len(rows) < _PAGE:
                return Entry(session_id, seq, head) if seq > sealed else None

    async def _write(self, entries: Sequence[Entry]) -> None:
        async with self._database.transaction() as connection:
            # A statement of its own: the next one has to see what the holder before has committed.
            await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
            number, digest = await self._insert(connection, entries)
        self._number = number
        # Kept elsewhere, these lines show that no seal has been taken away from the end.
        _log.info("chain sealed", number=number, sessions=len(entries), digest=digest.hex())

    async def _insert(self, connection: Connection, entries: Sequence[Entry]) -> tuple[int, bytes]:
        cursor = await connection.execute(
            "select (select max(number) from chain_seals) as last, clock_timestamp() as at,"
            " (select digest from chain_seals order by number desc limit 1) as digest"
        )
        row = await cursor.fetchone()
        assert row is not None
        number: int = (row["last"] or 0) + 1
        previous: bytes = row["digest"] or FIRST
        if number <= self._number:
            _log.error("seals of the chain have been taken away", known=self._number, found=number - 1)
            number = self._number + 1
        digest = seal_digest(number, previous, row["at"], entries)
        key = self._key
        await connection.execute(
            "insert into chain_seals (number, previous, sealed_at, digest, key_id, signature)"
            " values (%s, %s, %s, %s, %s, %s)",
            (
                number,
                previous,
                row["at"],
                digest,
                None if key is None else key.public.id,
                None if key is None else key.sign(digest),
            ),
        )
        await connection.execute(
            "insert into chain_seal_entries (number, session_id, seq, head)"
            " select %s, * from unnest(%s::text[], %s::bigint[], %s::bytea[])",
            (
                number,
                [entry.session_id for entry in entries],
                [entry.seq for entry in entries],
                [entry.head for entry in entries],
            ),
        )
        return number, digest
