"""A coordinator's session as its clients know it: its threads, its budget, and what is promised of them."""

from typing import Any, Final

import msgspec

from corral.session.calls import TOOL_USES
from tests.chaos.machine_session import Event, Known, answered_by
from tests.chaos.machine_world import TOOLS, Row, World

LEAD: Final = "steered"
_THREAD_STATUS: Final = "session.thread_status_"


class SteeredWorld(World):
    """A world whose agent has others work for it, on a model that takes system messages."""

    async def _make_agent(self) -> str:
        block = {"type": "coordinator", "agents": [{"type": "self"}]}
        agent = await self.post(
            "/v1/agents", name=LEAD, model="claude-opus-4-8", tools=TOOLS, multiagent=block
        )
        assert agent.status_code == 200, agent.text
        return agent.json()["id"]


class Steered(Known):
    """See the module's first lines."""

    def __init__(self, world: World, session_id: str, kind: str) -> None:
        super().__init__(world, session_id, kind)
        self.threads: dict[str, Event] = {}
        """The child threads by their ids, as listed last."""
        self._theirs: dict[str, list[Event]] = {}
        self._listed: list[Event] = []

    def events(self) -> list[Event]:
        """Those of the session's list, then those that child threads alone show."""
        shown = {event["id"] for event in self.log}
        return self.log + [
            event for log in self._theirs.values() for event in log if event["id"] not in shown
        ]

    def open_calls(self) -> list[Event]:
        """The tool uses without an answer; those of threads that have ended need none."""
        ended = {name for name, thread in self.threads.items() if thread["status"] == "terminated"}
        dropped = {event["id"] for name in ended for event in self._theirs.get(name, [])}
        return [use for use in super().open_calls() if use["id"] not in dropped]

    @property
    def paused(self) -> bool:
        """Whether the session rests because its budget is used up."""
        return self.status == "idle" and self.stopped_by() == "budget_reached"

    async def check(self) -> None:
        """What holds at every moment, of the session and of each of its threads."""
        await super().check()
        if not self.deleted:
            await self._check_threads()
            await self._check_order()
            own = [_nameless(event) for log in self._theirs.values() for event in log]
            super()._check_sends(own + self._listed)

    def _check_sends(self, listed: list[Event]) -> None:
        """Of calls that threads made, some stand in their own logs alone: checked once those are read."""
        self._listed = [_nameless(event) for event in listed]
        self.acknowledged = {name: _nameless(event) for name, event in self.acknowledged.items()}

    async def _check_threads(self) -> None:
        path = f"/v1/sessions/{self.id}/threads"
        listed = (await self.world.get(path, limit=100)).json()["data"]
        known = set(self.threads)
        self.threads = {one["id"]: one for one in listed if one["parent_thread_id"] is not None}
        assert known <= set(self.threads), "a thread is gone"
        for thread_id in self.threads:
            log = await self._log_of(f"{path}/{thread_id}/events")
            before = self._theirs.get(thread_id, [])
            assert log[: len(before)] == before, "an event of a thread changed or is gone"
            self._theirs[thread_id] = log
            _check_pairs_of(log)

    async def _log_of(self, path: str) -> list[Event]:
        found: list[Event] = []
        page: dict[str, str] = {}
        while True:
            answer = (await self.world.get(path, limit=1000, **page)).json()
            found += [event for event in answer["data"] if event["processed_at"] is not None]
            if not answer["next_page"]:
                return found
            page = {"page": answer["next_page"]}

    def _check_pairs(self) -> None:
        """The session's list shows calls of child threads whose answers stand in their own."""
        theirs = {event["id"] for event in self.log if event.get("session_thread_id") is not None}
        _check_pairs_of([one for one in self.log if not _of(one, theirs)])
        for at, event in enumerate(self.log):
            if event["type"] == "session.status_idle":
                assert self.log[at - 1]["type"] == "session.usage", "no usage right before an idle"

    async def _check_order(self) -> None:
        """By the log's own order: no thread works while the session is idle, and nothing is asked of a model
        from the pause at a budget until that is changed.
        """
        rows = await self.world.database.fetch(
            "select type, thread_id, body::text as body from events where session_id = %s order by seq",
            (self.id,),
        )
        working: set[str] = set()
        paused = False
        for row in rows:
            kind: str = row["type"]
            if kind.startswith(_THREAD_STATUS):
                thread = msgspec.json.decode(row["body"])["session_thread_id"]
                resting = kind.removeprefix(_THREAD_STATUS) in ("idle", "terminated")
                (working.discard if resting else working.add)(thread)
            elif kind == "session.status_idle":
                assert not working, f"the session is idle while {working} work"
                paused = msgspec.json.decode(row["body"])["stop_reason"]["type"] == "budget_reached"
            elif kind == "session.updated":
                paused = False
            elif kind == "span.model_request_start":
                assert not paused, "a model request was made after the budget was used up"

    def _moves_on(self, row: Row) -> bool:
        return {event["id"] for event in self.events()} != set(row.ids)

    def _may_wait(self) -> bool:
        return super()._may_wait() or self.paused or self.only_system_messages_wait()

    def only_system_messages_wait(self) -> bool:
        """Whether what waits goes with the next message, and starts nothing."""
        return all(event["type"] == "system.message" for event in self.waiting)


def _nameless(event: Event) -> Event:
    """Without the name of its thread, which only the session's list shows."""
    return {key: value for key, value in event.items() if key != "session_thread_id"}


def _of(event: Event, uses: set[Any]) -> bool:
    return event["id"] in uses or answered_by(event) in uses


def _check_pairs_of(log: list[Event]) -> None:
    """A thread's calls have one answer each, and all of them when a turn has ended."""
    uses: set[str] = set()
    answered: set[str] = set()
    for event in log:
        if event["type"] in TOOL_USES:
            uses.add(event["id"])
        elif (call := answered_by(event)) is not None:
            assert call in uses, "a result answers nothing"
            assert call not in answered, "a tool use has two results"
            answered.add(call)
        elif event["type"] == "session.thread_status_idle" and "session_thread_id" in event:
            continue
        elif event["type"] == "session.status_idle" and event["stop_reason"]["type"] == "end_turn":
            assert uses == answered, f"the turn ended with calls unanswered: {uses - answered}"
