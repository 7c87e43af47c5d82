"""Snapshots: what brains remember of sessions, so that a turn need not begin with the whole log.

A cache in two layers. The sessions that this process had last are at hand in memory, in all no more than a
fixed number and size; of a session that has come to some length a snapshot is in the database, for whoever
is the next brain. Neither is needed for anything: what is missing, damaged, or written by other code is as
good as absent, and the log is replayed.

Snapshots are written in the background, after the work that they are of, and by a session's holder alone.
"""

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib import resources
from importlib.resources.abc import Traversable
from types import TracebackType
from typing import Any, Final, LiteralString, Self
from uuid import uuid4

import msgspec
import psycopg
import structlog

from corral.brain.claims import Claim
from corral.brain.judge_context import KeptJudgeContext
from corral.brain.recollection import Recalled, Recollection, ThreadRecollection, Unusable, gathered, recalled
from corral.brain.recollection import recollection as made_of
from corral.session.state import SessionState
from corral.store.database import Database

EVERY: Final = 200
"""So many events a snapshot in the database may lack: about what is replayed in the time of reading one."""
LARGEST: Final = 32 * 1024 * 1024
"""Bytes; about what one model request may hold. A session that has grown beyond it gets no new snapshot."""
_FOLDING: Final = ("corral.session", "corral.brain", "corral.wire", "corral.policy")
_AT_HAND: Final = 256
_AT_HAND_BYTES: Final = 32 * 1024 * 1024
_CHAINS: Final = 1024
_WAITING: Final = 64
_FLUSH_SECONDS: Final = 5.0

_FIND: Final[LiteralString] = """
with found as (
    select k.session_id, k.generation, k.seq, k.checksum, k.head
    from session_snapshots k join sessions s on s.id = k.session_id
    where k.session_id = %(session)s and k.format = %(format)s and k.seq > %(after)s and k.seq <= s.last_seq
)
select null as thread_id, 0 as position, generation, seq, checksum, head as body from found
union all
select p.thread_id, p.position, p.generation, f.seq, 0, p.body
from found f join session_snapshot_pieces p on p.session_id = f.session_id and p.generation = f.generation
"""
# The session's row first, as everywhere, but so that it can be claimed meanwhile: it must not be deleted, no
# more. A brain that has lost the session finds another epoch, or, if it loses it just now, perhaps a newer
# snapshot. An archived session gets none. To go on with a chain, its beginning must still be there.
_SAVE: Final[LiteralString] = """
with held as materialized (
    select id, last_seq from sessions
    where id = %(session)s and epoch = %(epoch)s and archived_at is null for key share
),
head as (
    insert into session_snapshots (session_id, generation, seq, format, checksum, head)
    select id, %(generation)s, %(seq)s, %(format)s, %(checksum)s, %(head)b from held
    where %(begins)s or exists (
        select from session_snapshots k where k.session_id = held.id and k.generation = %(generation)s
    )
    on conflict (session_id) do update set generation = excluded.generation, seq = excluded.seq,
        format = excluded.format, checksum = excluded.checksum, head = excluded.head, written_at = now()
        where session_snapshots.format <> excluded.format
            or session_snapshots.seq not between excluded.seq + 1 and (select last_seq from held)
    returning session_id
),
dropped as (
    delete from session_snapshot_pieces p using head
    where p.session_id = head.session_id and (p.generation <> %(generation)s or not exists (
        select from unnest(%(threads)s::text[], %(first)s::integer[]) as t (id, first)
        where t.id = p.thread_id and p.position >= t.first
    ))
),
added as (
    insert into session_snapshot_pieces (session_id, generation, thread_id, position, body)
    select head.session_id, %(generation)s, n.thread_id, n.position, n.body
    from head, unnest(%(of)s::text[], %(positions)s::integer[], %(bodies)b::bytea[])
        as n (thread_id, position, body)
    on conflict do nothing
)
select count(*) as written from head
"""

_log = structlog.get_logger(__name__)


class _Chain(msgspec.Struct, frozen=True):
    """What is in the database of a session: up to which event, and up to which piece of each thread."""

    generation: str
    seq: int
    stored: Mapping[str, int]


