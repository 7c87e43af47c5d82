"""The rules for what a client may send to a session (contract sections 10.2 and 10.3).

A batch is taken whole or not at all. Tool results enter the log at once; everything else waits as an input
until the brain takes it up. The rules are checked against the log as it was read, and the commit is made only
if the log is still that long, so nothing can slip in between; if it has grown, everything is checked anew.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from corral.session.commit import Commit, CommitRefused, Fence, NewInput, Wake
from corral.session.events import Event, Input, NewEvent, verdict_on
from corral.session.log import PostgresSessionLog, located
from corral.session.state import TOOL_USES
from corral.store.database import Database
from corral.wire.errors import InvalidRequest, NotFound, Overloaded
from corral.wire.events import (
    ClientEvent,
    SystemMessage,
    UserCustomToolResult,
    UserInterrupt,
    UserMessage,
    UserToolConfirmation,
    UserToolResult,
    persisted,
)
from corral.wire.ids import new_id
from corral.wire.models import supports_system_messages

_ATTEMPTS: Final = 50

_log = structlog.get_logger(__name__)


class SendAuthority(msgspec.Struct, frozen=True):
    """What the sender's credential allows beyond what anybody may send.

    ``runs_tools`` is true for the worker that holds the session's work item: on a cloud environment it alone
    reports tool results.
    """

    runs_tools: bool = False


class _View(msgspec.Struct, frozen=True):
    """What the rules need to know of the session."""

    session_id: str
    thread_id: str
    status: str
    seq: int
    last_input: int
    self_hosted: bool
    model: str
    stop_type: str | None
    uses: Mapping[str, Event]
    settled: Mapping[str, Event]
    """Events by what they resolve: results by tool use, verdicts by `verdict_on`."""
    waiting: Sequence[Input]


class Sending:
    """Takes client events into a session."""

    def __init__(self, database: Database, log: PostgresSessionLog) -> None:
        self._database = database
        self._log = log

    async def send(
        self, session_id: str, events: Sequence[ClientEvent], authority: SendAuthority
    ) -> list[bytes]:
        """Accept a batch; returns each event as the API shows it now, in the order of the request.

        Raises:
            NotFound: there is no such session.
            InvalidRequest: the batch breaks a rule; nothing of it was taken.
        """
        for _ in range(_ATTEMPTS):
            view = await self._view(session_id, events)
            batch = _Batch(view, authority)
            for index, event in enumerate(events):
                batch.add(event, f"events[{index}]")
            commit = batch.commit()
            if commit is None:
                return batch.shown([])
            try:
                committed = await self._log.commit(commit)
            except CommitRefused:
                continue
            return batch.shown(located(commit.events, committed))
        _log.error("a session changed faster than a client could send", session_id=session_id)
        raise Overloaded("the session is changing too fast; send again", retry_after=1.0)

    async def _view(self, session_id: str, events: Sequence[ClientEvent]) -> _View:
        row = await self._database.fetch_one(
            "select s.primary_thread_id, s.status, s.last_seq, s.last_input, e.config ->> 'type' as hosting,"
            " s.agent #>> '{model,id}' as model"
            " from sessions s join environments e on e.id = s.environment_id where s.id = %s",
            (session_id,),
        )
        if row is None:
            raise NotFound(f"session {session_id} not found")
        named = [name for event in events if (name := _named_call(event)) is not None]
        uses: dict[str, Event] = {}
        settled: dict[str, Event] = {}
        waiting: Sequence[Input] = ()
        stop_type = None
        if named:
            # The inputs before the log: one that is taken up between the two is seen twice, never missed.
            waiting = await self._log.inputs(session_id)
            uses, settled = await self._calls(session_id, named)
        if any(isinstance(event, SystemMessage) for event in events):
            stop_type = await self._stop_type(session_id)
        return _View(
            session_id=session_id,
            thread_id=row["primary_thread_id"],
            status=row["status"],
            seq=row["last_seq"],
            last_input=row["last_input"],
            self_hosted=row["hosting"] == "self_hosted",
            model=row["model"],
            stop_type=stop_type,
            uses=uses,
            settled=settled,
            waiting=waiting,
        )

    async def _calls(
        self, session_id: str, named: Sequence[str]
    ) -> tuple[dict[str, Event], dict[str, Event]]:
        found = await self._log.named_events(
            session_id, ids=named, resolves=[*named, *map(verdict_on, named)]
        )
        uses = {event.id: event for event, _ in found if event.type in TOOL_USES}
        settled = {resolves: event for event, resolves in found if resolves is not None}
        return uses, settled

    async def _stop_type(self, session_id: str) -> str | None:
        row = await self._database.fetch_one(
            "select body::text as body from events where session_id = %s and type in"
            " ('session.status_idle', 'session.status_running') order by seq desc limit 1",
            (session_id,),
        )
        return None if row is None else msgspec.json.decode(row["body"]).get("stop_reason", {}).get("type")


class _Batch:
    """One request's events as they are checked and sorted into log and queue."""

    def __init__(self, view: _View, authority: SendAuthority) -> None:
        self._view = view
        self._authority = authority
        self._events: list[NewEvent] = []
        self._inputs: list[NewInput] = []
        self._order: list[str | bytes] = []
        if view.status == "terminated":
            raise InvalidRequest("Cannot send events to an archived or terminated session.")

    def add(self, event: ClientEvent, path: str) -> None:
        match event:
            case UserMessage():
                self._queue(event)
            case UserInterrupt():
                thread = event.session_thread_id
                if thread is not None and thread != self._view.thread_id:
                    raise NotFound(f"{path}.session_thread_id: thread {thread} not found")
                self._queue(event)
            case UserToolConfirmation():
                self._confirm(event, path)
            case UserCustomToolResult():
                self._custom_result(event, path)
            case UserToolResult():
                self._tool_result(event, path)
            case SystemMessage():
                self._system(event, path)

    def commit(self) -> Commit | None:
        """The commit that takes the batch, or None if all of it had been taken before."""
        if not self._events and not self._inputs:
            return None
        fence = Fence(seq=self._view.seq, last_input=self._view.last_input)
        return Commit(
            self._view.session_id,
            fence,
            events=tuple(self._events),
            inputs=tuple(self._inputs),
            wake=Wake("rouse"),
        )

    def shown(self, events: Sequence[Event]) -> list[bytes]:
        wires = {event.id: event.wire() for event in events}
        for new in self._inputs:
            wires[new.id] = Input(0, new.id, new.type, new.thread_id, new.body).wire()
        return [entry if isinstance(entry, bytes) else wires[entry] for entry in self._order]

    def _queue(self, event: ClientEvent) -> None:
        body = persisted(event, new_id("sevt"))
        self._inputs.append(NewInput(body["id"], body["type"], self._view.thread_id, body))
        self._order.append(body["id"])

    def _append(self, body: dict[str, Any], resolves: str) -> None:
        kept = {name: value for name, value in body.items() if name not in ("id", "type")}
        self._events.append(NewEvent(body["id"], body["type"], self._view.thread_id, kept, resolves=resolves))
        self._order.append(body["id"])

    def _use(self, call_id: str, types: Sequence[str], path: str) -> Event:
        use = self._view.uses.get(call_id)
        if use is None or use.type not in types:
            raise InvalidRequest(f"{path}: no {' or '.join(types)} event with id {call_id} in this session")
        if any(event.resolves == call_id for event in self._events):
            raise InvalidRequest(f"{path}: {call_id} is answered twice in this request")
        return use

    def _repeated(self, body: dict[str, Any], resolves: str, path: str) -> bool:
        """True if the same answer was taken before (a client retries); another answer is refused."""
        before: Mapping[str, Any] | None = None
        shown = b""
        if (event := self._view.settled.get(resolves)) is not None:
            before, shown = event.body, event.wire()
        elif body["type"] == "user.tool_confirmation":
            for waiting in self._view.waiting:
                if waiting.type == body["type"] and waiting.body["tool_use_id"] == body["tool_use_id"]:
                    before, shown = waiting.body, waiting.wire()
        if before is None:
            return False
        differs = any(before.get(name) != value for name, value in body.items() if name not in ("id", "type"))
        if differs:
            raise InvalidRequest(f"{path}: this tool call has already been resolved")
        self._order.append(shown)
        return True

    def _confirm(self, event: UserToolConfirmation, path: str) -> None:
        where = f"{path}.tool_use_id"
        use = self._use(event.tool_use_id, ("agent.tool_use", "agent.mcp_tool_use"), where)
        body = persisted(event, new_id("sevt"))
        if use.body.get("evaluated_permission") != "ask":
            raise InvalidRequest(f"{where}: {use.id} does not wait for a confirmation")
        if self._repeated(body, verdict_on(use.id), where):
            return
        if use.id in self._view.settled or any(
            new.type == body["type"] and new.body["tool_use_id"] == use.id for new in self._inputs
        ):
            raise InvalidRequest(f"{where}: this tool call has already been resolved")
        self._inputs.append(NewInput(body["id"], body["type"], self._view.thread_id, body))
        self._order.append(body["id"])

    def _custom_result(self, event: UserCustomToolResult, path: str) -> None:
        where = f"{path}.custom_tool_use_id"
        use = self._use(event.custom_tool_use_id, ("agent.custom_tool_use",), where)
        body = persisted(event, new_id("sevt"))
        if not self._repeated(body, use.id, where):
            self._append(body, use.id)

    def _tool_result(self, event: UserToolResult, path: str) -> None:
        if not self._view.self_hosted and not self._authority.runs_tools:
            raise InvalidRequest(
                f"{path}.type: user.tool_result is only accepted for sessions on a self_hosted environment"
            )
        where = f"{path}.tool_use_id"
        use = self._use(event.tool_use_id, ("agent.tool_use",), where)
        body = persisted(event, new_id("sevt"))
        if not self._view.self_hosted:
            body["type"] = "agent.tool_result"
        if self._repeated(body, use.id, where):
            return
        if not self._may_run(use):
            raise InvalidRequest(f"{where}: {use.id} was not allowed to run")
        self._append(body, use.id)

    def _may_run(self, use: Event) -> bool:
        permission = use.body.get("evaluated_permission")
        if permission != "ask":
            return permission == "allow"
        verdict = self._view.settled.get(verdict_on(use.id))
        if verdict is not None:
            return verdict.body["result"] == "allow"
        return any(
            waiting.type == "user.tool_confirmation"
            and waiting.body["tool_use_id"] == use.id
            and waiting.body["result"] == "allow"
            for waiting in self._view.waiting
        )

    def _system(self, event: SystemMessage, path: str) -> None:
        if not supports_system_messages(self._view.model):
            raise InvalidRequest(
                f"{path}: model {self._view.model} does not support system messages in mid-conversation",
                error_code="model_does_not_support_mid_conversation_system",
            )
        if self._view.stop_type == "requires_action" and not self._events:
            raise InvalidRequest(
                f"{path}: while the session waits for tool results, a system.message must follow one of them"
            )
        self._queue(event)


def _named_call(event: ClientEvent) -> str | None:
    match event:
        case UserToolConfirmation() | UserToolResult():
            return event.tool_use_id
        case UserCustomToolResult():
            return event.custom_tool_use_id
        case _:
            return None
