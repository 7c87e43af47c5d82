"""Environments and their work queue."""

from typing import Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules, as_it_is
from tests.conformance.sdk.workshop import Workshop

_FIRST_BEAT: Final = "NO_HEARTBEAT"


async def existing(asked: Asked, at: Workshop) -> None:
    """An environment to look at, to change, to archive or to delete."""
    asked.params["environment_id"] = (await at.environment())["id"]


async def listed(asked: Asked, at: Workshop) -> None:
    """Two environments, so that there is a second page."""
    for _ in range(2):
        await at.environment()


async def poll(asked: Asked, at: Workshop) -> None:
    """An environment in whose queue a session waits, and its workers' key."""
    asked.params["environment_id"], asked.key = await at.waiting_work("polled")


async def list_work(asked: Asked, at: Workshop) -> None:
    """As `poll`, with two items in the list."""
    await at.waiting_work("listed")
    asked.params["environment_id"], asked.key = await at.waiting_work("listed")


async def count_work(asked: Asked, at: Workshop) -> None:
    """An environment with work to count; an application may count it."""
    asked.params["environment_id"], _ = await at.waiting_work("listed")


async def owned(asked: Asked, at: Workshop) -> None:
    """A work item, seen by an application."""
    asked.params["environment_id"], _, asked.params["work_id"] = await at.claimed_work()


async def acknowledge(asked: Asked, at: Workshop) -> None:
    """A work item that its worker has just been given."""
    asked.params["environment_id"], asked.key, asked.params["work_id"] = await at.claimed_work()


async def heartbeat(asked: Asked, at: Workshop) -> None:
    """A work item that was acknowledged: the next heartbeat is its first."""
    asked.params["environment_id"], asked.key, asked.params["work_id"] = await at.begun_work()
    if asked.has("expected_last_heartbeat"):
        asked.put("expected_last_heartbeat", _FIRST_BEAT)
    if asked.first("desired_ttl_seconds") == "0":
        asked.put("desired_ttl_seconds", "60")


async def stop(asked: Asked, at: Workshop) -> None:
    """A work item that was acknowledged, to be stopped by an application."""
    asked.params["environment_id"], _, asked.params["work_id"] = await at.begun_work()


_WORK: Final = "/v1/environments/{environment_id}/work"

RULES: Final[Rules] = {
    "POST /v1/environments": as_it_is,
    "GET /v1/environments": listed,
    "GET /v1/environments/{environment_id}": existing,
    "POST /v1/environments/{environment_id}": existing,
    "DELETE /v1/environments/{environment_id}": existing,
    "POST /v1/environments/{environment_id}/archive": existing,
    f"GET {_WORK}": list_work,
    f"GET {_WORK}/poll": poll,
    f"GET {_WORK}/stats": count_work,
    f"GET {_WORK}/{{work_id}}": owned,
    f"POST {_WORK}/{{work_id}}": owned,
    f"POST {_WORK}/{{work_id}}/ack": acknowledge,
    f"POST {_WORK}/{{work_id}}/heartbeat": heartbeat,
    f"POST {_WORK}/{{work_id}}/stop": stop,
}
