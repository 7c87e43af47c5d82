"""Which sandbox calls a session's events leave to be run: a fold, without any I/O.

Fed with the history and then with what is streamed, in any mixture: an event that is noted twice changes
nothing. Nothing here waits, runs or sends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, cast

from corral.hands.worker.events import SeenEvent

#: The tools that run in a sandbox; every other name belongs to somebody else.
SANDBOX_TOOLS: Final = frozenset({"bash", "read", "write", "edit", "glob", "grep"})

# Neither activity nor an idle (contract section 12.4); a new title is none either.
_NEUTRAL: Final = frozenset({"user.tool_confirmation", "session.thread_status_terminated", "session.updated"})
_OVER: Final = frozenset({"session.status_terminated", "session.deleted"})


class Verdict(Enum):
    """What is to be done with a call."""

    RUN = auto()
    HOLD = auto()
    """Wait for the user's confirmation."""
    DROP = auto()
    """Answered, denied, or of a thread that has ended: neither run it nor post anything."""


class Cut(Enum):
    """Why a call in hand must not go on."""

    ANSWERED = auto()
    """It has its result already, by whomever."""
    INTERRUPTED = auto()
    """The user interrupted the turn."""
    THREAD_ENDED = auto()
    """Its thread takes no result any more."""
    STOPPED = auto()
    """The server wants the work item back."""
    SHUTDOWN = auto()
    """The worker ends."""
    LOST = auto()
    """The item is somebody else's, or the session is gone: nothing may be posted."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a sandbox tool. thread_id: None for the primary thread."""

    id: str
    name: str
    input: Mapping[str, Any]
    permission: str | None
    thread_id: str | None


class Ledger:
    """The calls of one session as its events have them."""

    def __init__(self) -> None:
        self._calls: dict[str, ToolCall] = {}
        self._taken: set[str] = set()
        self._answered: set[str] = set()
        self._confirmed: dict[str, bool] = {}
        self._interrupts: set[str] = set()
        self._ended_threads: set[str] = set()
        self._primary_thread: str | None = None
        self.started = False
        """Whether any event was noted."""
        self.over = False
        """Whether the session has ended for good."""
        self.turn_over = False
        """Whether the last that was heard is an idle that waits for nothing."""
        self.paused = False
        """Whether the last that was heard is an idle of any kind."""

    def note(self, event: SeenEvent) -> list[tuple[str, Cut]]:
        """Take an event in; returns the calls in hand that it ends."""
        self._note_status(event)
        match event.type:
            case "agent.tool_use":
                self._note_call(event)
            case "user.tool_result" | "agent.tool_result":
                return self._note_answer(event.tool_use_id)
            case "user.tool_confirmation":
                # Only an explicit allow releases a call.
                self._confirmed[event.tool_use_id] = event.result == "allow"
            case "user.interrupt":
                return self._note_interrupt(event)
            case "session.thread_status_terminated":
                self._ended_threads.add(event.session_thread_id)
                return [(call.id, Cut.THREAD_ENDED) for call in self._in_hand() if self._ended(call)]
            case _:
                pass
        return []

    def settle(self, call_id: str) -> None:
        """The call is done with: its result is posted, or was given up."""
        self._answered.add(call_id)

    def verdict(self, call: ToolCall) -> Verdict:
        """What is to be done with a call, by all that was noted; a permission not known is held like ask."""
        confirmed = self._confirmed.get(call.id)
        if call.id in self._answered or call.permission == "deny" or confirmed is False or self._ended(call):
            return Verdict.DROP
        if call.permission in (None, "allow") or confirmed:
            return Verdict.RUN
        return Verdict.HOLD

    def take_due(self) -> list[ToolCall]:
        """The calls to run now, in the order in which the model made them. Each is returned once."""
        due = [
            call
            for call in self._calls.values()
            if call.id not in self._taken and self.verdict(call) is Verdict.RUN
        ]
        self._taken.update(call.id for call in due)
        return due

    def open_calls(self) -> dict[str, Verdict]:
        """Every call without a result, by id, in the order in which the model made them."""
        return {call.id: self.verdict(call) for call in self._calls.values()}

    def _note_status(self, event: SeenEvent) -> None:
        self.started = True
        if event.type in _OVER:
            self.over = True
        if event.type.startswith("session.thread_status_") and self._primary_thread is None:
            self._primary_thread = event.session_thread_id
        if event.type in _NEUTRAL:
            return
        self.paused = event.type == "session.status_idle"
        self.turn_over = self.paused and _reason(event) != "requires_action"

    def _note_call(self, event: SeenEvent) -> None:
        if event.name not in SANDBOX_TOOLS or event.id in self._answered:
            return
        self._calls[event.id] = ToolCall(
            event.id, event.name, _object(event.input), event.evaluated_permission, event.session_thread_id
        )

    def _note_answer(self, call_id: str) -> list[tuple[str, Cut]]:
        fresh = call_id not in self._answered
        self._answered.add(call_id)
        self._calls.pop(call_id, None)
        return [(call_id, Cut.ANSWERED)] if fresh and call_id in self._taken else []

    def _note_interrupt(self, event: SeenEvent) -> list[tuple[str, Cut]]:
        # It is streamed twice, when it is accepted and when it is applied; the first is the one that counts.
        # In the history it ends nothing: it may be what has offered the work anew.
        if event.id in self._interrupts:
            return []
        self._interrupts.add(event.id)
        thread = event.session_thread_id
        return [
            (call.id, Cut.INTERRUPTED)
            for call in self._in_hand()
            if thread is None or thread == (call.thread_id or self._primary_thread)
        ]

    def _in_hand(self) -> list[ToolCall]:
        return [
            call for call in self._calls.values() if call.id in self._taken and call.id not in self._answered
        ]

    def _ended(self, call: ToolCall) -> bool:
        return call.thread_id in self._ended_threads


def _reason(event: SeenEvent) -> Any:
    return _object(event.stop_reason).get("type")


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def decisions(events: Iterable[SeenEvent]) -> dict[str, Verdict]:
    """What a history leaves to be done, by call id. Calls that are answered do not appear."""
    ledger = Ledger()
    for event in events:
        ledger.note(event)
    return ledger.open_calls()
