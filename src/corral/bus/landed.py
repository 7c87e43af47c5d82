"""What a commit has added to a session, handed to those who follow it in the process that wrote it.

It saves them the reading: they know how far they have come, and take it only where it goes on exactly there.
It is made after the commit, so an event is listable before anybody is handed it.
"""

from datetime import datetime
from typing import Any

import msgspec


class LandedEvent(msgspec.Struct, frozen=True):
    """An event, or a client event that waits, as it was stored."""

    id: str
    type: str
    thread_id: str
    body: str
    """The stored JSON."""
    crossposted: int = 0


class Landed(msgspec.Struct, frozen=True):
    """One commit to one session: its events follow position `base`, what it queued follows `input_base`."""

    base: int
    input_base: int
    at: datetime
    events: tuple[LandedEvent, ...]
    inputs: tuple[LandedEvent, ...]
    shown: dict[Any, Any] = msgspec.field(default_factory=dict[Any, Any])
    """What is shown of it in each view: made by the first who needs it, for all."""

    @property
    def seq(self) -> int:
        """The log's length after it."""
        return self.base + len(self.events)

    @property
    def last_input(self) -> int:
        """The number of inputs ever queued after it."""
        return self.input_base + len(self.inputs)

    @property
    def size(self) -> int:
        """About how many bytes a reader holds that has not taken it yet."""
        return sum(len(one.body) for one in (*self.events, *self.inputs))
