"""Work items on the wire (contract section 12)."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from corral.wire.fields import MetadataPatch, Request

WorkState = Literal["queued", "starting", "active", "stopping", "stopped"]

# What the first heartbeat sends for the one before it.
NO_HEARTBEAT: Final = "NO_HEARTBEAT"
BLOCK_MS: Final = 999
POOL_BLOCK_MS: Final = 30_000
RECLAIM_MS: Final = 5_000
RECLAIM_MS_MOST: Final = 3_600_000
# Three heartbeats of the stock worker, which sends one every 30 s and assumes this until it is told.
TTL_SECONDS: Final = 90
TTL_SECONDS_LEAST: Final = 10
TTL_SECONDS_MOST: Final = 3_600
# How long an acknowledged item waits for its first heartbeat.
ACKNOWLEDGED_SECONDS: Final = 60


class SessionWork(msgspec.Struct, tag="session", kw_only=True):
    """What the item is about: a session."""

    id: str


class Work(msgspec.Struct, tag="work", kw_only=True):
    """A work item as the API shows it; ``secret`` is given out by polls alone."""

    id: str
    environment_id: str
    data: SessionWork
    state: WorkState
    metadata: dict[str, str]
    secret: str | None
    created_at: str
    acknowledged_at: str | None
    started_at: str | None
    latest_heartbeat_at: str | None
    stop_requested_at: str | None
    stopped_at: str | None


class Heartbeat(Request):
    """The body of a heartbeat, where the values do not come as query parameters."""

    expected_last_heartbeat: Annotated[str, Meta(max_length=64)] | None = None
    desired_ttl_seconds: int | None = None


class WorkHeartbeat(msgspec.Struct, tag="work_heartbeat", kw_only=True):
    """The answer to a heartbeat. ``last_heartbeat`` must be echoed by the next one, to the letter."""

    last_heartbeat: str
    lease_extended: bool
    state: WorkState
    ttl_seconds: int


class StopWork(Request):
    """The body of a stop."""

    force: bool | None = None


class UpdateWork(Request):
    """The body of an update: a patch of the metadata."""

    metadata: MetadataPatch | None


class WorkStats(msgspec.Struct, tag="work_queue_stats", kw_only=True):
    """An environment's queue: waiting, handed out but not acknowledged, and who polls."""

    depth: int
    pending: int
    oldest_queued_at: str | None
    workers_polling: int


class ReleaseWork(Request):
    """The body of ``POST /corral/v1/work/release``: the name under which a worker polled that is gone."""

    worker_id: Annotated[str, Meta(min_length=1, max_length=128)]


class SessionHands(msgspec.Struct, kw_only=True):
    """A work item as ``GET /corral/v1/sessions/{id}/hands`` tells of it: who held it, why it ended."""

    work_id: str
    state: str
    worker_id: str | None
    stop_reason: str | None
    created_at: str
    stopped_at: str | None


class WorkReleased(msgspec.Struct, tag="work_released", kw_only=True):
    """The answer to a release: of how many items."""

    released: int


class CallBegun(msgspec.Struct, tag="call_begun", kw_only=True):
    """The answer to the claim that may run a call, with what the worker needs to know of files before it.

    ``files`` is the revision of the session's mounted files, ``repositories`` of its repositories, empty
    where it has none; an output may have at most ``max_output_bytes``.
    """

    tool_use_id: str
    files: str
    repositories: str
    max_output_bytes: int
