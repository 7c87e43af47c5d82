"""Publish and subscribe inside one process.

A subscription holds no history: a poke is one bit however often it is repeated, since whoever is poked reads
the log. Previews are carried as payloads, bounded in number and in bytes; when a subscriber is too slow the
ends of its previews are shed, which it can see, and never its pokes. Whoever asks for it is handed the
commits of this process instead of being poked; when it is too slow it is poked all the same.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence, Set
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from corral.bus.landed import Landed

_PREVIEWS_HELD: Final = 512
_PREVIEW_BYTES_HELD: Final = 256 * 1024
_COMMIT_BYTES_HELD: Final = 256 * 1024
_COMMITS_HELD: Final = 64
_TOGETHER: Final = 256
"""Previews that are handed to readers together, at most: a model's answer comes in many small pieces."""
_SHED_KNOWN: Final = 64
"""Shed events that a reader remembers; a piece of an older one shows by its position that some are lost."""


class Preview(msgspec.Struct, frozen=True):
    """A piece of an event that is still being made (contract section 10.8). Never stored.

    ``after_seq`` is the log position that a reader must have passed before it may show this: the start of
    the model request it belongs to.
    """

    event_id: str
    thread_id: str
    after_seq: int
    frame: bytes
    """The SSE frame, ready to send."""
    event_type: str
    position: int
    """Counts the pieces of one event from 0, the ``event_start``; a gap shows that some were lost."""

    @property
    def starts(self) -> bool:
        """True for ``event_start``, False for ``event_delta``."""
        return self.position == 0


