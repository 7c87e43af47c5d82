"""A session in a brain's hand: its state, and the one way in which its threads write.

The threads of a session work side by side and share this. Each decides on the state that it sees; what it
decided is written only if the log is still as long. So nothing is written on the strength of an old state,
whoever has written meanwhile: another thread here, a client, or another brain.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, LiteralString

from corral.brain.claims import Claim
from corral.brain.clock import DatabaseClock
from corral.brain.rulings import decision_rows
from corral.session.commit import Commit, CommitRefused, Fence, Wake
from corral.session.crossposting import marked
from corral.session.events import Event, NewEvent
from corral.session.log import WAITING, PostgresSessionLog, inputs_from, located
from corral.session.state import SessionState, fold, with_inputs
from corral.session.thread_rows import rows_after
from corral.session.usage import status_to_keep, usage_to_keep
from corral.store.database import Database

# The queue is read in the same moment as its number, and only where something is new.
_NEWS: Final[LiteralString] = (
    "select s.epoch, s.last_seq, s.last_input, clock_timestamp() as at,"
    " case when (s.last_seq, s.last_input) <> (%(seq)s, %(last_input)s) then " + WAITING + " end as inputs"
    " from sessions s where s.id = %(session)s"
)


class SessionLost(Exception):
    """Another brain has the session, or it is gone: stop at once and write nothing."""


class HeldSession:
    """One brain's hold on one session. `on_event` is told every event of the log, in order."""

    def __init__(
        self,
        claim: Claim,
        *,
        database: Database,
        log: PostgresSessionLog,
        on_event: Callable[[Event, SessionState], None],
    ) -> None:
        self.claim = claim
        self.state = SessionState(claim.thread_id, budget=claim.budget)
        self.clock = DatabaseClock(claim.at)
        self.let_go = False
        """True once the session has been given up: nothing more is to be done here."""
        self._at_it = asyncio.Lock()
        """Held while the session is read or written."""
        self._database = database
        self._log = log
        self._on_event = on_event
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._waiting = 0

    def recall(self, state: SessionState) -> None:
        """Begin with the state of an earlier moment, before anything is read."""
        self.state = state

    @property
    def _concerned(self) -> tuple[str, str, str]:
        """What every decision on a call of the session is about."""
        return self.claim.session_id, str(self.claim.agent["id"]), self.claim.environment_id

    async def until(self, holds: Callable[[SessionState], bool], *, outside: bool = True) -> None:
        """Wait until something holds of the state. `outside`: others than this brain may bring it about."""
        self._waiting += outside
        if outside:
            self._wanted.set()
        try:
            while not holds(self.state):
                await self._changed.wait()
        finally:
            self._waiting -= outside
            if not self._waiting:
                self._wanted.clear()

    async def wanted(self) -> None:
        """Returns while somebody waits for news from outside: to read them for nobody costs a query."""
        await self._wanted.wait()

    async def append(
        self,
        decided: SessionState,
        events: Sequence[NewEvent],
        *,
        take: Iterable[str] = (),
        wake: Wake | None = None,
        quiet: bool = False,
    ) -> None:
        """Append what was decided on a state; raises `CommitRefused` if the log has grown since.

        `quiet` also requires that no input has come in since, so that none is left without a brain.
        """
        async with self._at_it:
            if decided.seq != self.state.seq:
                raise CommitRefused(self.claim.session_id)
            last_input = decided.last_input if quiet else None
            await self._commit(events, take=tuple(take), wake=wake, last_input=last_input)

    async def append_fact(self, make: Callable[[SessionState], Sequence[NewEvent]]) -> None:
        """Append what has happened outside, after whatever has come into the log meanwhile."""
        async with self._at_it:
            while True:
                try:
                    await self._commit(make(self.state))
                except CommitRefused:
                    await self._read()
                else:
                    return

    async def refresh(self) -> None:
        """Read the log's and the queue's news; raises `SessionLost` if the epoch has moved on."""
        async with self._at_it:
            await self._read()

    async def rests(self) -> None:
        """Returns once nobody is reading or writing: to be cancelled in a query costs its connection."""
        async with self._at_it:
            pass

    async def caught_up(self, decided: SessionState) -> None:
        """After a refusal: see to it that the state is newer than the one that was decided on."""
        if self.state is decided or self.state.seq == decided.seq:
            await self.refresh()

    async def _commit(
        self,
        events: Sequence[NewEvent],
        *,
        take: tuple[str, ...] = (),
        wake: Wake | None = None,
        last_input: int | None = None,
    ) -> None:
        fence = Fence(epoch=self.claim.epoch, seq=self.state.seq, last_input=last_input)
        committed = await self._log.commit(
            Commit(
                self.claim.session_id,
                fence,
                events=marked(events, self.state.primary, self_hosted=self.claim.self_hosted),
                take=take,
                status=status_to_keep(events),
                # The session shows what its last usage event says.
                usage=usage_to_keep(events),
                wake=wake,
                threads=rows_after(self.state, events, self.clock.now()),
                decisions=decision_rows(events, *self._concerned),
            )
        )
        self.clock.set(committed.at)
        if wake is not None and wake.kind != "rouse":
            self.let_go = True
        for event in located(events, committed):
            self._take_in(event)
        if take:
            left = [waiting for waiting in self.state.inputs if waiting.id not in take]
            self.state = with_inputs(self.state, left, self.state.last_input)
        self._announce()

    async def _read(self) -> None:
        row = await self._database.fetch_one(
            _NEWS,
            {"session": self.claim.session_id, "seq": self.state.seq, "last_input": self.state.last_input},
        )
        if row is None or row["epoch"] != self.claim.epoch:
            raise SessionLost(self.claim.session_id)
        self.clock.set(row["at"])
        if (row["last_seq"], row["last_input"]) == (self.state.seq, self.state.last_input):
            return
        if row["last_seq"] > self.state.seq:
            async for event in self._log.replay(self.claim.session_id, after=self.state.seq):
                self._take_in(event)
        self.state = with_inputs(self.state, inputs_from(row["inputs"]), row["last_input"])
        self._announce()

    def _take_in(self, event: Event) -> None:
        self.state = fold(self.state, event)
        self._on_event(event, self.state)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
