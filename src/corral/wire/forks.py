"""Forks and imports of sessions on the wire (extensions; docs/extensions.md)."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.fields import Id, Metadata, Request
from corral.wire.sessions import Title

EVENTS: int = 200_000
"""Most events of a log that is forked or imported."""


class ForkSession(Request):
    """The body of ``POST /v1/sessions/{id}/fork``. What is absent is as in the session that is forked."""

    event_id: Id | None = None
    """The last event of the copy; the log's last one where it is absent."""
    title: Title | UnsetType | None = UNSET
    metadata: Metadata | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session comes from that is a copy of another one's log."""

    kind: Literal["fork", "import"]
    session_id: str
    event_id: str | None
    """The last event of the copy, by its id there."""
    seq: int
    """Its place in the log there."""
    head: str | None
    """The link of the chain there, in hexadecimal."""
    left_out: list[str]
    """What did not come along, in plain words."""
    signed_by: str | None = None
    """Of an import: the key whose signature the file has, if it is one that this server knows."""
    created_at: str


class SessionOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session comes from; ``origin`` is null where it was simply made."""

    session_id: str
    origin: Origin | None
