"""One work item from its claim to its end.

The heartbeat comes first and waits for nothing. The stream is opened before the history is read, so that no
event falls between them, and both again after every break. Ends are of five kinds; what each owes to the
server, to the calls in hand and to the sandbox stands in `_wind_up`.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from enum import Enum, auto
from typing import Final

import structlog

from corral.hands.sandbox.provider import ToolOutput
from corral.hands.worker.answers import WorkItem
from corral.hands.worker.calls import READERS, Begun, Calls
from corral.hands.worker.events import SeenEvent
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.lease import Lease, LeaseEnd
from corral.hands.worker.ledger import Cut, Ledger, ToolCall
from corral.hands.worker.pace import Backoff
from corral.hands.worker.results import Results
from corral.hands.worker.session_hands import Bench, SessionHands
from corral.wire.secret import Secret

_ACK_ATTEMPTS: Final = 4
_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class End(Enum):
    """Why a worker is done with an item."""

    RESTED = auto()
    """The session has been idle for long, or its place is wanted."""
    GONE = auto()
    """The session has ended for good."""
    LOST = auto()
    """The lease is somebody else's."""
    STOPPING = auto()
    """The server wants the item back."""
    SHUTDOWN = auto()
    """The worker ends."""


class ItemRun:
    """Serves one claimed item. Made for one `run`.

    key: the worker's own credential, used where the item brought none. on_change: called when `resting_since`
    has changed.
    """

    def __init__(self, bench: Bench, item: WorkItem, key: Secret, on_change: Callable[[], None]) -> None:
        self._bench = bench
        self._api = bench.api
        self._item = item
        self._poll_key = key
        self._key = item.token or key
        self._on_change = on_change
        self._lease = Lease(bench.api, item, self._key, bench.pace)
        self._hands = SessionHands(bench, item, self._key)
        self._ledger = Ledger()
        self._results = Results(
            bench.api, item.session_id, self._key, self._lease, bench.pace, bench.undelivered
        )
        self._calls = Calls(
            begin=self._begin,
            recall=lambda call: bench.undelivered.outcome(item.session_id, call),
            execute=self._hands.execute,
            post=self._deliver,
            on_settled=self._settled,
        )
        self._news = asyncio.Event()
        self._ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._idle_since: float | None = None
        self.resting_since: float | None = None
        """Since when (by the monotonic clock) the item could be given back without harm."""

    def end(self, why: End) -> None:
        """Ask the run to end. The first reason counts."""
        if not self._ended.done():
            self._ended.set_result(why)

    async def run(self, previous: asyncio.Task[None] | None) -> None:
        """Serve the item to its end. previous: the run of an earlier item of the same session, if any."""
        with structlog.contextvars.bound_contextvars(session_id=self._item.session_id):
            if not await self._acknowledge():
                return
            keeping = asyncio.create_task(self._lease.keep(), name=f"lease {self._item.id}")
            await self._hands.open()
            tasks = [
                asyncio.create_task(self._serve(previous), name=f"serve {self._item.id}"),
                asyncio.create_task(self._watch_lease()),
                asyncio.create_task(self._watch_idle()),
            ]
            if self._hands.files is not None:
                collecting = self._hands.files.run()
                tasks.append(asyncio.create_task(collecting, name=f"outputs {self._item.id}"))
            try:
                watched = [*tasks, keeping]
                await asyncio.wait([self._ended, *watched], return_when=asyncio.FIRST_COMPLETED)
                self._fail_if_any(watched)
                why = await self._ended
                await _cancelled(tasks)
                if await self._wind_up(why):
                    # Until here the lease has to be held; with the item its token dies.
                    await _cancelled([keeping])
                    await self._stop_item()
            finally:
                await _cancelled([*tasks, keeping])
                await self._calls.abandon()
                self._bench.sandboxes.doors.dismiss(self._item.session_id, self._key)

    def _fail_if_any(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                _log.error("an item could not be served", work_id=self._item.id, exc_info=error)
                self.end(End.RESTED)

    async def _acknowledge(self) -> bool:
        backoff = Backoff(self._bench.pace)
        # With the key that polled; on the pool that is not the documented one, so there with the item's own.
        key = self._key if self._api.is_corral else self._poll_key
        for attempt in range(1, _ACK_ATTEMPTS + 1):
            try:
                await self._api.acknowledge(self._item, key)
            except ApiFailure as failure:
                _log.warning("ack failed", work_id=self._item.id, attempt=attempt, reason=str(failure))
                if not failure.may_pass:
                    await self._stop_item()
                    return False
                await asyncio.sleep(backoff.next(failure.retry_after))
            else:
                _log.info("item claimed", work_id=self._item.id)
                return True
        return False  # it is offered again before long

    async def _watch_lease(self) -> None:
        await self._lease.ended.wait()
        self.end(End.STOPPING if self._lease.end is LeaseEnd.STOPPING else End.LOST)

    async def _serve(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._bench.sandboxes.doors.admit(self._item.session_id, self._key)
        backoff = Backoff(self._bench.pace)
        while not self._ended.done():
            try:
                await self._follow(backoff)
                reason = "the server closed it"
            except ApiFailure as failure:
                if failure.status in (401, 403):
                    self._lease.lose()
                elif failure.status == 404:
                    self.end(End.GONE)
                elif not failure.may_pass:
                    raise
                reason = str(failure)
            if not self._ended.done():
                wait = backoff.next()
                _log.info("stream ended, reconnecting", reason=reason, seconds=round(wait, 2))
                await asyncio.sleep(wait)

    async def _follow(self, backoff: Backoff) -> None:
        """Open the stream, read the history, follow the stream until it breaks."""
        session_id = self._item.session_id
        session = await self._api.session(session_id, self._key)
        if session.is_over:
            self.end(End.GONE)
            return
        await self._hands.attach(session)
        async with self._api.stream(session_id, self._key) as events:
            async with aclosing(self._api.history(session_id, self._key)) as history:
                async for event in history:
                    self._note(event)
            if not self._ledger.started and session.status == "idle":
                self._ledger.turn_over = self._ledger.paused = True
            self._act()
            async for event in events:
                backoff.reset()
                self._note(event)
                self._act()

    def _note(self, event: SeenEvent) -> None:
        for call_id, why in self._ledger.note(event):
            self._calls.cut(call_id, why)

    def _act(self) -> None:
        """Do what the ledger says, and tell the idle watch."""
        if self._ledger.over:
            self.end(End.GONE)
            return
        for call in self._ledger.take_due():
            self._calls.submit(call)
        self._rest()

    def _rest(self) -> None:
        # What waits for others (a confirmation, a custom tool) is offered anew by Corral once it goes on; of
        # another server only the end of a turn is known to be a good moment to let go.
        calm = self._ledger.paused if self._api.is_corral else self._ledger.turn_over
        resting = calm and not self._calls.busy
        if resting != (self.resting_since is not None):
            self.resting_since = time.monotonic() if resting else None
            self._on_change()
        idle = self._ledger.turn_over and not self._calls.busy
        if idle != (self._idle_since is not None):
            self._idle_since = time.monotonic() if idle else None
            self._news.set()
            if idle and self._hands.files is not None:
                # What a process in the background has written since the last call.
                self._hands.files.ask()

    async def _watch_idle(self) -> None:
        while True:
            self._news.clear()
            since = self._idle_since
            left = None if since is None else since + self._bench.idle_seconds - time.monotonic()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                self.end(End.RESTED)
                return

    def _settled(self, call: ToolCall) -> None:
        self._ledger.settle(call.id)
        self._rest()

    async def _begin(self, call: ToolCall) -> Begun:
        if not (self._api.is_corral and self._item.token is not None):
            fresh = await self._bench.sandboxes.begin_call(self._item.session_id, call.id)
            return Begun.YES if fresh else Begun.ELSEWHERE
        backoff = Backoff(self._bench.pace)
        while self._lease.is_ours:
            try:
                begun = await self._api.begin_call(self._item.session_id, call.id, self._key)
            except ApiFailure as failure:
                if failure.status in (401, 403):
                    self._lease.lose()
                if not failure.may_pass:
                    _log.info("call not begun", tool_use_id=call.id, reason=str(failure))
                    return Begun.MOOT
                await asyncio.sleep(backoff.next(failure.retry_after))
            else:
                if begun is None:
                    return Begun.ELSEWHERE
                self._hands.note_begun(begun)
                return Begun.YES
        return Begun.MOOT

    async def _deliver(self, call: ToolCall, output: ToolOutput) -> None:
        """Post a result, after what the call has put out: who reads of it finds the files there."""
        files = self._hands.files
        if files is not None and call.name not in READERS and not self._ended.done():
            settling = asyncio.create_task(files.settled(self._bench.pace.outputs))
            try:
                await asyncio.wait([settling, self._ended], return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _cancelled([settling])
        await self._results.post(call, output)

    async def _wind_up(self, why: End) -> bool:
        """Bring the calls in hand to an end; returns whether the item is ours to stop."""
        pace, sandboxes, session_id = self._bench.pace, self._bench.sandboxes, self._item.session_id
        _log.info("item ends", work_id=self._item.id, why=why.name.lower())
        match why:
            case End.LOST:
                # Another worker may be at it: nothing of ours may go on, or be said.
                self._calls.cut_all(Cut.LOST)
                await self._calls.abandon()
                await sandboxes.stop(session_id)
                return False
            case End.GONE:
                self._calls.cut_all(Cut.LOST)
                await self._calls.abandon()
                await sandboxes.discard(session_id)
            case End.STOPPING:
                await self._calls.wait(pace.stopping_grace)
                self._calls.cut_all(Cut.STOPPED)
                await self._calls.wait(pace.farewell)
            case End.SHUTDOWN:
                self._calls.cut_all(Cut.SHUTDOWN)
                await self._calls.wait(pace.farewell)
            case End.RESTED:
                self._calls.cut_all(Cut.STOPPED)
                await self._calls.wait(pace.farewell)
        if why is not End.GONE:
            await self._hands.finish()
        return True

    async def _stop_item(self) -> None:
        if not self._lease.is_ours:
            return  # whoever has it now goes on with it
        try:
            async with asyncio.timeout(self._bench.pace.farewell):
                await self._api.stop(self._item, self._key)
        except (ApiFailure, TimeoutError) as failure:
            # Its lease runs out by itself.
            _log.info("item not stopped", work_id=self._item.id, reason=str(failure) or "no answer in time")


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
