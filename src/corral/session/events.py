"""Events and inputs as the log holds them.

A `NewEvent` is one that is about to be written; an `Event` is one that is in the log, with its place in it.
Bodies are the wire form without ``processed_at``, which the database stamps; it is added on the way out.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from corral.wire.ids import new_id
from corral.wire.times import to_wire

Body = Mapping[str, Any]

ASKS: Final = "asks"
"""In the private part of an event with which another request to a model begins, one without such a span."""
ASKED: Final = "asked"
"""In that of an event with which it has ended."""


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append.

    ``private`` is what the API never shows; ``resolves`` names the tool use that this event answers, and the
    database refuses a second answer.
    """

    id: str
    type: str
    thread_id: str
    body: Body
    private: Body | None = None
    resolves: str | None = None
    crossposted: int = 0
    """Of an event of a child thread, who sees it in the session's list and stream; see `crossposting`."""

    def body_text(self) -> str:
        """The stored JSON: id and type first, then the body's own fields."""
        return msgspec.json.encode({"id": self.id, "type": self.type, **self.body}).decode()

    def private_text(self) -> str | None:
        """The stored private JSON, or None."""
        return None if self.private is None else msgspec.json.encode(self.private).decode()


class Event(msgspec.Struct, frozen=True):
    """An event of the log. ``seq`` counts from 1 without gaps in each session."""

    seq: int
    id: str
    type: str
    thread_id: str
    body: Body
    processed_at: datetime
    private: Body | None = None

    def wire(self) -> bytes:
        """The event as the API shows it."""
        return msgspec.json.encode({**self.body, "processed_at": to_wire(self.processed_at)})


class Input(msgspec.Struct, frozen=True):
    """A client event that waits for the brain; ``position`` orders a session's inputs."""

    position: int
    id: str
    type: str
    thread_id: str
    body: Body

    def wire(self) -> bytes:
        """The event as the API shows it while it waits."""
        return msgspec.json.encode({**self.body, "processed_at": None})

    def taken(self) -> NewEvent:
        """The event that enters the log when the brain takes this input up: the same id and body."""
        body = {key: value for key, value in self.body.items() if key not in ("id", "type")}
        resolves = verdict_on(self.body["tool_use_id"]) if self.type == "user.tool_confirmation" else None
        return NewEvent(self.id, self.type, self.thread_id, body, resolves=resolves)


def verdict_on(tool_use_id: str) -> str:
    """What a confirmation resolves: not the call, which is still to run, but the question about it."""
    return f"verdict:{tool_use_id}"


def new_event(
    kind: str, thread_id: str, *, id: str | None = None, private: Body | None = None, **body: Any
) -> NewEvent:
    """An event of type `kind` with a fresh id (or the one given, where a preview has announced it)."""
    return NewEvent(id or new_id("sevt"), kind, thread_id, body, private)
