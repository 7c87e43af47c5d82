"""Where a session stands, from its events: at work or not, and which calls wait for a person."""

from collections.abc import Iterable

from corral.cli.api_client import Event
from corral.cli.session_facts import OpenCall, open_calls
from corral.cli.session_feed import LAST, is_step


class Standing:
    """Feed it every event of the session, in order."""

    def __init__(self, status: str) -> None:
        self.working = status in ("running", "rescheduling")
        self.ended = False
        self.stop: str | None = None
        """Why the session went idle last; None while it works."""
        self._step: list[Event] = []
        self._required: frozenset[str] = frozenset()
        self._settled: set[str] = set()

    def see(self, event: Event) -> None:
        """Take an event in."""
        kind = event["type"]
        if kind in ("event_start", "event_delta"):
            return
        if is_step(event):
            self._step.clear()
        self._step.append(event)
        if kind in ("session.status_running", "session.status_rescheduled"):
            self.working, self.stop, self._required = True, None, frozenset()
        elif kind == "session.status_idle":
            self.working, self.stop = False, event["stop_reason"]["type"]
            self._required = frozenset(event["stop_reason"].get("event_ids", ()))
        elif kind in LAST:
            self.working, self.ended, self._required = False, True, frozenset()

    def settle(self, call: OpenCall) -> None:
        """An answer to this call was sent."""
        self._settled.add(call.id)

    def reopen(self, call: OpenCall) -> None:
        """The answer did not get through."""
        self._settled.discard(call.id)

    @property
    def questions(self) -> tuple[OpenCall, ...]:
        """The calls that the session waits for and that a person can answer, in order."""
        return tuple(self._waiting("approval", "answer"))

    @property
    def needs_worker(self) -> bool:
        """Whether the session waits for a worker of its environment."""
        return not self.working and any(self._waiting("worker"))

    def _waiting(self, *needs: str) -> Iterable[OpenCall]:
        for call in open_calls(self._step):
            if call.id in self._required and call.id not in self._settled and call.need in needs:
                yield call
