"""A session of several threads, cut off after any commit, comes to the same end (docs/design/recovery.md)."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec

from corral.session.calls import TOOL_USES, Call
from corral.session.events import Event
from corral.session.sending import SendAuthority
from corral.session.state import SessionState, fold_all
from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.wire.events import ClientEvent
from tests.corral_server import Corral, running_corral
from tests.databases import CleanDatabases
from tests.e2e.coordinating import CUSTOM, coordinated, starts
from tests.e2e.recovery_scenario import Recording, Story, put_copy, put_environment, rows
from tests.e2e.test_recovery import check_rows

SECONDS = 150
REPORTS = {"one": "looked up", "two": "only said"}
SCRIPT: list[dict[str, Any]] = [
    {
        "thinking": "Two can do it.",
        "text": "shared out",
        "tools": [
            starts("one", {"tools": [{"name": "look_up", "input": {"what": "x"}}]}, {"text": REPORTS["one"]}),
            starts("two", {"thinking": "Easy.", "text": REPORTS["two"]}),
            {"name": "ant__list_agents", "input": {}},
        ],
    },
    {"text": "I wait"},
]


class Client:
    """Answers what the session waits for, from any thread; its `run` ends once all is done."""

    def __init__(self, corral: Corral, session_id: str) -> None:
        self.sessions = corral.services.sessions
        self.id = session_id
        self.events: list[Event] = []
        self.state = SessionState()

    async def run(self) -> None:
        async with aclosing(self.sessions.following.follow(self.id, ping_seconds=2)) as frames:
            async for _ in frames:
                if await self._act():
                    return

    async def _act(self) -> bool:
        waiting = await self.sessions.log.inputs(self.id)
        news = [event async for event in self.sessions.log.replay(self.id, after=self.state.seq)]
        self.events += news
        self.state = fold_all(self.state, news)
        for thread in self.state.threads.values():
            if thread.request is None and thread.calls:
                await self._answer(thread.calls[0])
                return False
        idle = bool(self.events) and self.state.status == "idle" and not waiting
        return idle and not any(thread.pending or thread.request for thread in self.state.threads.values())

    async def _answer(self, call: Call) -> None:
        content = [{"type": "text", "text": "found"}]
        event = {"type": "user.custom_tool_result", "custom_tool_use_id": call.id, "content": content}
        sent = msgspec.convert(event, ClientEvent)
        await self.sessions.sending.send(self.id, [sent], SendAuthority())


async def carried_on(corral: Corral, names: list[str]) -> dict[str, Client]:
    clients = {name: Client(corral, name) for name in names}
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(client.run() for client in clients.values()))
    return clients


def check(client: Client) -> None:
    """Every agent was started once and has reported once; every call has one result."""
    reports = [event for event in client.events if event.type == "agent.thread_message_received"]
    told = {
        event.body["from_agent_name"]: event.body["content"][0]["text"]
        for event in reports
        if "from_agent_name" in event.body
    }
    assert told == REPORTS, client.id
    assert len(reports) == 4
    assert len([event for event in client.events if event.type == "session.thread_created"]) == 2
    assert list(Story.of(client.events).calls.values()) == ["found"]
    assert not [
        event
        for event in client.events
        if event.type in TOOL_USES and event.thread_id == client.state.primary
    ]
    assert client.events[-1].type == "session.status_idle"


async def test_cut_off_after_any_commit_all_threads_are_carried_on(
    database_url: str, model: ScriptedModel, clean_databases: CleanDatabases
) -> None:
    async with running_corral(database_url, model) as corral:
        session = await coordinated(corral, "one", "two", tools=[CUSTOM])
        await session.says("go", script=SCRIPT)
        check((await carried_on(corral, [session.id]))[session.id])
        recording = await Recording.of(corral.database, session.id)
    fresh = clean_databases.take()
    cuts: dict[str, int] = {}
    async with Database(fresh) as database:
        await put_environment(database, recording)
        for cut in recording.boundaries:
            name = f"sesn_cut{cut:04}"
            cuts[name] = cut
            inputs = [] if cut else [event for event in recording.events if event["type"] == "user.message"]
            await put_copy(database, recording, name, cut, inputs)
    assert len(cuts) > 10
    async with running_corral(fresh, model) as corral:
        clients = await carried_on(corral, list(cuts))
        for name, client in clients.items():
            check(client)
            await check_rows(corral.database, name)
            kept = await rows(corral.database, name)
            assert kept[: cuts[name]] == recording.events[: cuts[name]], name
    clean_databases.give_back(fresh)
