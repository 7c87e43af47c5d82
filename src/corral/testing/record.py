"""What the scripted model remembers of the requests that it got: counts, refusals and the latest bodies."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from corral.testing.refusal import Refused

MAX_RECORDED = 2000
"""Requests kept."""
MAX_RECORDED_BYTES = 64 * 1024 * 1024
"""Bytes of request bodies kept, over all of them."""


@dataclass
class RecordedRequest:
    """One request: its path, headers that matter to the API, raw body, and the status of the answer."""

    path: str
    request_id: str
    raw: bytes
    headers: dict[str, str]
    status: int | None = None
    outcome: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The decoded body; empty when it was not JSON."""
        try:
            return json.loads(self.raw)
        except ValueError:
            return {}

    def as_json(self) -> dict[str, Any]:
        """The form of `GET /_scripted/requests`."""
        return {
            "path": self.path,
            "request_id": self.request_id,
            "status": self.status,
            "outcome": self.outcome,
            "headers": self.headers,
            "body": self.body,
        }


@dataclass
class RequestRecord:
    """Counts since the last reset and a bounded ring of requests. `changed` is notified of every change."""

    requests: int = 0
    by_status: Counter[int] = field(default_factory=Counter[int])
    by_outcome: Counter[str] = field(default_factory=Counter[str])
    refused: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    too_long: int = 0
    """Requests that were longer than the model's context."""
    ring: deque[RecordedRequest] = field(default_factory=deque[RecordedRequest])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def clear(self) -> None:
        """Forgets everything."""
        self.requests = 0
        self.by_status.clear()
        self.by_outcome.clear()
        self.refused.clear()
        self.too_long = 0
        self.ring.clear()

    async def add(self, request: RecordedRequest) -> None:
        """Counts a request and keeps it, dropping the oldest ones over the bounds."""
        self.requests += 1
        self.ring.append(request)
        while len(self.ring) > MAX_RECORDED or sum(len(one.raw) for one in self.ring) > MAX_RECORDED_BYTES:
            self.ring.popleft()
        await self.notify()

    def answered(self, request: RecordedRequest, status: int) -> None:
        """Notes the status of a request's answer, once it is known."""
        request.status = status
        self.by_status[status] += 1

    async def ended(self, request: RecordedRequest, outcome: str) -> None:
        """Notes how a response ended: `complete`, `error`, `cut` or `disconnected` (the client went away)."""
        request.outcome = outcome
        self.by_outcome[outcome] += 1
        await self.notify()

    def refuse(self, request: RecordedRequest, refused: Refused) -> None:
        """Counts a refusal."""
        self.refused.append(
            {
                "path": refused.path,
                "reason": refused.reason,
                "status": refused.status,
                "request_id": request.request_id,
                "request": hashlib.sha256(request.raw).hexdigest()[:16],
            }
        )

    async def notify(self) -> None:
        """Wakes whoever waits for a change."""
        async with self.changed:
            self.changed.notify_all()

    def stats(self) -> dict[str, Any]:
        """The form of `GET /_scripted/stats`."""
        return {
            "requests": self.requests,
            "refused": list(self.refused),
            "too_long": self.too_long,
            "by_status": {str(status): count for status, count in sorted(self.by_status.items())},
            "by_outcome": dict(sorted(self.by_outcome.items())),
        }
