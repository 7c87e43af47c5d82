"""Verifies the log of a session against its digests, its seals, and a head that somebody has kept."""

import asyncio
from collections.abc import Sequence
from typing import Final

from corral.session.chain import Problem, StoredEvent, Walk
from corral.session.sealing import EVENT_COLUMNS
from corral.session.seals import Entry, Seal, VerifyKey, seal_fault
from corral.session.shown import not_found
from corral.store.database import Database
from corral.wire.chain import ChainProblem, ChainReport, Head

_PAGE: Final = 500


class Verifying:
    """Verifies logs. `keys` are those whose signatures count; without any, seals need no signature."""

    def __init__(self, database: Database, keys: Sequence[VerifyKey]) -> None:
        self._database = database
        self._keys = tuple(keys)

    async def verify(self, session_id: str, kept: Head | None = None) -> ChainReport:
        """Read the log from its start and say whether it is what was written.

        Raises:
            NotFound: there is no such session.
        """
        # Before the session's row: what is sealed is in the log by then.
        entries = await self._entries(session_id)
        row = await self._database.fetch_one("select last_seq from sessions where id = %s", (session_id,))
        if row is None:
            raise not_found(session_id)
        last_seq: int = row["last_seq"]
        watch = [entry.seq for _, entry in entries]
        walk = Walk(session_id, [*watch, kept.seq] if kept else watch)
        undigested = await self._walk(walk, session_id, last_seq)
        problems = [walk.problem] if walk.problem else []
        if not problems and walk.seq < last_seq:
            problems.append(Problem("missing", walk.seq + 1, None, f"event {walk.seq + 1} is missing"))
        beyond = await self._database.fetch_one(
            "select min(e.seq) as seq from events e join sessions s on s.id = e.session_id"
            " where e.session_id = %s and (e.seq > s.last_seq or e.seq < 1)",
            (session_id,),
        )
        if beyond is not None and beyond["seq"] is not None:
            problems.append(
                Problem("altered", beyond["seq"], None, "the session does not know of this event")
            )
        problems += _against_marks(walk, [(entry.seq, entry.head, f"seal {n}") for n, entry in entries])
        if kept is not None:
            problems += _against_marks(walk, [(kept.seq, bytes.fromhex(kept.head), "the head that was kept")])
        problems += await self._seal_problems([number for number, _ in entries])
        problem = min(problems, key=lambda found: found.seq, default=None)
        return ChainReport(
            session_id=session_id,
            intact=problem is None,
            events=walk.seq,
            head=Head(walk.seq, walk.head.hex()),
            undigested=undigested,
            sealed_through=max(watch, default=0),
            signed=bool(self._keys),
            public_keys=[key.text for key in self._keys],
            problem=None if problem is None else _shown(problem),
        )

    async def _walk(self, walk: Walk, session_id: str, last_seq: int) -> int:
        undigested, after = 0, 0
        while walk.problem is None:
            rows = await self._database.fetch(
                "select " + EVENT_COLUMNS + " from events where session_id = %s and seq > %s and seq <= %s"
                " order by seq limit %s",
                (session_id, after, last_seq, _PAGE),
            )
            for row in rows:
                undigested += row["digest"] is None
                walk.add(StoredEvent(**row))
            if len(rows) < _PAGE:
                break
            after = rows[-1]["seq"]
            await asyncio.sleep(0)
        return undigested

    async def _entries(self, session_id: str) -> list[tuple[int, Entry]]:
        rows = await self._database.fetch(
            "select number, seq, head from chain_seal_entries where session_id = %s order by number",
            (session_id,),
        )
        return [(row["number"], Entry(session_id, row["seq"], row["head"])) for row in rows]

    async def _seal_problems(self, numbers: Sequence[int]) -> list[Problem]:
        """What is wrong with the seals that hold the session, and with their numbers up to the last."""
        if not numbers:
            return []
        found: list[Problem] = []
        loose = await self._database.fetch_one(
            "select number from (select number, previous, lag(number) over w as number_before,"
            " lag(digest) over w as digest_before from chain_seals where number >= %s"
            " window w as (order by number)) as s"
            " where number_before is not null and (number <> number_before + 1 or previous <> digest_before)"
            " order by number limit 1",
            (numbers[0],),
        )
        if loose is not None:
            found.append(_seal_problem(loose["number"], "does not follow the one before it"))
        rows = await self._database.fetch(
            "select number, previous, sealed_at, digest, key_id, signature from chain_seals"
            " where number = any(%s)",
            (list(numbers),),
        )
        by_number = {row["number"]: Seal(**row) for row in rows}
        for number in numbers:
            seal = by_number.get(number)
            fault = (
                "is missing" if seal is None else seal_fault(seal, await self._of_seal(number), self._keys)
            )
            if fault is not None:
                found.append(_seal_problem(number, fault))
        return found

    async def _of_seal(self, number: int) -> list[Entry]:
        rows = await self._database.fetch(
            "select session_id, seq, head from chain_seal_entries where number = %s", (number,)
        )
        return [Entry(**row) for row in rows]


def _seal_problem(number: int, fault: str) -> Problem:
    # It says nothing of any one event: the log's own problems come first.
    return Problem("seal", 2**62 + number, None, f"seal {number} {fault}")


def _against_marks(walk: Walk, marks: Sequence[tuple[int, bytes, str]]) -> list[Problem]:
    """The first of these heads that the log does not come to."""
    good = 0
    for seq, head, name in sorted(marks, key=lambda mark: mark[0]):
        if (found := walk.heads.get(seq)) == head:
            good = seq
            continue
        if found is None and walk.problem is not None:
            return []  # the walk has not come so far, and says why
        if found is None:
            return [
                Problem("missing", walk.seq + 1, None, f"{name} covers {seq} events, the log has {walk.seq}")
            ]
        message = f"one of the events from {good + 1} to {seq} is not what it was: {name} tells another head"
        return [Problem("altered" if name.startswith("seal") else "head", good + 1, None, message)]
    return []


def _shown(problem: Problem) -> ChainProblem:
    seq = None if problem.kind == "seal" else problem.seq
    return ChainProblem(kind=problem.kind, seq=seq, event_id=problem.event_id, message=problem.message)
