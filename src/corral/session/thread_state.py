"""The state of one thread, folded from its events. `corral.session.state` holds a session's threads.

Every session has its primary thread; the threads of its subagents are the others (contract section 11). What
is of the whole session, its status among others, is not here.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from corral.session.calls import TOOL_RESULTS, TOOL_USES, Call, Permission
from corral.session.events import Event
from corral.wire.web_rules import WEB_TOOLS

Status = Literal["idle", "running", "rescheduling", "terminated"]
Ending = Literal["end_turn", "refusal", "retries_exhausted"]


class Usage(msgspec.Struct, frozen=True):
    """What finished model requests used. Cost is in billionths of a US dollar."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0
    cost_nanodollars: int = 0
    web_search_requests: int = 0
    unpriced_requests: int = 0
    """Requests that no list price is known for: their cost is in no sum."""

    def plus(self, private: Mapping[str, Any]) -> "Usage":
        """The total after one more request, whose counts a request's end keeps in its private part."""
        if not private:
            return self
        return Usage(*(getattr(self, name) + int(private.get(name) or 0) for name in self.__struct_fields__))


class ThreadState(msgspec.Struct, frozen=True):
    """What a brain must know of a thread to decide, and no more."""

    id: str
    parent: str | None = None
    """The thread that made this one; None for the primary."""
    agent: dict[str, Any] | None = None
    """The agent as it was when the thread was made; None for the primary, whose agent is the session's."""
    status: Status = "idle"
    stop_type: str | None = None
    announced: tuple[str, ...] = ()
    """The calls that the last idle event named as waiting for the client."""
    request: str | None = None
    """The id of the model request's start event while it has no end."""
    calls: tuple[Call, ...] = ()
    pending: bool = False
    """True while the log holds something that the model has yet to answer."""
    interrupted: bool = False
    """True from an interrupt of the whole session until this thread, which was busy, has stopped."""
    ending: Ending | None = None
    """How the last response ended the turn; None while the turn goes on."""
    stop_details: dict[str, Any] | None = None
    failures: int = 0
    """Model requests that failed in a row."""
    retry_at: datetime | None = None
    rounds: int = 0
    """Model requests completed in this turn."""
    truncations: int = 0
    """Responses in a row that were cut off at the output limit."""
    context: int = 0
    """Tokens of the last request and its answer, as the provider counts them; 0 where they are not known."""
    overflowed: bool = False
    """True from a request that was too long for the model until the context has been compacted."""
    compactions: int = 0
    """Compactions in a row, without an answer of the model's between them."""
    usage: Usage = Usage()
    running_since: datetime | None = None
    active: int = 0
    """Microseconds of running up to the last stop."""
    mcp_failed: tuple[str, ...] = ()
    """The MCP servers whose tools could not be listed since the thread last began to run."""
    said: tuple[str, ...] = ()
    """The texts of a child's last response, which become its report."""

    @property
    def name(self) -> str:
        """The name of a child's agent."""
        return "" if self.agent is None else str(self.agent["name"])

    @property
    def live(self) -> bool:
        """Whether the thread may still work."""
        return self.status != "terminated"

    @property
    def busy(self) -> bool:
        """Whether there is something that an interrupt would stop."""
        return self.live and (self.status != "idle" or bool(self.calls) or self.pending)


