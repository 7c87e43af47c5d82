"""Replays a session: would this version of Corral, given the same answers of the model, have acted alike?

Nothing outside is touched. The recorded log is walked along; where the brain acted, this version decides on
the same state, with the model's recorded answer, and what it would write and ask is held against what the log
has. What came from outside (tools' results, the client, the API) is taken as it is. The state is always that
of the recorded log, so one difference does not bring others after it; the first one ends the replay.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, assert_never

import msgspec

import corral
from corral.brain import compaction, emit
from corral.brain.decide import (
    AwaitRetry,
    CallModel,
    CloseRequest,
    Compact,
    Deny,
    Evaluate,
    GoIdle,
    Interrupt,
    Rest,
    Rules,
    RunTools,
    Settle,
    TakeVerdicts,
    decide,
    interrupt,
    is_interrupted,
    settle,
    settle_all,
    status_of_others,
)
from corral.brain.kit import ThreadKit
from corral.brain.rulings import EVENTLESS, RECORD
from corral.brain.spilled import READ
from corral.extensions.closing import closing
from corral.extensions.comparing import first_difference
from corral.extensions.recorded import RecordedSession, model_failure, model_response
from corral.session.events import Event, Input, NewEvent
from corral.session.state import SessionState, as_if, fold, is_copy, with_inputs
from corral.session.thread_state import COMPACTION

_QUEUED: Final = frozenset({"user.message", "user.interrupt", "user.tool_confirmation", "system.message"})
_OWN: Final = frozenset(
    {
        *_QUEUED,
        *("agent.thinking", "agent.message", "agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"),
        *("agent.thread_message_sent", "agent.thread_message_received", "session.thread_created"),
        *("span.model_request_start", "span.model_request_end", "session.usage"),
        *("session.status_running", "session.status_idle", "session.status_rescheduled"),
        *("session.thread_status_running", "session.thread_status_idle", "session.thread_status_rescheduled"),
    }
)
"""What the brain alone writes, or takes up: it has to be what this version would write."""
_ENDS: Final = frozenset({"session.status_terminated", "session.thread_status_terminated"})


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where this version would have acted in another way."""

    seq: int
    event_id: str | None
    kind: str
    """`event`: it would write another event; `request`: it would ask the model something else."""
    what: str
    """In plain words."""
    recorded: dict[str, Any] | None
    """What the log has there."""
    now: dict[str, Any] | None
    """What this version would write; null if nothing."""


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay has come to."""

    session_id: str
    recorded_by: str
    """The version that exported the session."""
    replayed_by: str
    events: int
    compared: int
    """Events that this version would have written as they are."""
    taken: int
    """Events from outside, which were taken as they are."""
    requests: int
    """Model requests that would be the same; those recorded without digests are in `unknown_requests`."""
    unknown_requests: int
    difference: Difference | None


class _Found(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.what)
        self.difference = difference


class Replay:
    """One replay. `progress` is told the number of events that are done."""

    def __init__(self, session: RecordedSession, progress: Callable[[int], None] | None = None) -> None:
        self._session = session
        self._events = session.events
        self._progress = progress
        self._rules = Rules(self_hosted=session.claim.self_hosted, session_hour=session.prices.session_hour)
        self._state = SessionState(session.claim.thread_id, budget=session.claim.budget)
        self._kits: dict[str, ThreadKit] = {}
        self._asked: dict[str, dict[str, str]] = {}
        """What this version would ask, by the event that starts the request."""
        self._at = 0
        self._compared = self._taken = self._requests = self._unknown = 0

    async def run(self) -> ReplayReport:
        """Go through the log until it ends, or something differs."""
        difference = None
        try:
            while self._at < len(self._events):
                await self._step()
                if self._progress is not None:
                    self._progress(self._at)
        except _Found as found:
            difference = found.difference
        return ReplayReport(
            session_id=self._session.session_id,
            recorded_by=self._session.recorded_by,
            replayed_by=corral.__version__,
            events=len(self._events),
            compared=self._compared,
            taken=self._taken,
            requests=self._requests,
            unknown_requests=self._unknown,
            difference=difference,
        )

    async def _step(self) -> None:
        event = self._events[self._at]
        closest: tuple[int, Sequence[NewEvent], Event | None] | None = None
        for written, may_stop in await self._candidates(event):
            recorded = self._events[self._at : self._at + len(written)]
            different = first_difference(written, recorded)
            if different is None:
                return await self._take(len(written), compared=True)
            place, new, found = different
            if may_stop and place and new is not None and new.type == "span.model_request_start":
                # The tools of MCP servers were listed first, which takes a commit of its own.
                return await self._take(place, compared=True)
            if closest is None or place > closest[0]:
                closest = place, written, found
        if event.type not in _OWN or self._is_from_outside(event):
            return await self._take(1, compared=False)
        raise _Found(self._difference(event, closest))

    def _difference(
        self, event: Event, closest: tuple[int, Sequence[NewEvent], Event | None] | None
    ) -> Difference:
        if closest is None:
            what = f"the log goes on with {event.type}; this version would wait here"
            return _different("event", event, what, None)
        place, written, _ = closest
        at = self._at + place
        recorded = self._events[at] if at < len(self._events) else None
        new = written[place]
        shown = {"type": new.type, **new.body}
        if recorded is None:
            what = f"the log ends; this version would go on with {new.type}"
            return Difference(seq=at + 1, event_id=None, kind="event", what=what, recorded=None, now=shown)
        what = f"the log has {recorded.type}; this version would write {new.type}"
        if recorded.type == new.type:
            what = f"this version would write another {new.type}"
        return _different("event", recorded, what, shown)

    def _is_from_outside(self, event: Event) -> bool:
        """Whether one of the brain's events is there for another reason than a decision of the brain."""
        if self._has_help(event):
            return True
        if event.type in _QUEUED:
            # Archiving takes up what waited, for it to be seen.
            rest = self._events[self._at + len(self._run(event)) :]
            return bool(rest) and rest[0].type in _ENDS
        private = event.private or {}
        # The server had failed inside: it closed its request, and said so.
        return (
            event.type == "span.model_request_end"
            and private.get("outcome") == "failed"
            and ("failure" not in private)
        )

    def _has_help(self, event: Event) -> bool:
        """Whether it is of an answer that others than the log had a word in: the operator's rules, a judge, a
        look into the log of that moment. A summary is the model's own.
        """
        request = self._state.thread(event.thread_id).request
        if request is None or (end := self._end_of(request)) is None:
            return False
        private = end.private or {}
        if private.get("outcome") in (COMPACTION, "overflow") or EVENTLESS in private:
            return True
        return any(
            RECORD in (one.private or {}) or one.body.get("name") == READ
            for one in self._events[self._at : end.seq]
            if one.thread_id == event.thread_id
        )

    async def _take(self, count: int, *, compared: bool) -> None:
        for event in self._events[self._at : self._at + count]:
            self._state = fold(self._state, event)
            await self._fed(event)
            self._at += 1
            if is_copy(event):
                self._check_closing(event)
            if event.type == "span.model_request_start" and "purpose" not in (event.private or {}):
                self._asked[event.id] = (await (await self._kit(event.thread_id)).request()).asked
            if event.type == "span.model_request_end":
                self._check_request(event)
        self._compared += count if compared else 0
        self._taken += 0 if compared else count

    def _check_request(self, event: Event) -> None:
        asked = self._asked.pop(event.body["model_request_start_id"], None)
        if (event.private or {}).get("outcome") != "completed":
            return
        recorded = (event.private or {}).get("request")
        if recorded is None or asked is None:
            self._unknown += 1
            return
        differs = [name for name in recorded if recorded[name] != asked.get(name)]
        if differs:
            start = next(e for e in self._events if e.id == event.body["model_request_start_id"])
            what = f"this version would ask the model something else: {', '.join(differs)}"
            raise _Found(
                Difference(
                    seq=start.seq, event_id=start.id, kind="request", what=what, recorded=recorded, now=asked
                )
            )
        self._requests += 1

    def _check_closing(self, event: Event) -> None:
        """Of a fork or an import: whether its end would be closed in the same way."""
        written = closing(self._state, lambda thread: self._kits[thread.id].voice, event.processed_at)
        recorded = self._events[self._at : self._at + len(written)]
        different = first_difference(written, recorded)
        if different is not None:
            raise _Found(self._difference(event, (different[0], written, different[2])))
        for closed in recorded:
            self._state = fold(self._state, closed)
            self._kits[closed.thread_id].add(closed)
        self._at += len(recorded)
        self._compared += len(recorded)

    async def _fed(self, event: Event) -> None:
        """Give an event to the thread that it is of, and to those that an interrupt of all stops."""
        if event.type == "session.updated" and "agent" in event.body:
            self._session.change_agent(event.body["agent"])
            self._kits.pop(self._session.claim.thread_id, None)
            await self._kit(self._session.claim.thread_id, upto=self._at + 1)
            return
        (await self._kit(event.thread_id)).add(event)
        if event.type == "user.interrupt" and event.body.get("session_thread_id") is None:
            for thread in self._state.threads.values():
                if thread.interrupted:
                    (await self._kit(thread.id)).add(event)

    async def _kit(self, thread_id: str, *, upto: int = 0) -> ThreadKit:
        kit = self._kits.get(thread_id)
        if kit is None:
            kit = self._kits[thread_id] = self._session.kit(self._state.thread(thread_id))
            await kit.prepare()
            for event in self._events[:upto]:
                if event.thread_id == thread_id:
                    kit.add(event)
        return kit

    def _run(self, event: Event) -> list[Event]:
        """The client's events that begin with this one: what waited, and was taken up."""
        run: list[Event] = []
        for one in self._events[self._at :]:
            if one.type not in _QUEUED:
                break
            run.append(one)
        return run if event.type in _QUEUED else []

    async def _candidates(self, event: Event) -> list[tuple[Sequence[NewEvent], bool]]:
        """What this version may write now: the events, and whether they may stop before a model request."""
        waiting = [
            Input(n, one.id, one.type, one.thread_id, one.body) for n, one in enumerate(self._run(event), 1)
        ]
        state = with_inputs(self._state, waiting, len(waiting))
        found: list[tuple[Sequence[NewEvent], bool]] = []
        for thread_id in dict.fromkeys([event.thread_id, *state.threads]):
            kit = await self._kit(thread_id)
            for written in self._acts(state, kit, event):
                if written:
                    found.append((written, bool(kit.agent.get("mcp_servers"))))
        return found

    def _acts(self, state: SessionState, kit: ThreadKit, event: Event) -> Iterator[Sequence[NewEvent]]:
        voice, now, thread = kit.voice, event.processed_at, state.thread(kit.voice.thread_id)
        if thread.request is not None and (end := self._end_of(thread.request)) is not None:
            yield self._ended(state, kit, thread.request, end)
        action = decide(state, self._rules, now, thread.id)
        match action:
            case CloseRequest():
                yield [emit.request_end(voice, action.start_id, "orphaned", is_error=True)]
            case Interrupt():
                taken = [waiting.taken() for waiting in action.inputs]
                yield self._interrupted(state, kit, action, None, idles=action.ends_turn)
                if self._rules.self_hosted:
                    yield taken
            case TakeVerdicts():
                yield [waiting.taken() for waiting in action.inputs]
            case Deny():
                yield [emit.result(voice, call, emit.denial(call)) for call in action.calls]
            case RunTools():
                yield emit.running(voice, state)
            case CallModel():
                taken = [waiting.taken() for waiting in action.inputs]
                yield [*taken, *emit.running(voice, state), voice.event("span.model_request_start")]
            case Compact():
                yield [*emit.running(voice, state), compaction.start(voice)]
            case Evaluate():
                pass  # what the grader says is the model's word, and is taken as it stands
            case GoIdle():
                settled = settle(state, self._rules, now, action, thread.id)
                taken = [waiting.taken() for waiting in action.flush]
                yield [*taken, *emit.idle(voice, state, action, now, settled)]
            case Settle():
                yield emit.session_idle(voice, state, settle_all(state, self._rules, now), now)
            case AwaitRetry() | Rest():
                pass
            case _:
                assert_never(action)

    def _end_of(self, start_id: str) -> Event | None:
        for event in self._events[self._at :]:
            if event.type == "span.model_request_end" and event.body["model_request_start_id"] == start_id:
                return event
        return None

    def _ended(self, state: SessionState, kit: ThreadKit, start_id: str, end: Event) -> Sequence[NewEvent]:
        """What this version writes of a model request's end, given how it ended."""
        voice, thread_id = kit.voice, kit.voice.thread_id
        match (end.private or {}).get("outcome"):
            case "completed":
                answer = model_response(end)
                return emit.response(voice, start_id, answer, emit.PreviewIds(), self._state)
            case "interrupted" if is_interrupted(state, thread_id):
                action = interrupt(state, state.thread(thread_id))
                return self._interrupted(state, kit, action, start_id, idles=True)
            case "failed" if "failure" in (end.private or {}):
                failure, retry_at = model_failure(end, self._events[end.seq : end.seq + 4])
                others = status_of_others(self._state, self._rules, end.processed_at, thread_id)
                alone = others != "running" and self._state.status == "running"
                return emit.failed(voice, start_id, failure, retry_at=retry_at, alone=alone)
            case _:
                return ()

    def _interrupted(
        self, state: SessionState, kit: ThreadKit, action: Interrupt, start_id: str | None, *, idles: bool
    ) -> Sequence[NewEvent]:
        voice = kit.voice
        taken = [waiting.taken() for waiting in action.inputs]
        outcome = None if voice.primary else state.outcome
        events = emit.interruption(voice, taken, start_id=start_id, calls=action.calls, outcome=outcome)
        if idles:
            now = self._events[self._at].processed_at
            ended = GoIdle("end_turn")
            settled = settle(as_if(state, taken, now), self._rules, now, ended, voice.thread_id)
            events += emit.idle(voice, state, ended, now, settled)
        return events


def _different(kind: str, event: Event, what: str, now: dict[str, Any] | None) -> Difference:
    shown = {"type": event.type, **event.body}
    return Difference(seq=event.seq, event_id=event.id, kind=kind, what=what, recorded=shown, now=now)
