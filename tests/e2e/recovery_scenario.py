"""One session with every kind of step, a client that can carry it on from anywhere, and copies of it cut off
at any event.

The client keeps nothing in mind: what it does next follows from the log alone, as it does for a brain. So the
same client brings the session and every cut copy of it to the same end.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from corral.session.calls import TOOL_RESULTS, TOOL_USES, Call
from corral.session.events import Event
from corral.session.sending import SendAuthority
from corral.session.service import Sessions
from corral.session.state import SessionState, fold_all
from corral.session.thread_state import ThreadState
from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.wire.events import ClientEvent

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "agent_toolset_20260401",
        "configs": [{"name": "read", "permission_policy": {"type": "always_ask"}}],
    },
    {
        "type": "custom",
        "name": "look_up",
        "description": "Looks something up.",
        "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
]


def _look_up(what: str) -> dict[str, Any]:
    return {"name": "look_up", "input": {"what": what}}


def _bash(command: str) -> dict[str, Any]:
    return {"name": "bash", "input": {"command": command}}


def _read(path: str) -> dict[str, Any]:
    return {"name": "read", "input": {"file_path": path}}


TURNS: Final[list[list[dict[str, Any]]]] = [
    [{"thinking": "A greeting\u0000 …", "text": "hello \u0000 there"}],
    [
        {"thinking": "Two at once.", "tools": [_look_up("one"), _look_up("two")]},
        {"text": "found {result}"},
    ],
    [
        {"tools": [_read("allowed"), _read("denied"), _look_up("three")]},
        {"thinking": "Now run.", "text": "running", "tools": [_bash("a"), _bash("b")]},
        {"tools": [_bash("c"), _look_up("four")]},
        {"text": "ran {result}"},
    ],
    [{"text": "at the second attempt", "error": {"status": 529, "times": 1}}],
    [{"text": "no", "refusal": {"category": "cyber", "explanation": "x"}}],
    [{"text": "never finished", "hold": "interrupted", "hold_at": "mid"}],
    [{"text": "before the steering", "hold": "steered"}, {"text": "after the steering"}],
    [{"tools": [_look_up("nothing more")]}, {"text": "the end"}],
    [{"tools": [_look_up("too much")], "usage": {"input_tokens": 170_000}}, {"text": "never played"}],
    [{"text": "gone on from the notes"}],
]
"""What the model plays in each turn."""
INTERRUPTED: Final = 5
STEERED: Final = 6
STEERING: Final = "and mind this"


def sums_up(model: ScriptedModel) -> None:
    """Has the model write its notes when a conversation is compacted, and go on from them."""
    after = model.script("after", [{"text": "all in the notes"}])
    model.rule(if_text_contains="Write the notes from which you", text=f"what there was\n{after}")


def opening(turn: int) -> str:
    """The user's message that opens a turn."""
    return f"turn {turn}\nscript: {msgspec.json.encode(TURNS[turn]).decode()}"


