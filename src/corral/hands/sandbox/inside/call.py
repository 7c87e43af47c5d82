"""One tool call while it is here: whether it was withdrawn, and what to do then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Call:
    """A call with its number. `withdraw` may come from another thread at any moment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
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

    @contextmanager
    def stoppable(self, stop: Callable[[], None]) -> Generator[None]:
        """Within the block, a withdrawal calls `stop`; at once, if it came before."""
        with self._lock:
            self._stop = stop
            if self._withdrawn:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None
