"""One session as its clients know it, and what DESIGN promises them of it, checked from outside."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

import httpx
import msgspec

from corral.session.calls import TOOL_RESULTS, TOOL_USES
from tests.chaos.machine_world import Row, World

Event = dict[str, Any]

_STATUS: Final = {
    "session.status_running": "running",
    "session.status_idle": "idle",
    "session.status_rescheduled": "rescheduling",
    "session.status_terminated": "terminated",
}


class Reader:
    """One open stream of a session. ``seen`` holds the logged events that it brought, ``announced`` those
    that came while they still waited.
    """

    def __init__(self, world: World, session_id: str, logged: int) -> None:
        self._world = world
        self._session_id = session_id
        self._stack = AsyncExitStack()
        self._reading: asyncio.Task[None] | None = None
        self.earliest = logged
        """Events that were in the log before the stream was opened: none of them may come."""
        self.latest = 0
        """Events that were in the log once it was open: every later one must come."""
        self.seen: list[Event] = []
        self.announced: list[str] = []
        self.ended = False
        self.last = ""

    async def open(self) -> None:
        """Open it; returns once the headers are here."""
        path = f"/v1/sessions/{self._session_id}/events/stream"
        response = await self._stack.enter_async_context(
            self._world.http.stream("GET", path, timeout=httpx.Timeout(30, read=None))
        )
        assert response.status_code == 200, await response.aread()
        self._reading = asyncio.create_task(self._read(response))
        self.latest = await logged(self._world, self._session_id)

    async def _read(self, response: httpx.Response) -> None:
        try:
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                event = msgspec.json.decode(line[6:])
                self.last = event["type"]
                if self.last not in ("ping", "session.deleted"):
                    if event["processed_at"] is None:
                        self.announced.append(event["id"])
                    else:
                        self.seen.append(event)
                await self._world.tell()
        except httpx.HTTPError:
            pass
        self.ended = True
        await self._world.tell()

    async def close(self) -> None:
        """Close it."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._stack.aclose()

    def check(self, log: list[Event], count: int) -> None:
        """Its first `count` events are a piece of the log without gaps, none from before its opening."""
        assert len(set(self.announced)) == len(self.announced), "a waiting event was announced twice"
        if not count:
            return
        ids = [event["id"] for event in log]
        first = ids.index(self.seen[0]["id"])
        assert self.earliest <= first <= self.latest, (self.earliest, first, self.latest)
        assert self.seen[:count] == log[first : first + count], "the stream is not the log"

    def behind(self, log: list[Event]) -> bool:
        """Whether events of the log are still to come on this stream."""
        if self.ended or len(log) <= self.latest:
            return False
        return not self.seen or self.seen[-1]["id"] != log[-1]["id"]


async def logged(world: World, session_id: str) -> int:
    """How many events the session's list shows that wait for nothing."""
    return sum(event["processed_at"] is not None for event in await world.events(session_id))


