"""All that the API asks of sessions, in one place: records, sending, lists, streams."""

from collections.abc import Callable, Sequence
from typing import Any

from corral.bus.hub import WAKES_TOPIC, Bus, session_topic
from corral.session.budget import SESSION_HOUR
from corral.session.following import Following
from corral.session.listing import Listing
from corral.session.log import PostgresSessionLog
from corral.session.records import Attach, NewSession, SessionChange, SessionRecords
from corral.session.sending import Sending
from corral.session.shown import Row
from corral.session.spending import Spending
from corral.session.thread_records import ThreadRecords
from corral.session.writer import LogWriter
from corral.store.database import Database
from corral.wire.events import ClientEvent, event_type, persisted
from corral.wire.ids import new_id


class Sessions:
    """Sessions for the API. The parts may be used directly; this adds who must wake."""

    def __init__(
        self, database: Database, writer: LogWriter, bus: Bus, *, session_hour: int = SESSION_HOUR
    ) -> None:
        """`session_hour` is the list price of an hour of running, in nanodollars."""
        self._bus = bus
        self.log = PostgresSessionLog(database, writer)
        self.records = SessionRecords(database, session_hour)
        self.threads = ThreadRecords(database)
        self.sending = Sending(database, self.log, session_hour)
        self.listing = Listing(database)
        self.following = Following(database, bus)

    async def create(
        self, new: NewSession, initial_events: Sequence[ClientEvent], attach: Attach | None = None
    ) -> Row:
        """Make a session with what `attach` attaches, and start it on its initial events, if it has any."""
        inputs = [
            (event_id, event_type(event), persisted(event, event_id))
            for event in initial_events
            for event_id in (new_id("sevt"),)
        ]
        row = await self.records.create(new, inputs, attach)
        if inputs:
            await self._bus.publish(WAKES_TOPIC)
        return row

    async def update(self, session_id: str, decide: Callable[[Row, Spending], SessionChange]) -> Row:
        """See `SessionRecords.update`."""
        row = await self.records.update(session_id, decide)
        await self._bus.publish(session_topic(session_id))
        await self._bus.publish(WAKES_TOPIC)  # it may have paused at its budget, and go on now
        return row

    async def archive(self, session_id: str, attach: Attach | None = None) -> Row:
        """See `SessionRecords.archive`."""
        row = await self.records.archive(session_id, attach)
        await self._bus.publish(session_topic(session_id))
        return row

    async def archive_thread(self, session_id: str, thread_id: str) -> dict[str, Any]:
        """See `ThreadRecords.archive`."""
        shown = await self.threads.archive(session_id, thread_id)
        await self._bus.publish(session_topic(session_id), WAKES_TOPIC)
        return shown

    async def report(self, session_id: str, kind: str, message: str, **details: Any) -> None:
        """Tell in the session's log of an error that stops nothing; see `SessionRecords.report`."""
        if await self.records.report(session_id, kind, message, details):
            await self._bus.publish(session_topic(session_id))

    async def delete(self, session_id: str) -> None:
        """See `SessionRecords.delete`; open streams end with ``session.deleted``."""
        await self.records.delete(session_id)
        await self._bus.publish(session_topic(session_id))
