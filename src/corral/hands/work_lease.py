"""What a heartbeat does to a lease: a pure function of the locked row and the request (contract 12.3)."""

from collections.abc import Mapping
from typing import Any

from corral.wire.errors import Conflict, InvalidRequest, PreconditionFailed
from corral.wire.times import to_wire
from corral.wire.work import (
    NO_HEARTBEAT,
    TTL_SECONDS,
    TTL_SECONDS_LEAST,
    TTL_SECONDS_MOST,
    WorkHeartbeat,
)


def beaten(
    row: Mapping[str, Any], expected: str | None, desired_ttl: int | None, *, former: bool = False
) -> WorkHeartbeat:
    """The answer to a heartbeat. ``row`` has the item and, as ``now``, the database's clock.

    ``former``: it comes from an earlier claim, which has lost the lease whatever it expects.

    Raises:
        PreconditionFailed: the expected value is not the stored one, or the claim is a former one;
            ``details.current_state`` has the lease.
        Conflict: the item is still queued.
        InvalidRequest: the time to live is below 1.
    """
    if desired_ttl is not None and desired_ttl < 1:
        raise InvalidRequest("desired_ttl_seconds: must be at least 1")
    # A wish out of bounds is met as far as may be; the answer says how far.
    ttl = min(max(desired_ttl or TTL_SECONDS, TTL_SECONDS_LEAST), TTL_SECONDS_MOST)
    state, last = row["state"], row["last_heartbeat"]
    if state == "stopped" or (state == "stopping" and not former):
        return WorkHeartbeat(
            last_heartbeat=last or "", lease_extended=False, state=state, ttl_seconds=_held_for(row)
        )
    if former or (expected is not None and expected != (last or NO_HEARTBEAT)):
        raise PreconditionFailed(
            "The expected_last_heartbeat is not the stored one, so another worker may hold the lease.",
            error_code="heartbeat_precondition_failed",
            details={
                "current_state": {
                    "last_heartbeat": last,
                    "lease_extended": False,
                    "state": state,
                    "ttl_seconds": _held_for(row),
                }
            },
        )
    if state == "queued":
        raise Conflict("The work item is queued; poll for it and acknowledge it before the first heartbeat.")
    return WorkHeartbeat(
        last_heartbeat=to_wire(row["now"]), lease_extended=True, state="active", ttl_seconds=ttl
    )


def _held_for(row: Mapping[str, Any]) -> int:
    """For how many seconds the lease was last given; what a new one gets where there is none."""
    since = row["latest_heartbeat_at"] or row["acknowledged_at"]
    if since is None or row["lease_until"] is None:
        return TTL_SECONDS
    return max(0, round((row["lease_until"] - since).total_seconds()))


def extended(answer: WorkHeartbeat) -> bool:
    """Whether the answer must be stored."""
    return answer.lease_extended
