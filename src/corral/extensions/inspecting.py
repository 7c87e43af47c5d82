"""Looks through an exported session before anything is made of it: its form, its sums, its chain, its events.

What a file says is somebody's word. Each event must have the shape that the API shows, and the private part
that the brain goes by; the agents must be agents. Whether all of it makes a log is found when it is folded.
"""

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

import msgspec

from corral.extensions.archive import (
    FILES,
    FORMAT,
    MANIFEST,
    SESSION,
    VERSION,
    ArchiveReader,
    EventLine,
    ExportedSession,
    Manifest,
    decoded,
)
from corral.session.chain import Problem, StoredEvent, Walk
from corral.session.seals import VerifyKey
from corral.wire.agents import SessionAgent
from corral.wire.errors import InvalidRequest
from corral.wire.forks import EVENTS
from corral.wire.multiagent import member_agents
from corral.wire.shown_spans import ShownEvent
from corral.wire.times import to_wire

_PLAIN: Final = str.isprintable
_INLINE: Final = {"id": "inline", "version": 1, "multiagent": None}


class _Answered(msgspec.Struct):
    text: str
    is_error: bool


class _Answer(msgspec.Struct):
    """What the brain goes by of a model's answer."""

    content: list[dict[str, Any]]
    calls: dict[str, str]
    stop_reason: str | None = None
    answered: dict[str, _Answered] = {}


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a file that is in order."""

    manifest: Manifest
    session: ExportedSession
    events: int
    head: bytes | None
    last_event: str | None
    event_ids: list[str]
    threads: list[str]
    outcomes: list[str]
    file_ids: frozenset[str]
    """The files that the conversation names."""
    problem: Problem | None
    """Where the log is not what its chain says."""
    heads: dict[int, bytes]
    signed_by: VerifyKey | None


def inspect(file: IO[bytes], *, watch: int | None = None) -> Inspected:
    """Read a file from its beginning to its end. Blocking.

    `watch` is a place of the log whose link is wanted.

    Raises:
        InvalidRequest: it is not in order; the message says what is wrong.
        RequestTooLarge: it holds more than a session may.
    """
    file.seek(0)
    reader = ArchiveReader(file)
    manifest, session, walk = None, None, Walk("")
    found = _Found()
    contents: dict[str, int] = {}
    for member in reader.members():
        if member.name == MANIFEST:
            manifest = _manifest(member.content())
            walk = Walk(manifest.session_id, () if watch is None else (watch,))
        elif member.name == SESSION:
            session = decoded(member.content(), ExportedSession, SESSION)
            _check_agents(session.agent)
        elif member.name.startswith("events/"):
            for line in member.lines():
                event = event_of(line)
                found.add(event)
                walk.add(event)
        else:
            contents[member.name.removeprefix("files/")] = member.size
    if manifest is None or session is None or manifest.session_id != session.id:
        raise InvalidRequest("The file does not say which session it holds")
    declared = {one.id: one.size_bytes for one in session.files}
    if contents != declared or len(declared) != len(session.files) or len(declared) > FILES:
        raise InvalidRequest("The file does not hold the files that it names")
    problem = walk.problem
    if problem is None and manifest.events != found.count:
        problem = Problem(
            "missing", found.count + 1, None, f"event {found.count + 1} is missing from the file"
        )
    if problem is None and found.count and manifest.head != walk.head.hex():
        message = "the log does not come to the head that the file names"
        problem = Problem("head", found.count, None, message)
    return Inspected(
        manifest=manifest,
        session=session,
        events=found.count,
        head=walk.head if found.count else None,
        last_event=walk.last_id,
        event_ids=found.event_ids,
        threads=[session.primary_thread_id, *found.threads],
        outcomes=found.outcomes,
        file_ids=frozenset(found.file_ids),
        problem=problem,
        heads=walk.heads,
        signed_by=reader.signed_by,
    )


def _manifest(content: bytes) -> Manifest:
    manifest = decoded(content, Manifest, MANIFEST)
    if manifest.format != FORMAT:
        raise InvalidRequest("The file is not a session that Corral has exported")
    if manifest.version != VERSION:
        raise InvalidRequest(
            f"The file is of version {manifest.version} of the format; this Corral reads version {VERSION}"
        )
    return manifest


def stored_events(file: IO[bytes]) -> Iterator[StoredEvent]:
    """The events of a file that was found to be in order. Blocking."""
    file.seek(0)
    for member in ArchiveReader(file).members():
        if member.name.startswith("events/"):
            yield from map(event_of, member.lines())


def event_of(line: bytes) -> StoredEvent:
    """The event of a line; raises `InvalidRequest`."""
    try:
        return decoded(line, EventLine, "an event").stored()
    except ValueError as error:
        raise InvalidRequest(f"An event of the file is broken: {error}") from None


class _Found:
    """Goes through the events of a file, and keeps what they name."""

    def __init__(self) -> None:
        self.count = 0
        self.event_ids: list[str] = []
        self.threads: list[str] = []
        self.outcomes: list[str] = []
        self.file_ids: set[str] = set()

    def add(self, event: StoredEvent) -> None:
        self.count += 1
        if self.count > EVENTS:
            raise InvalidRequest(f"The session has more than {EVENTS} events")
        if event.seq != self.count:
            return  # the walk along the chain says so
        try:
            self._look(event)
        except (msgspec.ValidationError, msgspec.DecodeError, RecursionError, KeyError, TypeError) as error:
            raise InvalidRequest(f"Event {event.seq} of the file is not one: {error}") from None

    def _look(self, event: StoredEvent) -> None:
        names = (event.id, event.type, event.thread_id, event.resolves or "")
        if not all(map(_PLAIN, names)) or not 0 <= event.crossposted <= 2:
            raise TypeError("its names are none")
        body: dict[str, Any] = msgspec.json.decode(event.body, type=dict[str, Any])
        if body.get("id") != event.id or body.get("type") != event.type:
            raise TypeError("it has two names")
        msgspec.convert({**body, "processed_at": to_wire(event.processed_at)}, ShownEvent)
        private = None if event.private is None else msgspec.json.decode(event.private, type=dict[str, Any])
        self._look_at_private(event.type, private or {})
        self.event_ids.append(event.id)
        if event.type == "session.thread_created":
            self.threads.append(body["session_thread_id"])
        if event.type == "user.define_outcome":
            self.outcomes.append(body["outcome_id"])
        self._note_files(body)

    def _look_at_private(self, kind: str, private: dict[str, Any]) -> None:
        if kind == "session.thread_created":
            _check_agent({**_INLINE, **private["agent"], "type": "agent"})
        if kind == "span.model_request_end" and private.get("outcome") == "completed":
            msgspec.convert(private, _Answer)

    def _note_files(self, value: Any) -> None:
        match value:
            case {"file_id": str() as file_id}:
                self.file_ids.add(file_id)
            case dict():
                for item in value.values():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                    self._note_files(item)
            case list():
                for item in value:  # pyright: ignore[reportUnknownVariableType]
                    self._note_files(item)
            case _:
                pass


def _check_agents(agent: Mapping[str, Any]) -> None:
    try:
        _check_agent(agent)
        for member in member_agents(agent):
            _check_agent({"multiagent": None, **member})
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"The agent of the file is not one: {error}") from None


def _check_agent(agent: Mapping[str, Any]) -> None:
    msgspec.convert(agent, SessionAgent)
