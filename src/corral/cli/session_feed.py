"""A session's events without a gap and without a repeat, whatever becomes of the connection.

A stream delivers only what comes after it was opened. So each time it is opened, the newest part of the
list is read as well, back to what has been seen (contract section 10.10).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from corral.cli.api_client import ApiClient, Event, Refused, Unreachable
from corral.cli.failure import Failure

LAST: Final = frozenset({"session.deleted", "session.status_terminated"})
"""Events after which a stream has nothing more to say."""

_PAGE: Final = 200
_PREVIEWS: Final = frozenset({"event_start", "event_delta"})
_BACKOFF_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0)


async def recent(api: ApiClient, session_id: str, enough: Callable[[Event], bool]) -> list[Event]:
    """The newest events of a session, oldest first: back to one that is ``enough``, or all of them."""
    found: list[Event] = []
    pages = api.pages(f"/v1/sessions/{session_id}/events", order="desc", limit=_PAGE)
    async for page in pages:
        for event in page:
            found.append(event)
            if enough(event):
                return found[::-1]
    return found[::-1]


async def whole_history(api: ApiClient, session_id: str) -> list[Event]:
    """Every event of a session, oldest first."""
    pages = api.pages(f"/v1/sessions/{session_id}/events", limit=1000)
    return [event async for page in pages for event in page]


def is_step(event: Event) -> bool:
    """Whether a model request starts here: every open call, and why the session stopped, comes after."""
    return event["type"] == "span.model_request_start"


class SessionFeed:
    """Follows one session. ``trouble`` is told when the connection is lost (why) and back (None)."""

    def __init__(
        self,
        api: ApiClient,
        session_id: str,
        *,
        trouble: Callable[[str | None], None],
        backoff_seconds: Sequence[float] = _BACKOFF_SECONDS,
    ) -> None:
        self._api = api
        self._session_id = session_id
        self._trouble = trouble
        self._backoff_seconds = backoff_seconds
        self._seen: set[tuple[str, bool]] = set()
        self._last: str | None = None
        self._ended = False

    async def follow(self, *, whole: bool = False) -> AsyncGenerator[list[Event] | Event]:
        """What was there before, as a list, and then the events from there on, to the session's end.

        The list comes once the stream is open; it holds everything if ``whole``, else the newest part.

        A client event comes twice: waiting (``processed_at`` null), and taken up.

        Raises:
            Failure: the session does not exist, the key is not valid, or the first connection failed.
        """
        first, failures = True, 0
        while True:
            try:
                async with self._api.stream(self._session_id) as events:
                    if first:
                        yield await self._history(whole)
                    else:
                        for event in await self._missed():
                            yield event
                    if failures:
                        self._trouble(None)
                    first, failures = False, 0
                    if self._ended:
                        return
                    async for event in events:
                        if self._is_new(event):
                            yield event
                        if self._ended:
                            return
                why = "the server closed the stream"
            except (Unreachable, Refused) as failure:
                if first or (isinstance(failure, Refused) and failure.status < 500 and failure.status != 429):
                    raise
                why = failure.message
            if failures == 0:
                self._trouble(why)
            await asyncio.sleep(self._backoff_seconds[min(failures, len(self._backoff_seconds) - 1)])
            failures += 1

    async def _history(self, whole: bool) -> list[Event]:
        if whole:
            before = await whole_history(self._api, self._session_id)
        else:
            before = await recent(self._api, self._session_id, _Enough())
        return [event for event in before if self._is_new(event)]

    async def _missed(self) -> list[Event]:
        since = await recent(self._api, self._session_id, lambda event: event["id"] == self._last)
        return [event for event in since if self._is_new(event)]

    def _is_new(self, event: Event) -> bool:
        """Whether this has not been seen in this form; from now on it has."""
        if event["type"] in _PREVIEWS:
            return True
        self._ended = self._ended or event["type"] in LAST
        waiting = event["processed_at"] is None
        key = (event["id"], waiting)
        if key in self._seen or (waiting and (event["id"], False) in self._seen):
            return False
        self._seen.add(key)
        if not waiting:
            self._last = event["id"]
        return True


class _Enough:
    """True once a page's worth of events has passed and the newest step is among them."""

    def __init__(self) -> None:
        self._count = 0
        self._step = False

    def __call__(self, event: Event) -> bool:
        self._count += 1
        self._step = self._step or is_step(event)
        return self._step and self._count >= _PAGE


async def require(api: ApiClient, session_id: str) -> Event:
    """The session of this id; raises `Failure` that says how to find the right one."""
    try:
        return await api.get(f"/v1/sessions/{session_id}")
    except Refused as refused:
        if refused.status == 404:
            raise Failure(
                f"There is no session {session_id}.", "`corral session list` shows those there are."
            ) from refused
        raise
