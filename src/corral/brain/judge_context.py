"""What a session's judge is shown of it: who has said what, and what the agents have met lately.

Only what clients send counts as the user's or the application's word (contract section 6). What tools
brought and what agents wrote to each other is kept apart, and is shown as untrusted. All of it is bounded.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from corral.policy.judge import SeenCall, clipped
from corral.session.calls import TOOL_RESULTS, TOOL_USES
from corral.session.events import Event

_MESSAGES: Final = 20
"""The last so many of the user's messages, and the first."""
_LONGEST_MESSAGE: Final = 4_000
_SEEN: Final = 8
_LONGEST_INPUT: Final = 1_000
_LONGEST_RESULT: Final = 3_000


class KeptJudgeContext(msgspec.Struct, frozen=True):
    """What a judge's context holds at one moment, as a snapshot keeps it."""

    first: str | None
    user: list[str]
    application: list[str]
    seen: dict[str, list[SeenCall]]
    open: dict[str, tuple[str, str]]


class JudgeContext:
    """Feed it the events of all threads of a session, in their order."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._user: deque[str] = deque(maxlen=_MESSAGES)
        self._application: deque[str] = deque(maxlen=_MESSAGES)
        self._seen: dict[str, deque[SeenCall]] = {}
        self._open: dict[str, tuple[str, str]] = {}

    def kept(self) -> KeptJudgeContext:
        """All of it."""
        seen = {thread_id: list(calls) for thread_id, calls in self._seen.items()}
        return KeptJudgeContext(
            self._first, list(self._user), list(self._application), seen, dict(self._open)
        )

    def recall(self, kept: KeptJudgeContext) -> None:
        """Be as the context was of which `kept` was made."""
        self._first = kept.first
        self._user = deque(kept.user, maxlen=_MESSAGES)
        self._application = deque(kept.application, maxlen=_MESSAGES)
        self._seen = {thread_id: deque(calls, maxlen=_SEEN) for thread_id, calls in kept.seen.items()}
        self._open = dict(kept.open)

    def add(self, event: Event) -> None:
        """Take in one event."""
        body = event.body
        match event.type:
            case "user.message":
                self._says(_text(body.get("content")))
            case "user.define_outcome":
                self._says(str(body.get("description") or ""))
            case "user.tool_confirmation":
                if why := body.get("deny_message"):
                    tool, _ = self._open.get(body["tool_use_id"], ("a tool", ""))
                    self._says(f"[Refused a call of {tool}] {why}")
            case "system.message":
                self._application.append(clipped(_text(body.get("content")), _LONGEST_MESSAGE))
            case "agent.thread_message_received":
                text = clipped(_text(body.get("content")), _LONGEST_RESULT)
                self._sees(event.thread_id, SeenCall("message of another agent", "", text))
            case kind if kind in TOOL_USES:
                given = clipped(msgspec.json.encode(body.get("input")).decode(), _LONGEST_INPUT)
                self._open[event.id] = (str(body["name"]), given)
            case kind if kind in TOOL_RESULTS:
                tool, given = self._open.pop(body[TOOL_RESULTS[kind]], ("a tool", ""))
                result = clipped(_text(body.get("content")), _LONGEST_RESULT)
                self._sees(event.thread_id, SeenCall(tool, given, result))
            case _:
                pass

    def user(self) -> list[str]:
        """What the user has said."""
        said = list(self._user)
        if self._first is not None and len(said) == _MESSAGES and said[0] != self._first:
            return [self._first, *said]
        return said

    def application(self) -> list[str]:
        """What the client's program has said in between."""
        return list(self._application)

    def seen(self, thread_id: str) -> list[SeenCall]:
        """What a thread has met lately."""
        return list(self._seen.get(thread_id, ()))

    def _says(self, text: str) -> None:
        said = clipped(text, _LONGEST_MESSAGE)
        if self._first is None:
            self._first = said
        self._user.append(said)

    def _sees(self, thread_id: str, call: SeenCall) -> None:
        self._seen.setdefault(thread_id, deque(maxlen=_SEEN)).append(call)


def _text(content: Iterable[Mapping[str, Any]] | None) -> str:
    parts = [
        str(block["text"]) if block.get("type") == "text" else f"[{block.get('type')}]"
        for block in content or ()
    ]
    return "\n".join(parts)
