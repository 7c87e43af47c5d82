"""Letting a session go while its server stops, where nothing that was paid for is lost.

Any brain can go on from any commit, so a turn may be cut whenever no model request of its is under way. While
one is, its answer is worth waiting for: the next brain would have to ask for it again.
"""

import asyncio
from typing import Final

from corral.brain.held import SessionLost
from corral.session.commit import Commit, Committed
from corral.session.events import ASKED, ASKS, NewEvent
from corral.session.log import CommitWriter

_START: Final = "span.model_request_start"
_END: Final = "span.model_request_end"


class HandedOver(SessionLost):
    """The server stops and this turn has come to a good end of its stretch: another brain goes on."""


class Handover:
    """The writer of one turn's commits; once `stopping` is set, it ends the turn at the first good place."""

    def __init__(self, writer: CommitWriter, stopping: asyncio.Event) -> None:
        self._writer = writer
        self._stopping = stopping
        self._asking = 0

    @property
    def asking(self) -> bool:
        """Whether a model request is under way, or about to be: its start is being written."""
        return self._asking > 0

    async def commit(self, commit: Commit) -> Committed:
        """See `CommitWriter.commit`.

        Raises:
            HandedOver: the server stops. A commit that would begin a model request was not written; any other
                one was.
        """
        starts = sum(_is(event, _START, ASKS) for event in commit.events)
        ends = sum(_is(event, _END, ASKED) for event in commit.events)
        if starts and not self._asking and self._stopping.is_set():
            raise HandedOver(commit.session_id)
        self._asking += starts
        try:
            committed = await self._writer.commit(commit)
        except BaseException:
            self._asking -= starts
            raise
        # A brain that takes over closes a request that its predecessor had begun.
        self._asking = max(0, self._asking - ends)
        if self._stopping.is_set() and not self._asking:
            raise HandedOver(commit.session_id)
        return committed


def _is(event: NewEvent, kind: str, mark: str) -> bool:
    return event.type == kind or bool(event.private and event.private.get(mark))