def active_micros(since: datetime | None, before: int, now: datetime) -> int:
    """Microseconds of running up to `now`: `before` until the last stop, and from `since` on if it runs."""
    return before if since is None else before + max(0, (now - since) // timedelta(microseconds=1))


def used_anew(state: ThreadState) -> ThreadState:
    """The thread's state with what it used counted from here."""
    return msgspec.structs.replace(state, usage=Usage(), active=0, running_since=None)


def fold_thread(state: ThreadState, event: Event, *, awaits: bool | None = None) -> ThreadState:
    """The thread's state after an event of it.

    `awaits`: None if it works on no outcome, else whether that has come in without any turn having seen it.
    """
    changes = _changes(state, event, awaits)
    return msgspec.structs.replace(state, **changes) if changes else state


def _changes(state: ThreadState, event: Event, awaits: bool | None) -> dict[str, Any]:
    kind = event.type
    if kind in TOOL_USES:
        return _tool_use(state, event)
    if kind in TOOL_RESULTS:
        answered = event.body[TOOL_RESULTS[kind]]
        # What a search has cost stands with its result.
        used = state.usage.plus((event.private or {}).get("usage") or {})
        calls = tuple(call for call in state.calls if call.id != answered)
        return {"calls": calls, "pending": True, "usage": used}
    match kind:
        case "user.message" | "system.message" | "user.define_outcome" | "agent.thread_message_received":
            return {"pending": True} if state.live else {}
        case "agent.message" if state.parent is not None:
            return {"said": tuple(block["text"] for block in event.body["content"] if "text" in block)}
        case "user.interrupt":
            return {"pending": False, "ending": "end_turn" if state.status != "idle" else state.ending}
        case "user.tool_confirmation":
            return _verdict(state, event)
        case "span.model_request_start" if (event.private or {}).get("purpose") == COMPACTION:
            return {"request": event.id}
        case "agent.thread_context_compacted":
            return {"context": 0, "overflowed": False}
        case "span.model_request_start":
            return {"request": event.id, "pending": False, "ending": None, "said": ()}
        case "span.model_request_end":
            return _request_end(state, event)
        case "span.outcome_evaluation_ongoing" | "span.outcome_evaluation_end":
            return _graded(state, event)
        case "session.error":
            exhausted = event.body["error"]["retry_status"]["type"] == "exhausted"
            ends = exhausted and event.body["error"]["type"] not in _HARMLESS_ERRORS
            if (event.private or {}).get("listing"):
                return {"mcp_failed": (*state.mcp_failed, event.body["error"]["mcp_server_name"])}
            return {"ending": "retries_exhausted", "pending": False} if ends else {}
        case _:
            return _status(state, event, awaits)


TOLD_RESULTS: Final = frozenset({"needs_revision", "max_iterations_reached"})
"""The verdicts on an outcome after which the agent has a turn: to revise its work, or to acknowledge."""

COMPACTION: Final = "compaction"
"""The purpose of a model request that sums up the conversation, and how such a one ends."""

_HARMLESS_ERRORS: Final = frozenset({"mcp_connection_failed_error", "mcp_authentication_failed_error"})
"""Errors after which the session runs on, without the server concerned (contract section 5.3)."""


def _tool_use(state: ThreadState, event: Event) -> dict[str, Any]:
    permission: Permission = event.body.get("evaluated_permission", "allow")
    decided: Mapping[str, Any] = (event.private or {}).get("policy") or {}
    is_web = event.type == "agent.tool_use" and event.body["name"] in WEB_TOOLS
    call = Call(
        event.id,
        "web" if is_web else TOOL_USES[event.type],
        event.body["name"],
        permission,
        server_name=event.body.get("mcp_server_name"),
        told=decided.get("told"),
    )
    return {"calls": (*state.calls, call)}


def _verdict(state: ThreadState, event: Event) -> dict[str, Any]:
    def judged(call: Call) -> Call:
        if call.id != event.body["tool_use_id"]:
            return call
        return msgspec.structs.replace(
            call, verdict=event.body["result"], deny_message=event.body.get("deny_message")
        )

    return {"calls": tuple(map(judged, state.calls))}


def _request_end(state: ThreadState, event: Event) -> dict[str, Any]:
    private: dict[str, Any] = dict(event.private or {})
    used = {"request": None, "usage": state.usage.plus(private.get("usage") or {})}
    match private.get("outcome"):
        case "interrupted":
            return used
        case "completed":
            grown = {"context": _context(private), "compactions": 0}
            return {**used, "failures": 0, "rounds": state.rounds + 1, **grown, **_completed(state, private)}
        case "compaction":
            return {**used, "failures": 0, "compactions": state.compactions + 1}
        case "overflow":
            # A summary is made of less in the next attempt; what was to be answered still is.
            of_summary = private.get("purpose") == COMPACTION
            tried = {"compactions": state.compactions + 1} if of_summary else {"pending": True}
            return {**used, "overflowed": True, **tried}
        case _:  # failed, or its brain died
            return {**used, "failures": state.failures + 1, "pending": True}


def _context(private: Mapping[str, Any]) -> int:
    used: Mapping[str, Any] = private.get("usage") or {}
    # What the judging of its calls has used is beside the conversation.
    beside: Mapping[str, Any] = private.get("judging") or {}
    tokens = (name for name in used if name.endswith(("input_tokens", "output_tokens")))
    return sum(int(used[name]) - int(beside.get(name) or 0) for name in tokens)


def _completed(state: ThreadState, private: dict[str, Any]) -> dict[str, Any]:
    if private.get("stop_reason") == "refusal":
        return {"ending": "refusal", "stop_details": private.get("stop_details"), "truncations": 0}
    # Calls that the brain has answered without an event of their own: the model is to see the answers.
    answered: dict[str, Any] = {"pending": True} if private.get("answered") else {}
    if state.calls or answered:
        return {"truncations": 0, **answered}
    match private.get("stop_reason"):
        case "max_tokens":
            return {"pending": True, "truncations": state.truncations + 1}
        case "model_context_window_exceeded":
            return {"pending": True, "truncations": state.truncations + 1, "overflowed": True}
        case "pause_turn":
            return {"pending": True, "truncations": 0}
        case _:
            return {"ending": "end_turn", "truncations": 0}


def _status(state: ThreadState, event: Event, awaits: bool | None) -> dict[str, Any]:
    match event.type:
        case "session.thread_status_running":
            return {
                "status": "running",
                "running_since": event.processed_at,
                "retry_at": None,
                "stop_type": None,
                "stop_details": None,
                "announced": (),
                **({"mcp_failed": ()} if state.status == "idle" else {}),
            }
        case "session.thread_status_idle":
            stop = event.body["stop_reason"]
            held = stop["type"] == "budget_reached"
            waits = stop["type"] == "requires_action" or (held and state.pending)
            return {
                **_stopped_running(state, event),
                "status": "idle",
                "stop_type": stop["type"],
                "announced": tuple(stop.get("event_ids", ())),
                "interrupted": False,
                # What an outcome asked for is done and yet to be judged, whatever keeps it from that now.
                "ending": "end_turn" if awaits is False and state.ending == "end_turn" else None,
                # An outcome that came in while the turn was ending has a turn of its own.
                **({} if waits else {"pending": bool(awaits), **_TURN_OVER}),
            }
        case "session.thread_status_rescheduled":
            return {**_stopped_running(state, event), "status": "rescheduling", **_retry(event)}
        case "session.status_rescheduled":
            return _retry(event)
        case "session.thread_status_terminated" | "session.status_terminated":
            stopped = {"calls": (), "pending": False, "interrupted": False}
            return {**_stopped_running(state, event), "status": "terminated", **stopped}
        case _:
            return {}


_TURN_OVER: Final = {"failures": 0, "truncations": 0, "rounds": 0, "compactions": 0}


def _graded(state: ThreadState, event: Event) -> dict[str, Any]:
    """After a step of an evaluation: what it used, and whether the agent has to hear of a verdict."""
    used = state.usage.plus((event.private or {}).get("usage") or {})
    told = {"pending": True, **_TURN_OVER} if event.body.get("result") in TOLD_RESULTS else {}
    return {"usage": used, **told}


def _retry(event: Event) -> dict[str, Any]:
    retry_at = (event.private or {}).get("retry_at")
    return {} if retry_at is None else {"retry_at": datetime.fromisoformat(retry_at)}


def _stopped_running(state: ThreadState, event: Event) -> dict[str, Any]:
    active = active_micros(state.running_since, state.active, event.processed_at)
    return {"running_since": None, "active": active}
