"""A session as a file has recorded it, made ready to be replayed. Nothing here reaches outside the file."""

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import IO, Any, Final, NoReturn

import msgspec

from corral.brain.claims import Claim
from corral.brain.clearance import NO_POLICY
from corral.brain.context_rules import ContextSettings
from corral.brain.judge_context import JudgeContext
from corral.brain.kit import ThreadKit
from corral.brain.web_tools import WebOffer
from corral.extensions.archive import ExportedSession
from corral.extensions.inspecting import Inspected, stored_events
from corral.inference.prices import PriceTable, packaged_prices
from corral.inference.provider import FailureKind, ModelEvent, ModelFailed, ModelRequest, ModelResponse
from corral.session.chain import StoredEvent
from corral.session.events import Event
from corral.session.state import limit_cents
from corral.session.thread_state import ThreadState
from corral.wire.memory_stores import MountedStore
from corral.wire.skills import SessionSkill
from corral.wire.times import from_wire

_KINDS: Final[Mapping[str, FailureKind]] = {
    "model_overloaded_error": "overloaded",
    "model_rate_limited_error": "rate_limited",
    "billing_error": "billing",
    "model_request_failed_error": "failed",
}


class RecordedSession:
    """See the module. Its agent is the one that the session began with; `change_agent` goes on from there."""

    def __init__(self, file: IO[bytes], found: Inspected) -> None:
        """Read a file that was found to be in order. Blocking."""
        exported = found.session
        self.session_id = exported.id
        self.recorded_by = found.manifest.corral
        self.prices: PriceTable = packaged_prices()
        self.events = [_event(stored) for stored in stored_events(file)]
        self.claim = _claim(exported, self._first("agent"), self._first("budget"))
        self._web = msgspec.convert(exported.web, WebOffer)
        self._tools = _RecordedTools(exported.mcp_tools)

    def _first(self, name: str) -> Any:
        """What a field of the session was before it was first changed; None if it never was."""
        for event in self.events:
            former: dict[str, Any] = (event.private or {}).get("former", {})
            if name in former:
                return former[name]
        return None

    def change_agent(self, agent: dict[str, Any]) -> None:
        """The session's agent was changed."""
        self.claim = msgspec.structs.replace(self.claim, agent=agent)

    def kit(self, thread: ThreadState) -> ThreadKit:
        """What a thread works with, without anything that it could reach."""
        return ThreadKit(
            self.claim,
            thread,
            database=self._tools,  # pyright: ignore[reportArgumentType]
            files=_NoFiles(),
            gateway=None,
            prices=self.prices,
            provider=_NoModel(),
            web=self._web,
            policy=NO_POLICY,
            judge_context=JudgeContext(),
            spent=lambda: False,
            context=ContextSettings(),
            affordable=lambda model, spent: True,
        )


class _RecordedTools:
    """Stands in for the database, of which a kit reads the lists of MCP tools alone."""

    def __init__(self, listed: list[dict[str, Any]]) -> None:
        self._rows = [{**row, "tools": msgspec.json.encode(row["tools"]).decode()} for row in listed]

    async def fetch(self, query: str, params: object = ()) -> list[dict[str, Any]]:
        """The recorded lists; nothing else is ever asked for."""
        if "session_mcp_tools" not in query:
            raise AssertionError("a replay reaches for a database")
        return self._rows


class _NoFiles:
    """Files stand in the log by their ids, and that is what is compared."""

    async def read(self, file_id: str) -> tuple[str, bytes] | None:
        """None: their bytes are not of the log."""
        return None


class _NoModel:
    """A replay asks no model."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Raises AssertionError."""
        _unreachable()
        yield


def _unreachable() -> NoReturn:
    raise AssertionError("a replay asks a model")


def _event(stored: StoredEvent) -> Event:
    private = None if stored.private is None else msgspec.json.decode(stored.private)
    return Event(
        stored.seq,
        stored.id,
        stored.type,
        stored.thread_id,
        msgspec.json.decode(stored.body),
        stored.processed_at,
        private,
    )


def _claim(exported: ExportedSession, agent: dict[str, Any] | None, budget: dict[str, Any] | None) -> Claim:
    stores = [one["body"] for one in exported.resources if one["type"] == "memory_store"]
    uploads = [one["mount_path"] for one in exported.resources if one["type"] == "file" and one["from_start"]]
    skills = [{name: one[name] for name in ("version_id", "name", "description")} for one in exported.skills]
    return Claim(
        exported.id,
        0,
        exported.primary_thread_id,
        str(exported.environment.get("id")),
        agent or exported.agent,
        exported.environment.get("type") == "self_hosted",
        from_wire(exported.created_at),
        msgspec.convert(stores, list[MountedStore]),
        uploads,
        limit_cents(budget or exported.budget),
        msgspec.convert(skills, list[SessionSkill]),
    )


def model_response(end: Event) -> ModelResponse:
    """The model's answer, as the end of its request has kept it."""
    private, counts = dict(end.private or {}), end.body["model_usage"]
    usage = {
        "input_tokens": counts["input_tokens"],
        "output_tokens": counts["output_tokens"],
        "cache_read_input_tokens": counts["cache_read_input_tokens"],
        "cache_creation_input_tokens": counts["cache_creation_input_tokens"],
    }
    return ModelResponse(
        private["content"],
        private["stop_reason"],
        usage,
        private["served_model"],
        private.get("stop_details"),
    )


def model_failure(end: Event, after: list[Event]) -> tuple[ModelFailed, datetime | None]:
    """How a model request failed, and when it was to be made again; `after` are the events behind its end."""
    private = dict(end.private or {})
    kind: FailureKind = "failed"
    retry_at: datetime | None = None
    for event in after:
        if event.type == "session.error":
            kind = _KINDS.get(event.body["error"]["type"], "failed")
        if event.type.endswith("status_rescheduled"):
            at = (event.private or {}).get("retry_at")
            retry_at = retry_at if at is None else datetime.fromisoformat(at)
    failure = ModelFailed(
        kind, private["failure"], retryable=retry_at is not None, refused=bool(private.get("refused"))
    )
    return failure, retry_at
