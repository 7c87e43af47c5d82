"""The work API over HTTP (contract section 12), and the endpoints that Corral adds to it.

Whether a server is Corral it says itself, by the header `corral-version`; until then nothing but what is
documented is used. Credentials go into the `Authorization` header and nowhere else.
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

import httpx

import corral
from corral.hands.worker.answers import (
    Beat,
    BegunCall,
    EventPage,
    MountedFile,
    OtherItem,
    SessionState,
    WorkItem,
    checked_id,
    error_text,
    read,
    read_files,
    read_item,
    refused,
    unanswered,
)
from corral.hands.worker.events import LISTED, SeenEvent, decode_event, frames
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.pace import Pace
from corral.wire.egress import SandboxPlan
from corral.wire.secret import Secret

_T = TypeVar("_T")

_PAGE: Final = 1000
_HEADERS: Final = {
    "anthropic-beta": "managed-agents-2026-04-01",
    "anthropic-version": "2023-06-01",
    "user-agent": f"corral-worker/{corral.__version__}",
}
# Beyond the time that a poll is held at the server.
_POLL_SLACK: Final = 10.0


class WorkApi:
    """The requests of a worker. Each raises `ApiFailure` where it is not answered with success."""

    def __init__(self, http: httpx.AsyncClient, base_url: str, worker_id: str, pace: Pace) -> None:
        self._http = http
        self._base = base_url.rstrip("/")
        self._worker_id = worker_id
        self._pace = pace
        self.is_corral = False
        """Whether the server has said that it is Corral."""

    async def poll(
        self, key: Secret, environment_id: str | None, block_ms: int
    ) -> WorkItem | OtherItem | None:
        """Claim an item of an environment, or of the pool where that is None. Waits up to `block_ms`."""
        path = "/corral/v1/work/poll" if environment_id is None else f"{_work(environment_id)}/poll"
        response = await self._send(
            "GET",
            path,
            key,
            params={"block_ms": block_ms},
            headers={"anthropic-worker-id": self._worker_id},
            timeout=httpx.Timeout(block_ms / 1000 + _POLL_SLACK, connect=_POLL_SLACK),
        )
        return read_item(response)

    async def release(self, worker_id: str, key: Secret) -> None:
        """Corral only: say that a worker is gone, so that what it held is offered again at once."""
        await self._send("POST", "/corral/v1/work/release", key, json={"worker_id": worker_id})

    async def acknowledge(self, item: WorkItem | OtherItem, key: Secret) -> None:
        """Take the item off the queue."""
        await self._send("POST", f"{_work(item.environment_id)}/{item.id}/ack", key)

    async def heartbeat(self, item: WorkItem, key: Secret, *, expected: str, ttl_seconds: int | None) -> Beat:
        """Extend the lease. `ttl_seconds`: how long it should last, None for the server's own choice."""
        params: dict[str, str | int] = {"expected_last_heartbeat": expected}
        if ttl_seconds is not None:
            params["desired_ttl_seconds"] = ttl_seconds
        path = f"{_work(item.environment_id)}/{item.id}/heartbeat"
        return read(await self._send("POST", path, key, params=params), Beat)

    async def stop(self, item: WorkItem | OtherItem, key: Secret) -> None:
        """End the item. That it was ended already is no failure."""
        try:
            await self._send(
                "POST", f"{_work(item.environment_id)}/{item.id}/stop", key, json={"force": True}
            )
        except ApiFailure as failure:
            if failure.status != 409:
                raise

    async def session(self, session_id: str, key: Secret) -> SessionState:
        """What became of a session."""
        return read(await self._send("GET", f"/v1/sessions/{session_id}", key), SessionState)

    async def history(self, session_id: str, key: Secret) -> AsyncGenerator[SeenEvent]:
        """A session's events of the types that matter here, oldest first."""
        page: str | None = None
        while True:
            params: dict[str, Any] = {"limit": _PAGE, "types[]": list(LISTED)}
            if page is not None:
                params["page"] = page
            response = await self._send("GET", f"/v1/sessions/{session_id}/events", key, params=params)
            listed = read(response, EventPage)
            for raw in listed.data:
                yield _event(bytes(raw))
            page = listed.next_page
            if not page:
                return

    @asynccontextmanager
    async def stream(self, session_id: str, key: Secret) -> AsyncGenerator[AsyncIterator[SeenEvent]]:
        """A session's events from now on. Entered once the server has it open; ends when it closes it."""
        path = f"/v1/sessions/{session_id}/events/stream"
        timeout = httpx.Timeout(_POLL_SLACK, read=self._pace.silence)
        try:
            async with self._http.stream(
                "GET", self._base + path, headers=_authorized(key), timeout=timeout
            ) as response:
                if not response.is_success:
                    await response.aread()
                self._check(response)
                async with aclosing(_events(response)) as events:
                    yield events
        except httpx.HTTPError as error:
            raise unanswered(error) from error

    async def send_result(self, session_id: str, key: Secret, body: bytes) -> None:
        """Post events that are encoded already."""
        headers = {"content-type": "application/json"}
        await self._send("POST", f"/v1/sessions/{session_id}/events", key, content=body, headers=headers)

    async def begin_call(self, session_id: str, call_id: str, key: Secret) -> BegunCall | None:
        """Corral only: record that the call is about to run. None if it must not be run."""
        path = f"/corral/v1/sessions/{session_id}/calls/{checked_id(call_id)}/begin"
        try:
            return read(await self._send("POST", path, key), BegunCall)
        except ApiFailure as failure:
            if failure.status == 409:
                return None
            raise

    async def sandbox_plan(self, session_id: str, key: Secret) -> SandboxPlan:
        """Corral only: what the session's sandbox is to have beside its files."""
        return read(await self._send("GET", f"/corral/v1/sessions/{session_id}/sandbox", key), SandboxPlan)

    async def report_repository(
        self, session_id: str, resource_id: str, key: Secret, *, error: str, message: str
    ) -> None:
        """Corral only: say that a repository could not be cloned."""
        path = f"/corral/v1/sessions/{session_id}/repositories/{checked_id(resource_id)}/failure"
        await self._send("POST", path, key, json={"error": error, "message": message})

    async def mounted_files(self, session_id: str, key: Secret) -> list[MountedFile]:
        """The files that are mounted in a session."""
        return read_files(await self._send("GET", f"/v1/sessions/{session_id}/resources", key))

    @asynccontextmanager
    async def file_content(
        self, session_id: str, file_id: str, key: Secret
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Corral only: the bytes of a file that is mounted in a session."""
        path = f"/corral/v1/sessions/{session_id}/files/{checked_id(file_id)}/content"
        async with self.content(path, key) as pieces:
            yield pieces

    @asynccontextmanager
    async def content(self, path: str, key: Secret) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The bytes that a path answers with, as they come."""
        try:
            async with self._http.stream("GET", self._base + path, headers=_authorized(key)) as response:
                if not response.is_success:
                    await response.aread()
                self._check(response)
                yield response.aiter_bytes()
        except httpx.HTTPError as error:
            raise unanswered(error) from error

    async def send_output(
        self, session_id: str, path: str, key: Secret, content: AsyncIterable[bytes], size: int
    ) -> None:
        """Corral only: a file of `size` bytes that a session has put out under a relative path."""
        headers = {"content-type": "application/octet-stream", "content-length": str(size)}
        await self._send(
            "POST",
            f"/corral/v1/sessions/{session_id}/outputs",
            key,
            params={"path": path},
            content=content,
            headers=headers,
        )

    async def ask(self, method: str, path: str, key: Secret, shape: type[_T], **request: Any) -> _T:
        """Send a request that another module knows the form of; its answer, read."""
        return read(await self._send(method, path, key, **request), shape)

    async def _send(
        self, method: str, path: str, key: Secret, *, headers: Mapping[str, str] | None = None, **request: Any
    ) -> httpx.Response:
        try:
            response = await self._http.request(
                method, self._base + path, headers=_authorized(key, headers), **request
            )
        except httpx.HTTPError as error:
            raise unanswered(error) from error
        self._check(response)
        return response

    def _check(self, response: httpx.Response) -> None:
        if "corral-version" in response.headers:
            self.is_corral = True
        if not response.is_success:
            raise refused(response)


async def _events(response: httpx.Response) -> AsyncGenerator[SeenEvent]:
    async with aclosing(frames(response.aiter_bytes())) as parts:
        async for name, data in parts:
            if name == "error":
                raise ApiFailure(f"the stream reports an error: {error_text(data).message}")
            if name and name != "ping":
                yield _event(data)


def _event(data: bytes) -> SeenEvent:
    try:
        return decode_event(data)
    except ValueError as error:
        raise ApiFailure(f"the server sent an event that cannot be read: {error}") from error


def _work(environment_id: str) -> str:
    return f"/v1/environments/{environment_id}/work"


def _authorized(key: Secret, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**_HEADERS, **(more or {}), "authorization": f"Bearer {key.reveal()}"}