class Subscription:
    """What one reader has yet to see of the topics it asked for. Use as an async context manager."""

    def __init__(self, hub: "Hub", topics: tuple[str, ...], *, previews: bool, commits: bool) -> None:
        self._hub = hub
        self._topics = topics
        self.wants_previews = previews
        self.wants_commits = commits
        self._arrived = False
        self._waiter: asyncio.Future[bool] | None = None
        self._due = 0.0
        self._clock: asyncio.TimerHandle | None = None
        self._poked = False
        self._previews: deque[Preview] = deque()
        self._bytes = 0
        self._commits: list[Landed] = []
        self._commit_bytes = 0
        self._shed: dict[str, None] = {}

    async def __aenter__(self) -> Self:
        for topic in self._topics:
            self._hub.add(topic, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for topic in self._topics:
            self._hub.discard(topic, self)
        if self._clock is not None:
            self._clock.cancel()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until something has arrived since the last `take`; False if `timeout` seconds go by first.

        One task at a time may wait.
        """
        heed_cancellation()
        if self._arrived:
            return True
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        if timeout is not None:
            self._expect(loop, loop.time() + timeout)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _expect(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """See that the wait ends at `due`. One timer serves many waits: making one for each costs more."""
        self._due = due
        if self._clock is not None and self._clock.when() > due:
            self._clock.cancel()
            self._clock = None
        if self._clock is None:
            self._clock = loop.call_at(due, self._time_is_up, loop)

    def _time_is_up(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = None
        if self._waiter is None or self._waiter.done():
            return
        if self._due > loop.time():
            self._expect(loop, self._due)
        else:
            self._waiter.set_result(False)

    def take(self) -> tuple[bool, list[Preview]]:
        """What has arrived: whether there was a poke, and the previews in their order."""
        self._hub.hand_over()
        poked, previews = self._poked, list(self._previews)
        self._poked = self._arrived = False
        self._previews.clear()
        self._bytes = 0
        return poked, previews

    def take_commits(self) -> list[Landed]:
        """The commits that have been handed over since the last time, in their order."""
        commits, self._commits = self._commits, []
        self._commit_bytes = 0
        return commits

    def poke(self) -> None:
        """Called by the hub: something changed."""
        self._poked = True
        self._wake()

    def hand(self, landed: Landed, size: int) -> None:
        """Called by the hub: a commit, unless too much waits already; then it is read from the log."""
        if len(self._commits) >= _COMMITS_HELD or self._commit_bytes + size > _COMMIT_BYTES_HELD:
            self.take_commits()
            self._poked = True
        elif not self._poked:  # whoever reads the log anyway needs no more than that
            self._commits.append(landed)
            self._commit_bytes += size
        self._wake()

    def _wake(self) -> None:
        self._arrived = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def offer_all(self, pieces: Sequence[Preview], size: int, events: Set[str], *, begun: bool) -> None:
        """Called by the hub: previews of these `events`, of `size` bytes; `begun` if a first one is there."""
        shed = self._shed.keys()
        if not begun and events <= shed:
            return
        if (
            len(self._previews) + len(pieces) > _PREVIEWS_HELD
            or self._bytes + size > _PREVIEW_BYTES_HELD
            or not shed.isdisjoint(events)
        ):
            for preview in pieces:
                self._offer(preview)
            return
        self._previews.extend(pieces)
        self._bytes += size
        self._wake()

    def _offer(self, preview: Preview) -> None:
        """A preview to pass on, unless a part of its event has been shed already."""
        if preview.starts:
            self._shed.pop(preview.event_id, None)
        elif preview.event_id in self._shed:
            return
        size = len(preview.frame)
        if len(self._previews) >= _PREVIEWS_HELD or self._bytes + size > _PREVIEW_BYTES_HELD:
            # The texts shown must stay a prefix of the final text, so an event is shed from here on.
            self._shed.update(dict.fromkeys([*(held.event_id for held in self._previews), preview.event_id]))
            while len(self._shed) > _SHED_KNOWN:
                del self._shed[next(iter(self._shed))]
            return
        self._previews.append(preview)
        self._bytes += size
        self._wake()


def heed_cancellation() -> None:
    """End the task here if it has been cancelled and the cancellation was lost on the way.

    ``asyncio.wait_for`` of Python 3.11, with which the connection pool waits when all connections are taken,
    drops a cancellation that comes as its wait ends. A loop that calls this in each round ends all the same.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Bus(Protocol):
    """Who must wake. Publishing never waits for a reader and never fails a writer."""

    def subscribe(self, *topics: str, previews: bool = False, commits: bool = False) -> Subscription:
        """A subscription to `topics`; what is published before it is entered is not seen."""
        ...

    async def publish(self, *topics: str, landed: Mapping[str, Landed] | None = None) -> None:
        """Poke all readers of `topics`, here and in other processes.

        Those here who take commits are handed what has `landed` on their topic instead.
        """
        ...

    def takes_commits(self, topic: str) -> bool:
        """Whether anybody here wants to be handed the commits of `topic`."""
        ...

    def preview(self, topic: str, preview: Preview) -> None:
        """Pass a preview to the readers of `topic`; it may be lost."""
        ...

    def has_readers(self, topic: str) -> bool:
        """Whether a preview for `topic` would reach anybody."""
        ...


class Hub:
    """The in-process half of a bus."""

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = {}
        self._previews: dict[str, list[Preview]] = {}
        """What has been previewed in this round of the event loop, to be handed over at its end."""

    def subscribe(self, *topics: str, previews: bool = False, commits: bool = False) -> Subscription:
        """See `Bus.subscribe`."""
        return Subscription(self, topics, previews=previews, commits=commits)

    def add(self, topic: str, subscription: Subscription) -> None:
        """Called by a subscription on entering."""
        self.hand_over()
        self._readers.setdefault(topic, set()).add(subscription)

    def discard(self, topic: str, subscription: Subscription) -> None:
        """Called by a subscription on leaving."""
        readers = self._readers.get(topic)
        if readers is not None:
            readers.discard(subscription)
            if not readers:
                del self._readers[topic]

    def poke(self, topic: str, landed: Landed | None = None) -> None:
        """Poke the readers of `topic` in this process; those who take commits are handed what has landed."""
        size = 0 if landed is None else landed.size
        for subscription in self._readers.get(topic, ()):
            if landed is not None and subscription.wants_commits:
                subscription.hand(landed, size)
            else:
                subscription.poke()

    def takes_commits(self, topic: str) -> bool:
        """See `Bus.takes_commits`."""
        return any(subscription.wants_commits for subscription in self._readers.get(topic, ()))

    def poke_all(self) -> None:
        """Poke every reader: used when messages may have been lost."""
        for topic in tuple(self._readers):
            self.poke(topic)

    def preview(self, topic: str, preview: Preview) -> None:
        """See `Bus.preview`. What comes in one round is handed over together: each reader wakes once."""
        if topic not in self._readers:
            return
        if not self._previews:
            asyncio.get_running_loop().call_soon(self.hand_over)
        pieces = self._previews.setdefault(topic, [])
        pieces.append(preview)
        if len(pieces) >= _TOGETHER:
            self.hand_over()

    def hand_over(self) -> None:
        """Give the readers the previews that have come so far."""
        if not self._previews:
            return
        previews, self._previews = self._previews, {}
        for topic, pieces in previews.items():
            size = sum(len(piece.frame) for piece in pieces)
            events = {piece.event_id for piece in pieces}
            begun = any(piece.starts for piece in pieces)
            for subscription in self._readers.get(topic, ()):
                if subscription.wants_previews:
                    subscription.offer_all(pieces, size, events, begun=begun)

    def has_readers(self, topic: str) -> bool:
        """See `Bus.has_readers`."""
        return any(subscription.wants_previews for subscription in self._readers.get(topic, ()))

    def previewed(self) -> list[str]:
        """The topics whose previews somebody in this process wants."""
        return [topic for topic in self._readers if self.has_readers(topic)]


WAKES_TOPIC: Final = "wakes"
WEBHOOKS_TOPIC: Final = "webhooks"
DREAMS_TOPIC: Final = "dreams"
"""Poked by the database itself (migration 0010) when an endpoint is to be told something."""


def session_topic(session_id: str) -> str:
    """The topic on which changes of one session are announced."""
    return f"session:{session_id}"
