"""What a server answers to a worker (contract section 12): its shapes, and how they are read.

What cannot be read is an `ApiFailure`, as is what the server refuses: the worker trusts none of it.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import msgspec

from corral.hands.worker.failures import ApiFailure
from corral.wire.secret import Secret

_T = TypeVar("_T")

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A claimed work item. token: the credential for it and its session, None if the server gave none."""

    id: str
    environment_id: str
    session_id: str
    token: Secret | None


@dataclass(frozen=True, slots=True)
class OtherItem:
    """A claimed item that is not about a session, such as a health check."""

    id: str
    environment_id: str
    kind: str


class SessionState(msgspec.Struct, frozen=True):
    """What a worker reads of a session."""

    status: str
    archived_at: str | None = None
    resources: list[dict[str, Any]] = []
    agent: dict[str, Any] = {}

    @property
    def is_over(self) -> bool:
        """Whether it will never need hands again."""
        return self.status == "terminated" or self.archived_at is not None


class Beat(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    last_heartbeat: str
    lease_extended: bool
    state: str
    ttl_seconds: float


class MountedFile(msgspec.Struct, frozen=True):
    """A file that is mounted in a session. id: the resource's."""

    id: str
    file_id: str
    mount_path: str


class _Resource(msgspec.Struct):
    type: str
    id: str = ""
    file_id: str = ""
    mount_path: str = ""


class _Resources(msgspec.Struct):
    data: list[_Resource]


class BegunCall(msgspec.Struct, frozen=True):
    """What a worker is told when a call may run.

    files: the revision of the files that are mounted in the session, empty if there are none; repositories:
    the same of repositories. max_output_bytes: the largest output that the server takes.
    """

    files: str = ""
    repositories: str = ""
    max_output_bytes: int | None = None


class _Data(msgspec.Struct):
    type: str
    id: str = ""


class _Item(msgspec.Struct):
    id: str
    environment_id: str
    data: _Data
    secret: str | None = None


class _Secret(msgspec.Struct):
    sessions_token: str | None = None


class EventPage(msgspec.Struct):
    """A page of a session's history; the events are read one by one."""

    data: list[msgspec.Raw]
    next_page: str | None = None


class ErrorText(msgspec.Struct):
    """What an error says of itself."""

    message: str = ""
    details: dict[str, Any] | None = None
    conflicting_memory_id: str | None = None


class _Envelope(msgspec.Struct):
    error: ErrorText


def read(response: httpx.Response, shape: type[_T]) -> _T:
    """The body of an answer. Raises `ApiFailure` if it has not this shape."""
    try:
        return msgspec.json.decode(response.content, type=shape)
    except msgspec.MsgspecError as error:
        raise ApiFailure(f"the server's answer cannot be read: {error}") from error


def read_item(response: httpx.Response) -> WorkItem | OtherItem | None:
    """The answer to a poll."""
    if response.content.strip() == b"null":
        return None
    item = read(response, _Item)
    environment_id = checked_id(item.environment_id)
    if item.data.type != "session":
        return OtherItem(checked_id(item.id), environment_id, item.data.type)
    return WorkItem(
        checked_id(item.id), environment_id, checked_id(item.data.id), _sessions_token(item.secret)
    )


def read_files(response: httpx.Response) -> list[MountedFile]:
    """The files among a session's resources."""
    return [
        MountedFile(one.id, checked_id(one.file_id), one.mount_path)
        for one in read(response, _Resources).data
        if one.type == "file"
    ]


def checked_id(text: str) -> str:
    """An id that the server has sent: ids become parts of URLs and names of directories."""
    if _ID.fullmatch(text) is None:
        raise ApiFailure(f"the server sent an id that is none: {text[:64]!r}")
    return text


def unanswered(error: httpx.HTTPError) -> ApiFailure:
    """The failure of a request that got no answer."""
    # Some of httpx's errors have no text of their own.
    return ApiFailure(f"no answer from the server: {error or type(error).__name__}")


def refused(response: httpx.Response) -> ApiFailure:
    """The failure that an answer tells of."""
    said = error_text(response.content)
    return ApiFailure(
        said.message or f"status {response.status_code}",
        status=response.status_code,
        retry_after=_seconds(response.headers.get("retry-after")),
        details={**(said.details or {}), "conflicting_memory_id": said.conflicting_memory_id},
    )


def error_text(content: bytes) -> ErrorText:
    """What an error's body says; nothing if it is none."""
    try:
        return msgspec.json.decode(content, type=_Envelope).error
    except msgspec.MsgspecError:
        return ErrorText()


def _sessions_token(secret: str | None) -> Secret | None:
    if not secret:
        return None
    try:
        payload = base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
        token = msgspec.json.decode(payload, type=_Secret).sessions_token
    except (binascii.Error, ValueError):
        return None
    return Secret(token) if token else None


def _seconds(text: str | None) -> float | None:
    try:
        return min(float(text), 60.0) if text else None
    except ValueError:
        return None
