"""The bus between the servers of one database: LISTEN and NOTIFY.

Pokes are gathered while a NOTIFY is under way, so that a busy server sends one notification per round trip
and not one per event. Previews of an answer cross to other servers too, as payloads, but only for sessions
that another server has said it is watching, and only while they fit a notification.

A lost connection loses messages; after reconnecting, every reader is poked and reads the log again. What
waits to be sent is bounded: while the database is slow, or away, previews for others are left out.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import msgspec
import psycopg
import structlog

from corral.bus.hub import Hub, Preview, Subscription, heed_cancellation
from corral.bus.landed import Landed
from corral.store.database import Database
from corral.wire.ids import new_id

_CHANNEL: Final = "corral"
_PAYLOAD_BYTES: Final = 7_900
"""PostgreSQL refuses payloads of 8,000 bytes and more."""
_WATCH_SECONDS: Final = 30.0
_RECONNECT_SECONDS: Final = 0.5
_TOPICS_A_NOTICE: Final = 150
"""A topic takes about 40 bytes."""
_NOTICES_HELD: Final = 1_000
"""Previews and words of what is watched that wait to be sent, at most: 8 MB of them."""

_log = structlog.get_logger(__name__)


class _Notice(msgspec.Struct, omit_defaults=True):
    sender: str
    topics: list[str] = msgspec.field(default_factory=list[str])
    watch: list[str] = msgspec.field(default_factory=list[str])
    topic: str = ""
    preview: Preview | None = None


class PostgresBus:
    """See `Bus`. Open with ``async with``.

    ``watch_seconds`` is for how long others' word that they watch a session holds; it is renewed in time.
    """

    def __init__(self, database: Database, *, watch_seconds: float = _WATCH_SECONDS) -> None:
        self._database = database
        self._watch_seconds = watch_seconds
        self._hub = Hub()
        self._name = new_id("req")
        self._pending: dict[str, None] = {}
        self._notices: list[_Notice] = []
        self._wanted = asyncio.Event()
        self._watched: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._listening = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send())]
        await self._listening.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def subscribe(self, *topics: str, previews: bool = False, commits: bool = False) -> Subscription:
        """See `Bus.subscribe`. Wanting previews asks the other servers for theirs."""
        if previews:
            self._announce(_Notice(self._name, watch=list(topics)))
        return self._hub.subscribe(*topics, previews=previews, commits=commits)

    async def publish(self, *topics: str, landed: Mapping[str, Landed] | None = None) -> None:
        """See `Bus.publish`."""
        for topic in topics:
            self._hub.poke(topic, None if landed is None else landed.get(topic))
            self._pending[topic] = None
        self._wanted.set()

    def preview(self, topic: str, preview: Preview) -> None:
        """See `Bus.preview`."""
        self._hub.preview(topic, preview)
        if self._is_watched(topic):
            self._announce(_Notice(self._name, topic=topic, preview=preview))

    def _announce(self, notice: _Notice) -> None:
        # A preview that is left out shows by its position; what is watched is said again soon enough.
        if len(self._notices) < _NOTICES_HELD:
            self._notices.append(notice)
        self._wanted.set()

    def takes_commits(self, topic: str) -> bool:
        """See `Bus.takes_commits`."""
        return self._hub.takes_commits(topic)

    def has_readers(self, topic: str) -> bool:
        """See `Bus.has_readers`."""
        return self._hub.has_readers(topic) or self._is_watched(topic)

    def _is_watched(self, topic: str) -> bool:
        until = self._watched.get(topic)
        if until is None:
            return False
        if until < asyncio.get_running_loop().time():
            del self._watched[topic]
            return False
        return True

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        watch_at = loop.time() + self._watch_seconds / 3
        while True:
            heed_cancellation()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(watch_at):
                    await self._wanted.wait()
            if loop.time() >= watch_at:
                watch_at = loop.time() + self._watch_seconds / 3
                self._watched = {
                    topic: until for topic, until in self._watched.items() if until > loop.time()
                }
                watch = self._hub.previewed()
                self._notices.extend(
                    _Notice(self._name, watch=watch[at : at + _TOPICS_A_NOTICE])
                    for at in range(0, len(watch), _TOPICS_A_NOTICE)
                )
            self._wanted.clear()
            topics, self._pending = list(self._pending), {}
            notices, self._notices = self._notices, []
            payloads = [*_packed(self._name, topics), *map(_payload, notices)]
            if not payloads:
                continue
            try:
                await self._database.execute(
                    "select pg_notify(%s, payload) from unnest(%s::text[]) as payload",
                    (_CHANNEL, [payload for payload in payloads if len(payload) <= _PAYLOAD_BYTES]),
                )
            except psycopg.Error as error:
                _log.warning("other servers were not notified; they will notice by polling", error=str(error))

    async def _listen(self) -> None:
        while True:
            heed_cancellation()
            try:
                connection = await self._database.dedicated()
                try:
                    await connection.execute("listen corral")
                    self._listening.set()
                    self._hub.poke_all()
                    async for notify in connection.notifies():
                        self._receive(notify.payload)
                finally:
                    await connection.close()
            except psycopg.Error as error:
                _log.warning("lost the notification connection; reconnecting", error=str(error))
            await asyncio.sleep(_RECONNECT_SECONDS)

    def _receive(self, payload: str) -> None:
        try:
            notice = msgspec.json.decode(payload, type=_Notice)
        except msgspec.MsgspecError as error:
            # A server of another version; what it announces is found by polling.
            _log.warning("could not read another server's notice", error=str(error))
            return
        if notice.sender == self._name:
            return
        for topic in notice.topics:
            self._hub.poke(topic)
        for topic in notice.watch:
            self._watched[topic] = asyncio.get_running_loop().time() + self._watch_seconds
        if notice.preview is not None:
            self._hub.preview(notice.topic, notice.preview)


def _payload(notice: _Notice) -> str:
    return msgspec.json.encode(notice).decode()


def _packed(sender: str, topics: list[str]) -> list[str]:
    """As few notifications as hold all topics."""
    return [
        _payload(_Notice(sender, topics=topics[at : at + _TOPICS_A_NOTICE]))
        for at in range(0, len(topics), _TOPICS_A_NOTICE)
    ]