class Known:
    """A session under the machine's hands."""

    def __init__(self, world: World, session_id: str, kind: str) -> None:
        self.world = world
        self.id = session_id
        self.kind = kind
        self.holds: list[str] = []
        """Names at which the model waits for the machine, oldest first."""
        self.acknowledged: dict[str, Event] = {}
        self.uncertain: list[str] = []
        """Texts of messages whose answer was lost: in the log once or not at all."""
        self.log: list[Event] = []
        self.waiting: list[Event] = []
        self.ended = False
        """Archived or deleted."""
        self.deleted = False
        self.readers: list[Reader] = []
        self._checked: tuple[int, int] | None = None

    async def follow(self) -> None:
        """Open another stream, in place of one that broke off."""
        for reader in self.readers:
            await reader.close()
        if self.ended:
            return
        reader = Reader(self.world, self.id, await logged(self.world, self.id))
        await reader.open()
        self.readers = [reader]

    async def close(self) -> None:
        """Close its streams."""
        for reader in self.readers:
            await reader.close()

    def events(self) -> list[Event]:
        """All events that are known of the session."""
        return self.log

    def uses(self) -> list[Event]:
        """All tool uses, in order."""
        return [event for event in self.events() if event["type"] in TOOL_USES]

    def result_of(self, use: Event) -> Event | None:
        """The event that answers a tool use."""
        return next((event for event in self.events() if answered_by(event) == use["id"]), None)

    def verdict_on(self, use: Event) -> Event | None:
        """The client's verdict on a tool use, whether or not the brain has taken it up."""
        return next(
            (
                event
                for event in (*self.events(), *self.waiting)
                if event["type"] == "user.tool_confirmation" and event["tool_use_id"] == use["id"]
            ),
            None,
        )

    def open_calls(self) -> list[Event]:
        """The tool uses without an answer."""
        return [use for use in self.uses() if self.result_of(use) is None]

    def for_hands(self) -> list[Event]:
        """The open calls that a worker may run now."""
        return [use for use in self.open_calls() if use["type"] == "agent.tool_use" and self.runnable(use)]

    def runnable(self, use: Event) -> bool:
        """Whether a worker may run the call: by policy, or by a verdict."""
        verdict = self.verdict_on(use)
        return use["evaluated_permission"] == "allow" or bool(verdict and verdict["result"] == "allow")

    @property
    def busy(self) -> bool:
        """Whether an interrupt would find something to stop."""
        return self.status != "idle" or bool(self.open_calls())

    @property
    def status(self) -> str:
        """The status by the log's last status event."""
        return next((_STATUS[e["type"]] for e in reversed(self.log) if e["type"] in _STATUS), "idle")

    async def check_news(self) -> None:
        """`check`, unless nothing has come in since the last time."""
        row = await self.world.database.fetch_one(
            "select last_seq, last_input from sessions where id = %s", (self.id,)
        )
        now = None if row is None else (row["last_seq"], row["last_input"])
        if now is None or now != self._checked:
            await self.check()
            self._checked = now

    async def check(self) -> None:
        """What holds at every moment, settled or not."""
        if self.deleted:
            assert (await self.world.get(f"/v1/sessions/{self.id}")).status_code == 404
            return
        listed = await self.world.events(self.id)
        log = [event for event in listed if event["processed_at"] is not None]
        self._check_list(listed, log)
        self.log, self.waiting = log, listed[len(log) :]
        self._check_sends(listed)
        self._check_pairs()
        for reader in self.readers:
            count, log = await self._caught_up(reader)
            reader.check(log, count)

    async def _caught_up(self, reader: Reader) -> tuple[int, list[Event]]:
        """How much a stream has brought, and a log with all of it: listable no later than streamed."""
        count = len(reader.seen)
        if not count or any(event["id"] == reader.seen[-1]["id"] for event in self.log):
            return count, self.log
        listed = await self.world.events(self.id)
        known = {event["id"] for event in listed}
        assert all(event["id"] in known for event in reader.seen[:count]), "streamed before it was listed"
        return count, [event for event in listed if event["processed_at"] is not None]

    def _check_list(self, listed: list[Event], log: list[Event]) -> None:
        ids = [event["id"] for event in listed]
        assert len(set(ids)) == len(ids), "an event is listed twice"
        assert listed[: len(log)] == log, "waiting events come last"
        times = [event["processed_at"] for event in log]
        assert times == sorted(times), "the log's times go back"
        assert log[: len(self.log)] == self.log, "an event of the log changed or is gone"
        now = {event["id"]: event for event in listed}
        for event in self.waiting:
            same = {**now[event["id"]], "processed_at": None} == event
            assert same, "a waiting event changed or is gone"

    def _check_sends(self, listed: list[Event]) -> None:
        now = {event["id"]: event for event in listed}
        for event_id, event in self.acknowledged.items():
            assert event_id in now, f"an acknowledged send is lost: {event}"
            at = now[event_id]["processed_at"]
            assert {**now[event_id], "processed_at": None} == {**event, "processed_at": None}
            assert event["processed_at"] in (None, at)
        texts = [event["content"][0]["text"] for event in listed if event["type"] == "user.message"]
        assert len(set(texts)) == len(texts), "a message is there twice"

    def _check_pairs(self) -> None:
        uses = {use["id"] for use in self.uses()}
        answered = [call for event in self.log if (call := answered_by(event)) is not None]
        assert len(set(answered)) == len(answered), "a tool use has two results"
        assert set(answered) <= uses, "a result answers nothing"
        for at, event in enumerate(self.log):
            if event["type"] == "session.status_idle":
                assert self.log[at - 1]["type"] == "session.usage", "no usage right before an idle"
                if event["stop_reason"]["type"] == "end_turn":
                    self._check_all_answered(self.log[:at])

    def _check_all_answered(self, log: list[Event]) -> None:
        answered = {answered_by(event) for event in log}
        left = [use for use in log if use["type"] in TOOL_USES and use["id"] not in answered]
        assert not left, f"the turn ended with calls unanswered: {left}"

    async def settle(self) -> None:
        """Wait until the session is at rest, or waits for something that only the machine can give."""
        if self.deleted:
            return
        watching = [asyncio.create_task(self._watch(name)) for name in self.holds]
        try:
            await self.world.until(self._unrest)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self, hold: str) -> None:
        await self.world.model.until_holding(hold)
        await self.world.tell()

    async def _unrest(self) -> str | None:
        await self.check()
        row = await self.world.row(self.id)
        assert row is not None, "the session is gone"
        self._check_row(row)
        if self._moves_on(row):
            return "the log moves on"
        if (restless := self._restless(row)) is not None:
            return f"{restless}: {row.status}, inputs {row.inputs}, wake {row.wake}, leased {row.leased}"
        if any(reader.behind(self.log) for reader in self.readers):
            return f"a stream lags behind the log of {len(self.log)}"
        return None

    def _moves_on(self, row: Row) -> bool:
        return [event["id"] for event in self.log] != row.ids

    def _may_wait(self) -> bool:
        """Whether an idle session may have inputs."""
        return self.stopped_by() == "requires_action"

    def _restless(self, row: Row) -> str | None:
        match row.status:
            case "terminated":
                return "a wake or inputs are left" if row.wake or row.inputs else None
            case "idle":
                if row.wake:
                    return "idle with a wake row"
                return "idle with inputs" if row.inputs and not self._may_wait() else None
            case "running":
                if not row.leased or row.brain_id is None:
                    return "running without a live lease"
                held = self.world.model.player.holds.waiting()
                if any(name in held for name in self.holds):
                    return None
                if self.kind == "cloud" and self.for_hands():
                    return None
                return "running for no reason"
            case _:
                return row.status

    def stopped_by(self) -> str | None:
        """Why the session went idle the last time."""
        idle = next((e for e in reversed(self.log) if e["type"] == "session.status_idle"), None)
        return None if idle is None else idle["stop_reason"]["type"]

    def _check_row(self, row: Row) -> None:
        assert row.seqs == list(range(1, row.last_seq + 1)), "the sequence has gaps"
        last = next((_STATUS[e["type"]] for e in reversed(row.events()) if e["type"] in _STATUS), None)
        # A session with initial events is running from its creation, before its first event.
        assert row.status == last or (last is None and row.status in ("idle", "running")), (row.status, last)


def answered_by(event: Event) -> str | None:
    """The tool use that an event answers."""
    field = TOOL_RESULTS.get(event["type"])
    return None if field is None else event[field]
