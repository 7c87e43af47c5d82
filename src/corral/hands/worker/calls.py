"""The calls in hand of one session: run in the model's order, cut when they must not go on.

A call that may change something waits for all calls before it and holds up all calls after it; calls that
only read run beside each other. The result of a call is posted while the next one runs already.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import structlog

from corral.hands.sandbox.provider import ToolOutput
from corral.hands.worker.ledger import Cut, ToolCall
from corral.hands.worker.results import error_output

READERS: Final = frozenset({"read", "glob", "grep"})
"""The tools that change nothing."""

_INTERRUPTED: Final = "The tool call was interrupted before it had finished. Its effects may be partial."
_SHUTDOWN: Final = "The worker is shutting down; the call was cut off. Its effects may be partial."
_STOPPED: Final = "The work item was stopped; the call was cut off. Its effects may be partial."

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Begun(Enum):
    """Whether a call may be run."""

    YES = auto()
    ELSEWHERE = auto()
    """It had begun under another claim: it must not be run again."""
    MOOT = auto()
    """Nobody can answer it any more."""


class _Phase(Enum):
    NEW = auto()
    """Its task has not run yet: to cancel that now would be to forget the call."""
    WAITING = auto()
    RUNNING = auto()
    POSTING = auto()


@dataclass(slots=True)
class _InHand:
    call: ToolCall
    executed: asyncio.Event
    task: asyncio.Task[None] | None = None
    phase: _Phase = _Phase.NEW
    cut: Cut | None = None


class Calls:
    """The calls in hand.

    begin: asked right before a call is run. recall: the outcome of a call that had begun elsewhere. execute:
    runs a call; when cancelled it returns only once nothing of it is left. post: delivers a result.
    on_settled: told when a call is done with.
    """

    def __init__(
        self,
        *,
        begin: Callable[[ToolCall], Awaitable[Begun]],
        recall: Callable[[ToolCall], ToolOutput],
        execute: Callable[[ToolCall], Awaitable[ToolOutput]],
        post: Callable[[ToolCall, ToolOutput], Awaitable[None]],
        on_settled: Callable[[ToolCall], None],
    ) -> None:
        self._begin = begin
        self._recall = recall
        self._execute = execute
        self._post = post
        self._on_settled = on_settled
        self._in_hand: dict[str, _InHand] = {}

    @property
    def busy(self) -> bool:
        """Whether any call is waiting, running or being posted."""
        return bool(self._in_hand)

    def submit(self, call: ToolCall) -> None:
        """Take a call in hand, after those that were submitted before it."""
        reads = call.name in READERS
        before = [
            other.executed for other in self._in_hand.values() if not (reads and other.call.name in READERS)
        ]
        entry = _InHand(call, asyncio.Event())
        self._in_hand[call.id] = entry
        entry.task = asyncio.create_task(self._carry(entry, before), name=f"call {call.id}")

    def cut(self, call_id: str, why: Cut) -> None:
        """End a call. What is posted for it, if anything, depends on why; a result on its way goes on."""
        entry = self._in_hand.get(call_id)
        if entry is None or entry.task is None or entry.cut is not None:
            return
        if entry.phase is _Phase.POSTING and why is not Cut.LOST:
            return
        entry.cut = why
        if entry.phase is not _Phase.NEW:
            entry.task.cancel()

    def cut_all(self, why: Cut) -> None:
        """End every call."""
        for call_id in list(self._in_hand):
            self.cut(call_id, why)

    async def wait(self, seconds: float) -> bool:
        """Wait until no call is in hand, at most so long. Returns whether that is so."""
        tasks = [entry.task for entry in self._in_hand.values() if entry.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return not self._in_hand

    async def abandon(self) -> None:
        """End whatever is left, and wait for it; nothing more is posted."""
        tasks = [entry.task for entry in self._in_hand.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._in_hand.clear()

    async def _carry(self, entry: _InHand, before: list[asyncio.Event]) -> None:
        call = entry.call
        try:
            output = await self._outcome(entry, before)
            entry.executed.set()
            entry.phase = _Phase.POSTING
            if output is not None:
                await self._post(call, output)
        except asyncio.CancelledError:
            if entry.cut is None:
                raise
        except Exception:
            _log.exception("a call could not be carried out", tool_use_id=call.id, tool=call.name)
        finally:
            entry.executed.set()
            self._in_hand.pop(call.id, None)
            self._on_settled(call)

    async def _outcome(self, entry: _InHand, before: list[asyncio.Event]) -> ToolOutput | None:
        """What to post for the call; None for nothing."""
        entry.phase = _Phase.WAITING
        if entry.cut is not None:
            return _farewell(entry)
        try:
            for event in before:
                await event.wait()
            begun = await self._begin(entry.call)
            if begun is not Begun.YES:
                return self._recall(entry.call) if begun is Begun.ELSEWHERE else None
            entry.phase = _Phase.RUNNING
            return await self._execute(entry.call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if entry.cut is None or task is None:
                raise
            task.uncancel()
            _log.info("call cut", tool_use_id=entry.call.id, tool=entry.call.name, why=entry.cut.name.lower())
            return _farewell(entry)


def _farewell(entry: _InHand) -> ToolOutput | None:
    has_run = entry.phase is _Phase.RUNNING
    match entry.cut:
        case Cut.INTERRUPTED:
            return error_output(_INTERRUPTED)
        case Cut.SHUTDOWN:
            # One that has not begun is left to the next worker.
            return error_output(_SHUTDOWN) if has_run else None
        case Cut.STOPPED:
            return error_output(_STOPPED) if has_run else None
        case _:
            return None
