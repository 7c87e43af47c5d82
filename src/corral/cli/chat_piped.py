"""A chat without a person: messages come from a pipe, and the answers to approvals from the command line."""

import asyncio
import signal
from collections.abc import Sequence
from typing import Any, Final

from corral.cli import chat_replies as replies
from corral.cli.api_client import ApiClient, Event
from corral.cli.chat_standing import Standing
from corral.cli.session_facts import OpenCall
from corral.cli.session_feed import SessionFeed
from corral.cli.transcript_view import View

DENIED: Final = "Nobody is here to approve this call, so it was not run."
NO_ANSWER: Final = "Nobody is here to answer this call."
_INTERRUPTED: Final = 130


class Errand:
    """Says each message when the turn of the one before has ended, and leaves."""

    def __init__(
        self, api: ApiClient, session: dict[str, Any], messages: Sequence[str], view: View, *, allow: bool
    ) -> None:
        self._api = api
        self._id = str(session["id"])
        self._messages = list(messages)
        self._view = view
        self._allow = allow
        self._standing = Standing(session["status"])
        self._said: str | None = None
        self._taken_up = False
        self._signals = 0

    async def run(self, trouble: Any) -> int:
        """0 if every turn came to its end; 1 if one died, was refused, or the session ended; 130 on Ctrl-C."""
        loop = asyncio.get_running_loop()
        signalled = asyncio.Event()
        loop.add_signal_handler(signal.SIGINT, signalled.set)
        going = asyncio.create_task(self._go(trouble))
        try:
            return await self._with_signals(going, signalled)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)

    async def _with_signals(self, going: asyncio.Task[int], signalled: asyncio.Event) -> int:
        for patient in (True, False):
            signal_came = asyncio.create_task(signalled.wait())
            await asyncio.wait({going, signal_came}, return_when=asyncio.FIRST_COMPLETED)
            if not signal_came.done():
                signal_came.cancel()
                return await going if patient else max(_INTERRUPTED, await going)
            if patient:
                signalled.clear()
                self._messages.clear()
                await self._api.send(self._id, replies.interrupt())
        return _INTERRUPTED

    async def _go(self, trouble: Any) -> int:
        opened: list[list[Event]] = []
        feed = SessionFeed(self._api, self._id, trouble=trouble)
        following = feed.follow(history=opened.append)
        first = asyncio.ensure_future(anext(following))
        try:
            return await self._talk(following, first, opened)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await following.aclose()