class Snapshots:
    """The memory of one process's brains. Open with ``async with``: what is to be written is, by the end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._at_hand: OrderedDict[str, Recollection] = OrderedDict()
        self._bytes = 0
        self._chains: OrderedDict[str, _Chain] = OrderedDict()
        """What is known to be in the database; of a session that is not here, a new chain is begun."""
        self._waiting: dict[str, tuple[Claim, Recollection]] = {}
        self._wanted = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._idle = True
        self._format = ""

    async def __aenter__(self) -> Self:
        self._format = await asyncio.to_thread(code_digest)
        self._writing = asyncio.create_task(self._write_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._writing is not None
        writing, self._writing = self._writing, None
        self._wanted.set()
        _, late = await asyncio.wait({writing}, timeout=_FLUSH_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    @property
    def waiting(self) -> bool:
        """Whether a snapshot is still to be written."""
        return bool(self._waiting) or not self._idle

    async def recall(self, claim: Claim) -> Recalled | None:
        """What is remembered of a session that has just been claimed; None if the log has to be replayed."""
        kept = self._at_hand.get(claim.session_id)
        seq = kept.seq if kept is not None else 0
        if claim.last_seq - seq > EVERY:
            # Another brain had it in between, or this process is new to it.
            kept = await self._found(claim, seq) or kept
        if kept is None or kept.seq > claim.last_seq:
            return None
        try:
            session = recalled(kept)
        except Unusable as error:
            self._forget(claim.session_id)
            _log.warning("what was kept of a session is not used; its log is replayed", reason=str(error))
            return None
        self._hold(claim.session_id, kept)
        return session

    def keep(
        self,
        claim: Claim,
        state: SessionState,
        threads: Mapping[str, ThreadRecollection],
        judge: KeptJudgeContext,
        *,
        rests: bool,
    ) -> None:
        """Remember how a session stands; `rests` if this brain is done with it, so that it is at hand."""
        chain = self._chains.get(claim.session_id)
        due = state.seq - (chain.seq if chain is not None else 0) >= EVERY
        if not due and not rests:
            return
        try:
            kept = made_of(state, threads, judge)
        except Exception:  # a cache must not be what a turn fails on
            _log.exception("a session cannot be kept; its log will be replayed")
            return
        if rests:
            self._hold(claim.session_id, kept)
        if due and kept.size <= LARGEST and len(self._waiting) < _WAITING:
            self._waiting[claim.session_id] = (claim, kept)
            self._wanted.set()

    def _hold(self, session_id: str, kept: Recollection) -> None:
        self._forget(session_id)
        if kept.size > _AT_HAND_BYTES // 2:
            return
        self._at_hand[session_id] = kept
        self._bytes += kept.size
        while self._bytes > _AT_HAND_BYTES or len(self._at_hand) > _AT_HAND:
            _, oldest = self._at_hand.popitem(last=False)
            self._bytes -= oldest.size

    def _forget(self, session_id: str) -> None:
        if (kept := self._at_hand.pop(session_id, None)) is not None:
            self._bytes -= kept.size

    async def _found(self, claim: Claim, after: int) -> Recollection | None:
        """The snapshot in the database, if it is newer than `after` and whole."""
        values = {"session": claim.session_id, "format": self._format, "after": after}
        try:
            async with self._database.connection() as connection:
                cursor = await connection.execute(_FIND, values, binary=True)
                rows = await cursor.fetchall()
            head = next((row for row in rows if row["thread_id"] is None), None)
            if head is None:
                return None
            if zlib.crc32(head["body"]) != head["checksum"]:
                raise Unusable("the head is damaged")
            bodies = ((row["thread_id"], row["position"], row["body"]) for row in rows if row is not head)
            kept = gathered(head["seq"], head["body"], bodies)
        except (Unusable, psycopg.Error) as error:
            _log.warning("a snapshot is not used; the log is replayed", reason=str(error))
            return None
        self._chain(claim.session_id, _Chain(head["generation"], kept.seq, _stored(kept)))
        return kept

    def _chain(self, session_id: str, chain: _Chain | None) -> None:
        self._chains.pop(session_id, None)
        if chain is not None:
            self._chains[session_id] = chain
        if len(self._chains) > _CHAINS:
            self._chains.popitem(last=False)

    async def _write_all(self) -> None:
        while self._writing is not None or self._waiting:
            if not self._waiting:
                self._idle = True
                self._wanted.clear()
                await self._wanted.wait()
                continue
            self._idle = False
            session_id = next(iter(self._waiting))
            claim, kept = self._waiting.pop(session_id)
            chain = self._chains.get(session_id)
            try:
                chain = await self._write(claim, kept, chain)
            except psycopg.Error as error:
                _log.warning("a snapshot could not be written", session_id=session_id, error=str(error))
                chain = None
            self._chain(session_id, chain)

    async def _write(self, claim: Claim, kept: Recollection, chain: _Chain | None) -> _Chain | None:
        """Write one; what is in the database then, or None if it was refused."""
        generation = uuid4().hex if chain is None else chain.generation
        stored: Mapping[str, int] = {} if chain is None else chain.stored
        new = list(_new_pieces(kept, stored))
        values: dict[str, Any] = {
            "session": claim.session_id,
            "epoch": claim.epoch,
            "begins": chain is None,
            "generation": generation,
            "seq": kept.seq,
            "format": self._format,
            "checksum": zlib.crc32(kept.head),
            "head": kept.head,
            "threads": list(kept.first),
            "first": list(kept.first.values()),
            "of": [thread_id for thread_id, _, _ in new],
            "positions": [position for _, position, _ in new],
            "bodies": [body for _, _, body in new],
        }
        async with self._database.connection() as connection:
            cursor = await connection.execute(_SAVE, values)
            row = await cursor.fetchone()
        return _Chain(generation, kept.seq, _stored(kept)) if row is not None and row["written"] else None


def _stored(kept: Recollection) -> dict[str, int]:
    return {thread_id: kept.first[thread_id] + len(pieces) for thread_id, pieces in kept.pieces.items()}


def _new_pieces(kept: Recollection, stored: Mapping[str, int]) -> Iterator[tuple[str, int, bytes]]:
    for thread_id, pieces in kept.pieces.items():
        for position, piece in enumerate(pieces, kept.first[thread_id]):
            if position >= stored.get(thread_id, 0):
                yield thread_id, position, piece.body


def code_digest(packages: Sequence[str] = _FOLDING) -> str:
    """What stands for the code that folds: of the source of all that it may depend on.

    Wider than it need be, on purpose: a snapshot that is thrown away costs one replay, one that was made by
    other rules costs the promise that the log is the truth.
    """
    digest = blake2b(digest_size=16)
    for package in packages:
        for name, source in sorted(_sources(resources.files(package), package)):
            digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{name}.{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{name}.{entry.name}", entry.read_bytes()