@dataclass
class Client:
    """The user and the worker of one session; `run` returns once every turn is over."""

    sessions: Sessions
    model: ScriptedModel
    session_id: str
    since: int = 0
    """Requests that were begun before this event have nobody who makes them."""
    state: SessionState = field(default_factory=SessionState)
    events: list[Event] = field(default_factory=list[Event])

    async def run(self) -> None:
        """Answer whatever the session waits for until there is nothing left to do."""
        async with aclosing(self.sessions.following.follow(self.session_id, ping_seconds=2)) as frames:
            async for _ in frames:
                if await self._act():
                    return

    async def _act(self) -> bool:
        # The queue before the log: what is taken up in between is seen twice, never missed.
        waiting = await self.sessions.log.inputs(self.session_id)
        news = [event async for event in self.sessions.log.replay(self.session_id, after=self.state.seq)]
        self.events += news
        self.state = fold_all(self.state, news)
        if call := self._open_call([entry.body.get("tool_use_id", "") for entry in waiting]):
            await self._answer(call)
        elif not waiting:
            return await self._speak()
        return False

    def _open_call(self, judged: Sequence[str]) -> Call | None:
        if self.state.lead.request is not None:
            return None
        return next(
            (call for call in self.state.lead.calls if call.id not in judged and not call.denied), None
        )

    async def _answer(self, call: Call) -> None:
        use = next(event for event in self.events if event.id == call.id)
        content = [{"type": "text", "text": f"result of {msgspec.json.encode(use.body['input']).decode()}"}]
        if call.kind == "custom":
            await self._send(type="user.custom_tool_result", custom_tool_use_id=call.id, content=content)
        elif call.runnable:
            await self._send(type="user.tool_result", tool_use_id=call.id, content=content)
        else:
            verdict = "allow" if use.body["input"]["file_path"] == "allowed" else "deny"
            await self._send(type="user.tool_confirmation", tool_use_id=call.id, result=verdict)

    async def _speak(self) -> bool:
        said = [event.body["content"][0]["text"] for event in self.events if event.type == "user.message"]
        turn = sum(text.startswith("turn ") for text in said) - 1
        resting = (
            self.state.status == "idle" and self.state.lead.request is None and not self.state.lead.pending
        )
        begun = {event.id: event.seq for event in self.events}.get(self.state.lead.request or "", 0)
        if turn == STEERED and STEERING not in said and (resting or begun > self.since):
            await self._say(STEERING)
            self.model.release("steered")
        elif turn == INTERRUPTED and self.state.lead.request is not None:
            await self._send(type="user.interrupt")
        elif resting and turn + 1 < len(TURNS):
            await self._say(opening(turn + 1))
        else:
            return resting
        return False

    async def _say(self, text: str) -> None:
        await self._send(type="user.message", content=[{"type": "text", "text": text}])

    async def _send(self, **event: Any) -> None:
        sent = msgspec.convert(event, ClientEvent)
        await self.sessions.sending.send(self.session_id, [sent], SendAuthority(runs_tools=True))


@dataclass(frozen=True)
class Recording:
    """A session as its database held it at the end."""

    environment: dict[str, Any]
    session: dict[str, Any]
    events: list[dict[str, Any]]

    @classmethod
    async def of(cls, database: Database, session_id: str) -> "Recording":
        """Read a session's rows, JSON as text."""
        session = await database.fetch_one(
            "select environment_id, agent_id, agent_version, agent::text as agent, primary_thread_id,"
            " usage::text as usage from sessions where id = %s",
            (session_id,),
        )
        assert session is not None
        environment = await database.fetch_one(
            "select id, name, config::text as config from environments where id = %s",
            (session["environment_id"],),
        )
        assert environment is not None
        return cls(environment, session, await rows(database, session_id))

    @property
    def boundaries(self) -> list[int]:
        """The log's lengths after each commit, 0 among them: the events of a commit share their time."""
        times = [event["processed_at"] for event in self.events]
        return [0, *(n for n in range(1, len(times) + 1) if n == len(times) or times[n] != times[n - 1])]

    def taken_after(self, cut: int) -> list[dict[str, Any]]:
        """The client's events that the commit after `cut` took from the queue."""
        following = [
            event for event in self.events[cut:] if event["processed_at"] == self.events[cut]["processed_at"]
        ]
        return [event for event in following if event["type"] in QUEUED]


QUEUED: Final = ("user.message", "user.interrupt", "user.tool_confirmation")


async def rows(database: Database, session_id: str) -> list[dict[str, Any]]:
    """A session's events as they are stored."""
    return await database.fetch(
        "select seq, id, thread_id, type, body::text as body, private::text as private, resolves,"
        " processed_at, crossposted from events where session_id = %s order by seq",
        (session_id,),
    )


async def put_environment(database: Database, recording: Recording) -> None:
    """The row that the copies' sessions refer to."""
    await database.execute(
        "insert into environments (id, name, config) values (%(id)s, %(name)s, %(config)s)",
        recording.environment,
    )


