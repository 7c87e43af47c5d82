"""One conditional change to one session: the unit in which everything about it is written.

A commit says what it expects: the log's length, the number of inputs ever queued, and (from a brain) the
fencing epoch. The database compares them with the session's row, which it has locked, in the same statement
that writes. So a decision made on an older state than the one being changed is never written, whoever
made it and however long ago.
"""

from datetime import datetime
from typing import Literal

import msgspec

from corral.session.events import Body, NewEvent


class Fence(msgspec.Struct, frozen=True):
    """What must still hold for a commit to be written; None is not compared."""

    epoch: int | None = None
    seq: int | None = None
    last_input: int | None = None


class NewInput(msgspec.Struct, frozen=True):
    """A client event to queue for the brain. ``body`` is the wire form without processed_at."""

    id: str
    type: str
    thread_id: str
    body: Body

    def body_text(self) -> str:
        """The stored JSON: id and type first, then the body's own fields."""
        return msgspec.json.encode({"id": self.id, "type": self.type, **self.body}).decode()


class Wake(msgspec.Struct, frozen=True):
    """What becomes of the session's row in the wake queue.

    ``rouse`` makes a brain come (no sooner than `delay` seconds from now), leaving a lease alone;
    ``release`` gives up the lease and asks for a brain after `delay`; ``done`` removes the row.
    """

    kind: Literal["rouse", "release", "done"]
    delay: float = 0.0


class ThreadRow(msgspec.Struct, frozen=True):
    """What a commit leaves of a thread's row (`corral.session.thread_rows`); None keeps what is there."""

    id: str
    status: str
    parent: str | None = None
    agent: Body | None = None
    """The agent of a thread that is being made."""
    usage: Body | None = None
    """The thread's usage once it has stopped."""
    since: datetime | None = None
    """Since when it runs."""


class DecisionRow(msgspec.Struct, frozen=True):
    """A decision on a tool call, for the audit trail."""

    id: str
    actor: str
    """The policy file, or `judge`."""
    action: str
    objects: tuple[str, ...]
    """The ids of what it is about."""
    record: Body


class Commit(msgspec.Struct, frozen=True):
    """Events to append and what goes with them, all or nothing."""

    session_id: str
    fence: Fence = Fence()
    events: tuple[NewEvent, ...] = ()
    take: tuple[str, ...] = ()
    """Ids of waiting inputs that this commit removes from the queue."""
    inputs: tuple[NewInput, ...] = ()
    status: str | None = None
    usage: Body | None = None
    wake: Wake | None = None
    threads: tuple[ThreadRow, ...] = ()
    """What becomes of the rows of its threads."""
    decisions: tuple[DecisionRow, ...] = ()
    """The decisions that its events keep, as the audit trail has them."""

    @property
    def weight(self) -> int:
        """Rows that the commit writes, for sizing a group."""
        return len(self.events) + len(self.inputs) + len(self.decisions) + 1


class Committed(msgspec.Struct, frozen=True):
    """Where a commit landed: its events have the numbers ``base + 1`` onward."""

    base: int
    input_base: int
    at: datetime


class CommitRefused(Exception):
    """The session is no longer as the commit expected, or it is gone; nothing was written.

    Read the log again and decide anew. A brain whose epoch has passed stops at once.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__(f"the state of session {session_id} has moved on")
        self.session_id = session_id


class LogUnavailable(Exception):
    """The database could not be reached for long; whether the last commit was written has been told apart."""
