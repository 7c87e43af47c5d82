"""A chat without a person: messages come from a pipe, and the answers to approvals from the command line."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from corral.cli import chat_replies as replies
from corral.cli.api_client import ApiClient, Event
from corral.cli.chat_standing import Standing
from corral.cli.session_facts import OpenCall
from corral.cli.session_feed import SessionFeed
from corral.cli.transcript_view import View

DENIED: Final = "Nobody is here to approve this call, so it was not run."
NO_ANSWER: Final = "Nobody is here to answer this call."
DIED: Final = 1
INTERRUPTED: Final = 130


class Errand:
    """Says each message when the turn of the one before has ended, and leaves.

    Calls that wait for approval are denied, or allowed if ``allow``; custom tools are answered with an
    error, since nobody is there to answer them.
    """

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
        self._interrupting: asyncio.Task[Any] | None = None

    async def run(self, trouble: Callable[[str | None], None]) -> int:
        """0 if every turn came to its end; 1 if one died or was refused; 130 after Ctrl-C.

        The first Ctrl-C interrupts the agent and waits for it, the second does not wait.
        """
        loop = asyncio.get_running_loop()
        going = asyncio.create_task(self._go(trouble))
        loop.add_signal_handler(signal.SIGINT, self._signalled, going)
        try:
            return await going
        except asyncio.CancelledError:
            if self._interrupting is None:
                raise
            return INTERRUPTED
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            if self._interrupting is not None:
                await asyncio.gather(self._interrupting, return_exceptions=True)

    def _signalled(self, going: asyncio.Task[int]) -> None:
        if self._interrupting is None:
            self._messages.clear()
            self._interrupting = asyncio.create_task(self._api.send(self._id, replies.interrupt()))
        else:
            going.cancel()

    async def _go(self, trouble: Callable[[str | None], None]) -> int:
        feed = SessionFeed(self._api, self._id, trouble=trouble)
        async with aclosing(feed.follow()) as following:
            async for news in following:
                if isinstance(news, list):
                    for event in news:
                        self._standing.see(event)
                    await self._say_next()
                    await self._answer()
                elif (code := await self._event(news)) is not None:
                    return code
        return DIED

    async def _event(self, event: Event) -> int | None:
        self._standing.see(event)
        self._view.show(event)
        if event.get("id") == self._said and event["processed_at"] is not None:
            self._taken_up = True
        if self._standing.ended:
            return DIED
        if event["type"] != "session.status_idle":
            return None
        if self._standing.stop == "requires_action":
            await self._answer()
            return None
        if self._interrupting is not None:
            return INTERRUPTED
        if not self._taken_up:
            return None  # the end of an earlier turn
        if self._standing.stop != "end_turn":
            return DIED
        return None if await self._say_next() else 0

    async def _say_next(self) -> bool:
        if not self._messages:
            return False
        [sent] = await self._api.send(self._id, replies.message(self._messages.pop(0)))
        self._said, self._taken_up = sent["id"], False
        return True

    async def _answer(self) -> None:
        questions = self._standing.questions
        if questions:
            await self._api.send(self._id, *(self._reply(call) for call in questions))
        for call in questions:
            self._standing.settle(call)

    def _reply(self, call: OpenCall) -> dict[str, Any]:
        if call.need == "answer":
            return replies.answer(call, NO_ANSWER, is_error=True)
        return replies.allow(call) if self._allow else replies.deny(call, DENIED)