async def put_copy(
    database: Database, recording: Recording, session_id: str, cut: int, inputs: Sequence[dict[str, Any]]
) -> None:
    """The recorded session as if every process had died when its log was `cut` events long.

    `inputs` are the client's events that wait for a brain.
    """
    prefix = recording.events[:cut]
    state = fold_all(SessionState(), map(_event, prefix))
    taken = sum(event["type"] in QUEUED for event in prefix)
    async with database.transaction() as connection:
        await connection.execute(
            "insert into sessions (id, environment_id, agent_id, agent_version, agent, primary_thread_id,"
            " usage, status, last_seq, last_input, epoch, last_event_at) values (%(id)s, %(environment_id)s,"
            " %(agent_id)s, %(agent_version)s, %(agent)s, %(primary_thread_id)s, %(usage)s, %(status)s,"
            " %(last_seq)s, %(last_input)s, 7, coalesce(%(at)s, now()))",
            {
                **recording.session,
                "id": session_id,
                "status": state.status,
                "last_seq": cut,
                "last_input": taken + len(inputs),
                "at": prefix[-1]["processed_at"] if prefix else None,
            },
        )
        async with connection.cursor() as cursor:
            await cursor.executemany(
                "insert into events (session_id, seq, id, thread_id, type, body, private, resolves,"
                " processed_at, crossposted) values (%(session)s, %(seq)s, %(id)s, %(thread_id)s, %(type)s,"
                " %(body)s, %(private)s, %(resolves)s, %(processed_at)s, %(crossposted)s)",
                [{**event, "session": session_id} for event in prefix],
            )
            await cursor.executemany(
                "insert into inputs (session_id, position, id, thread_id, type, body) values (%(session)s,"
                " %(position)s, %(id)s, %(thread_id)s, %(type)s, %(body)s)",
                [
                    {**event, "session": session_id, "position": taken + n}
                    for n, event in enumerate(inputs, 1)
                ],
            )
            if len(state.threads) > 1:
                await cursor.executemany(
                    "insert into threads (session_id, id, parent_thread_id, agent, status, running_since,"
                    " created_at, updated_at) values (%s, %s, %s, %s, %s, %s, now(), now())",
                    [_thread(session_id, thread) for thread in state.threads.values()],
                )
        await connection.execute("insert into wakes (session_id) values (%s)", (session_id,))


def _thread(session_id: str, thread: ThreadState) -> tuple[Any, ...]:
    agent = None if thread.agent is None else msgspec.json.encode(thread.agent).decode()
    return session_id, thread.id, thread.parent, agent, thread.status, thread.running_since


def _event(row: dict[str, Any]) -> Event:
    private = row["private"]
    return Event(
        row["seq"],
        row["id"],
        row["type"],
        row["thread_id"],
        msgspec.json.decode(row["body"]),
        row["processed_at"],
        None if private is None else msgspec.json.decode(private),
    )


@dataclass(frozen=True)
class Story:
    """What a log tells, apart from ids, times and how often a request had to be made."""

    said: list[str]
    answers: list[str]
    calls: dict[str, str]
    """The result of each call, by the tool's name and input."""

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Story":
        """The story of a whole log; fails if a call has no result or two."""
        uses = {event.id: event for event in events if event.type in TOOL_USES}
        results = [event for event in events if event.type in TOOL_RESULTS]
        answered = [result.body[TOOL_RESULTS[result.type]] for result in results]
        assert sorted(answered) == sorted(uses), "a call without a result, or with two"
        calls = {
            f"{uses[call].body['name']} {uses[call].body['input']}": result.body["content"][0]["text"]
            for call, result in zip(answered, results, strict=True)
        }
        return cls(_texts(events, "user.message"), _texts(events, "agent.message"), calls)


def _texts(events: Sequence[Event], kind: str) -> list[str]:
    return [event.body["content"][0]["text"] for event in events if event.type == kind]
