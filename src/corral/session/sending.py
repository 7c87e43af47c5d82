"""The rules for what a client may send to a session (contract sections 10.2 and 10.3).

A batch is taken whole or not at all. Tool results enter the log at once; everything else waits as an input
until the brain takes it up. The rules are checked against the log as it was read, and the commit is made only
if the log is still that long, so nothing can slip in between; if it has grown, everything is checked anew.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from corral.session.budget import SESSION_HOUR
from corral.session.commit import Commit, CommitRefused, Fence, NewInput, Wake
from corral.session.crossposting import NAMED, marked
from corral.session.events import Event, Input, NewEvent, verdict_on
from corral.session.log import PostgresSessionLog, located
from corral.session.sending_view import View, Views
from corral.session.spending import SETTLING, Spending
from corral.store.database import Database
from corral.wire.errors import InvalidRequest, NotFound, Overloaded
from corral.wire.events import (
    ClientEvent,
    DefineOutcome,
    SystemMessage,
    UserCustomToolResult,
    UserInterrupt,
    UserMessage,
    UserToolConfirmation,
    UserToolResult,
    event_type,
    persisted,
)
from corral.wire.ids import new_id
from corral.wire.models import supports_system_messages
from corral.wire.web_rules import WEB_TOOLS

_ATTEMPTS: Final = 50
_log = structlog.get_logger(__name__)


class SendAuthority(msgspec.Struct, frozen=True):
    """What the sender's credential allows beyond what anybody may send.

    ``runs_tools`` is true for the worker that holds the session's work item: on a cloud environment it alone
    reports tool results.
    """

    runs_tools: bool = False


class Sending:
    """Takes client events into a session."""

    def __init__(self, database: Database, log: PostgresSessionLog, session_hour: int = SESSION_HOUR) -> None:
        self._log = log
        self._views = Views(database, log, session_hour)

    async def send(
        self, session_id: str, events: Sequence[ClientEvent], authority: SendAuthority
    ) -> list[bytes]:
        """Accept a batch; returns each event as the API shows it now, in the order of the request.

        Raises:
            NotFound: there is no such session.
            InvalidRequest: the batch breaks a rule; nothing of it was taken.
        """
        for _ in range(_ATTEMPTS):
            view = await self._views.read(session_id, events)
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


class _Batch:
    """One request's events as they are checked and sorted into log and queue."""

    def __init__(self, view: View, authority: SendAuthority) -> None:
        self._view = view
        self._authority = authority
        self._events: list[NewEvent] = []
        self._inputs: list[NewInput] = []
        self._order: list[str | bytes] = []
        self._answers = False
        """Whether the request has a tool result, be it one that was taken before."""
        if view.status == "terminated":
            raise InvalidRequest("Cannot send events to an archived or terminated session.")

    def add(self, event: ClientEvent, path: str) -> None:
        if self._view.spending is not None:
            self._check_budget(self._view.spending, event, path)
        match event:
            case UserMessage():
                self._queue(event)
            case UserInterrupt():
                thread = self._thread_to_stop(event, path)
                if self._view.spending is not None and self._view.spending.paused:
                    self._ignore(event)
                else:
                    self._queue(event, thread)
            case UserToolConfirmation():
                self._confirm(event, path)
            case UserCustomToolResult():
                self._custom_result(event, path)
            case UserToolResult():
                self._tool_result(event, path)
            case SystemMessage():
                self._system(event, path)
            case DefineOutcome():
                self._outcome(event, path)

    def commit(self) -> Commit | None:
        """The commit that takes the batch, or None if all of it had been taken before."""
        if not self._events and not self._inputs:
            return None
        fence = Fence(seq=self._view.seq, last_input=self._view.last_input)
        return Commit(
            self._view.session_id,
            fence,
            events=marked(self._events, self._view.thread_id, self_hosted=self._view.self_hosted),
            inputs=tuple(self._inputs),
            wake=Wake("rouse"),
        )

    def shown(self, events: Sequence[Event]) -> list[bytes]:
        wires = {event.id: self._wire(event) for event in events}
        for new in self._inputs:
            wires[new.id] = self._wire(Input(0, new.id, new.type, new.thread_id, new.body))
        return [entry if isinstance(entry, bytes) else wires[entry] for entry in self._order]

    def _wire(self, event: Event | Input) -> bytes:
        """An event as the session shows it: one of another thread says of which."""
        if event.thread_id == self._view.thread_id or event.type not in NAMED:
            return event.wire()
        named = {**event.body, "session_thread_id": event.thread_id}
        return msgspec.structs.replace(event, body=named).wire()

    def _check_budget(self, spending: Spending, event: ClientEvent, path: str) -> None:
        """Refuse what starts new work once the budget is used up (contract section 8.6)."""
        if spending.reached and event_type(event) not in SETTLING:
            raise InvalidRequest(
                f"{path}: the session has reached its budget. Until that is raised or removed, the session "
                f"accepts only {', '.join(SETTLING[:-1])} and {SETTLING[-1]}."
            )

    def _ignore(self, event: ClientEvent) -> None:
        """Accept an event that changes nothing and is not kept."""
        body = persisted(event, new_id("sevt"))
        self._order.append(Input(0, body["id"], body["type"], self._view.thread_id, body).wire())

    def _thread_to_stop(self, event: UserInterrupt, path: str) -> str:
        """The thread on which an interrupt is taken up: that which it names, or the primary for all."""
        thread = event.session_thread_id
        if thread is None or thread == self._view.thread_id:
            return self._view.thread_id
        status = self._view.threads.get(thread)
        if status is None:
            raise NotFound(f"{path}.session_thread_id: thread {thread} not found")
        if status == "terminated":
            raise InvalidRequest(f"{path}.session_thread_id: thread {thread} has ended")
        return thread

    def _queue(self, event: ClientEvent, thread_id: str | None = None) -> None:
        body = persisted(event, new_id("sevt"))
        self._inputs.append(NewInput(body["id"], body["type"], thread_id or self._view.thread_id, body))
        self._order.append(body["id"])

    def _append(self, body: dict[str, Any], resolves: str | None, thread_id: str | None = None) -> None:
        kept = {name: value for name, value in body.items() if name not in ("id", "type")}
        thread = thread_id or self._view.thread_id
        self._events.append(NewEvent(body["id"], body["type"], thread, kept, resolves=resolves))
        self._order.append(body["id"])

    def _use(self, call_id: str, types: Sequence[str], path: str) -> Event:
        use = self._view.uses.get(call_id)
        if use is None or use.type not in types:
            raise InvalidRequest(f"{path}: no {' or '.join(types)} event with id {call_id} in this session")
        if any(event.resolves == call_id for event in self._events):
            raise InvalidRequest(f"{path}: {call_id} is answered twice in this request")
        if self._view.threads.get(use.thread_id) == "terminated" and call_id not in self._view.settled:
            raise InvalidRequest(f"{path}: the thread of {call_id} has ended; nobody waits for an answer")
        return use

    def _repeated(self, body: dict[str, Any], resolves: str, path: str) -> bool:
        """True if the same answer was taken before (a client retries); another answer is refused."""
        before: Mapping[str, Any] | None = None
        shown = b""
        if (event := self._view.settled.get(resolves)) is not None:
            before, shown = event.body, self._wire(event)
        elif body["type"] == "user.tool_confirmation":
            for waiting in self._view.waiting:
                if waiting.type == body["type"] and waiting.body["tool_use_id"] == body["tool_use_id"]:
                    before, shown = waiting.body, self._wire(waiting)
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
        self._inputs.append(NewInput(body["id"], body["type"], use.thread_id, body))
        self._order.append(body["id"])

    def _custom_result(self, event: UserCustomToolResult, path: str) -> None:
        where = f"{path}.custom_tool_use_id"
        use = self._use(event.custom_tool_use_id, ("agent.custom_tool_use",), where)
        self._answers = True
        body = persisted(event, new_id("sevt"))
        if not self._repeated(body, use.id, where):
            self._append(body, use.id, use.thread_id)

    def _tool_result(self, event: UserToolResult, path: str) -> None:
        if not self._view.self_hosted and not self._authority.runs_tools:
            raise InvalidRequest(
                f"{path}.type: user.tool_result is only accepted for sessions on a self_hosted environment"
            )
        where = f"{path}.tool_use_id"
        use = self._use(event.tool_use_id, ("agent.tool_use",), where)
        if use.body["name"] in WEB_TOOLS:
            raise InvalidRequest(f"{where}: {use.id} is a call of {use.body['name']}, which the server runs")
        body = persisted(event, new_id("sevt"))
        self._answers = True
        if not self._view.self_hosted:
            body["type"] = "agent.tool_result"
        if self._repeated(body, use.id, where):
            return
        if not self._may_run(use):
            raise InvalidRequest(f"{where}: {use.id} was not allowed to run")
        self._append(body, use.id, use.thread_id)

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
            for waiting in (*self._view.waiting, *self._inputs)
        )

    def _outcome(self, event: DefineOutcome, path: str) -> None:
        if self._view.outcome_active:
            raise InvalidRequest(
                f"{path}: another outcome is being worked on; send this one after its last "
                "span.outcome_evaluation_end, or interrupt it"
            )
        body = persisted(event, new_id("sevt"))
        self._append(body, None)

    def _system(self, event: SystemMessage, path: str) -> None:
        if not supports_system_messages(self._view.model):
            raise InvalidRequest(
                f"{path}: model {self._view.model} does not support system messages in mid-conversation",
                error_code="model_does_not_support_mid_conversation_system",
            )
        if self._view.stop_type == "requires_action" and not self._answers:
            raise InvalidRequest(
                f"{path}: while the session waits for tool results, a system.message must follow one of them"
            )
        self._queue(event)
