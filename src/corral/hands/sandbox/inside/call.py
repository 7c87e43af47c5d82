"""One tool call while it is here: whether it was withdrawn, and what to do then."""

from __future__ import annotations

from .quick import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    """A call with its number. `withdraw` may come from another thread at any moment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = allocate_lock()
        self._withdrawn = False
        self._stop: Callable[[], None] | None = None

    @property
    def withdrawn(self) -> bool:
        """Whether the caller no longer wants the result."""
        return self._withdrawn

    def withdraw(self) -> None:
        """Mark the call and stop what it runs at the moment."""
        with self._lock:
            self._withdrawn = True
            if self._stop:
                self._stop()

    def stoppable(self, stop: Callable[[], None]) -> Stoppable:
        """Within the block, a withdrawal calls `stop`; at once, if it came before."""
        return Stoppable(self, stop)

    def stop_by(self, stop: Callable[[], None] | None) -> None:
        """From now on a withdrawal calls `stop`; at once, if it came before."""
        with self._lock:
            self._stop = stop
            if self._withdrawn and stop is not None:
                stop()


class Stoppable:
    """See `Call.stoppable`. Not by `contextlib`, whose import takes longer than a call."""

    def __init__(self, call: Call, stop: Callable[[], None]) -> None:
        self._call = call
        self._stop = stop

    def __enter__(self) -> None:
        self._call.stop_by(self._stop)

    def __exit__(self, *_: object) -> None:
        self._call.stop_by(None)
