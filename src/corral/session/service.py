"""All that the API asks of sessions, in one place: records, sending, lists, streams."""

from collections.abc import Callable, Sequence

from corral.bus.hub import WAKES_TOPIC, Bus, session_topic
from corral.session.following import Following
from corral.session.listing import Listing
from corral.session.log import PostgresSessionLog
from corral.session.records import Attach, NewSession, Row, SessionChange, SessionRecords
from corral.session.sending import Sending
from corral.session.writer import LogWriter
from corral.store.database import Database
from corral.wire.events import ClientEvent, event_type, persisted
from corral.wire.ids import new_id


class Sessions:
    """Sessions for the API. The parts may be used directly; this adds who must wake."""

    def __init__(self, database: Database, writer: LogWriter, bus: Bus) -> None:
        self._bus = bus
        self.log = PostgresSessionLog(database, writer)
        self.records = SessionRecords(database)
        self.sending = Sending(database, self.log)
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

    async def update(self, session_id: str, decide: Callable[[Row], SessionChange]) -> Row:
        """See `SessionRecords.update`."""
        row = await self.records.update(session_id, decide)
        await self._bus.publish(session_topic(session_id))
        return row

    async def archive(self, session_id: str) -> Row:
        """See `SessionRecords.archive`."""
        row = await self.records.archive(session_id)
        await self._bus.publish(session_topic(session_id))
        return row

    async def delete(self, session_id: str) -> None:
        """See `SessionRecords.delete`; open streams end with ``session.deleted``."""
        await self.records.delete(session_id)
        await self._bus.publish(session_topic(session_id))
