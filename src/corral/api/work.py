"""Routes of the work queue (contract section 12), and those that Corral adds for its own workers."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from starlette.types import ASGIApp, Receive

from corral.api.call import Call, answer, disconnected
from corral.api.describe import PAGED, Optional, PageOf, boolean, header, integer, text
from corral.api.principals import ApiKey, EnvironmentKey, FormerWorkToken, Kind, PoolKey, WorkToken
from corral.api.reach import session_of, work_environment
from corral.api.routing import Route
from corral.hands import work
from corral.session.shown import not_found
from corral.wire.errors import Conflict, PreconditionFailed
from corral.wire.work import (
    BLOCK_MS,
    POOL_BLOCK_MS,
    RECLAIM_MS_MOST,
    CallBegun,
    Heartbeat,
    ReleaseWork,
    SessionHands,
    StopWork,
    UpdateWork,
    Work,
    WorkHeartbeat,
    WorkReleased,
    WorkStats,
)

_POLLERS: Final[frozenset[Kind]] = frozenset({EnvironmentKey})
_HOLDERS: Final[frozenset[Kind]] = frozenset({EnvironmentKey, PoolKey, WorkToken})
_BEATERS: Final[frozenset[Kind]] = _HOLDERS | {FormerWorkToken}
_STOPPERS: Final[frozenset[Kind]] = _HOLDERS | {ApiKey, FormerWorkToken}
_LISTERS: Final[frozenset[Kind]] = frozenset({EnvironmentKey})
_COUNTERS: Final[frozenset[Kind]] = frozenset({ApiKey, EnvironmentKey})
_OWNERS: Final[frozenset[Kind]] = frozenset({ApiKey})


async def poll(call: Call) -> ASGIApp:
    """``GET /v1/environments/{environment_id}/work/poll``: an item, or ``null``."""
    return answer(await _poll(call, await work_environment(call), BLOCK_MS))


async def poll_pool(call: Call) -> ASGIApp:
    """``GET /corral/v1/work/poll``: an item of any ``cloud`` environment, or ``null``."""
    return answer(await _poll(call, None, POOL_BLOCK_MS))


async def _poll(call: Call, environment_id: str | None, most: int) -> Work | None:
    item = call.services.work.poll(
        environment_id,
        worker_id=call.http.headers.get("anthropic-worker-id") or None,
        block_ms=call.query.integer("block_ms", least=1, most=most),
        reclaim_older_than_ms=call.query.integer("reclaim_older_than_ms", least=0, most=RECLAIM_MS_MOST),
    )
    return await while_wanted(item, call.services.closing, call.http.receive)


async def while_wanted(
    item: Coroutine[Any, Any, Work | None], closing: asyncio.Event, receive: Receive
) -> Work | None:
    """The item, or None as soon as the server is closing or the client gone.

    A long poll must not keep a server open, nor claim an item for a worker that no longer listens.
    """
    polling = asyncio.ensure_future(item)
    ends = [asyncio.ensure_future(closing.wait()), asyncio.ensure_future(disconnected(receive))]
    try:
        await asyncio.wait({polling, *ends}, return_when=asyncio.FIRST_COMPLETED)
        return polling.result() if polling.done() else None
    finally:
        for task in (polling, *ends):
            task.cancel()
        await asyncio.gather(polling, *ends, return_exceptions=True)


async def acknowledge(call: Call) -> ASGIApp:
    """``POST /v1/environments/{environment_id}/work/{work_id}/ack``."""
    environment_id = await work_environment(call)
    return answer(await call.services.work.acknowledge(environment_id, call.params["work_id"]))


async def heartbeat(call: Call) -> ASGIApp:
    """``POST …/heartbeat``: the values come as query parameters, or in the body.

    Whoever held the item before is told that its lease is lost (412), or that the item is stopped.
    """
    environment_id = await work_environment(call)
    body = await call.decode_optional(Heartbeat)
    expected = call.query.text("expected_last_heartbeat", longest=64)
    # No bound but the integer's own: the lease says what the wish came to.
    ttl = call.query.integer("desired_ttl_seconds", least=1, most=2**31 - 1)
    return answer(
        await call.services.work.heartbeat(
            environment_id,
            call.params["work_id"],
            expected_last_heartbeat=expected if expected is not None else body.expected_last_heartbeat,
            desired_ttl_seconds=ttl if ttl is not None else body.desired_ttl_seconds,
            former=isinstance(call.principal, FormerWorkToken),
        )
    )


async def stop(call: Call) -> ASGIApp:
    """``POST …/stop``: ``force`` comes in the body, or as a query parameter."""
    environment_id = await work_environment(call)
    body = await call.decode_optional(StopWork)
    if isinstance(call.principal, FormerWorkToken):
        raise Conflict(f"Work item {call.params['work_id']} is stopped, or another worker holds it.")
    force = call.query.boolean("force", default=bool(body.force))
    by = "an application" if isinstance(call.principal, ApiKey) else None
    return answer(await call.services.work.stop(environment_id, call.params["work_id"], force=force, by=by))


async def hands(call: Call) -> ASGIApp:
    """``GET /corral/v1/sessions/{session_id}/hands``: the newest work items, and why each ended."""
    session_id = await session_of(call)
    await call.services.sessions.records.retrieve(session_id)
    return answer({"data": await call.services.work.of_session(session_id)})


async def stats(call: Call) -> ASGIApp:
    """``GET /v1/environments/{environment_id}/work/stats``."""
    return answer(await call.services.work.stats(await work_environment(call)))


async def list_work(call: Call) -> ASGIApp:
    """``GET /v1/environments/{environment_id}/work``."""
    environment_id = await work_environment(call)
    page = call.page(work.LIST, (int, str), scope=environment_id)
    return answer(await call.services.work.list(environment_id, page))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/environments/{environment_id}/work/{work_id}``."""
    environment_id = await work_environment(call)
    return answer(await call.services.work.retrieve(environment_id, call.params["work_id"]))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/environments/{environment_id}/work/{work_id}``."""
    environment_id = await work_environment(call)
    params = await call.decode(UpdateWork)
    return answer(await call.services.work.update(environment_id, call.params["work_id"], params.metadata))


async def release(call: Call) -> ASGIApp:
    """``POST /corral/v1/work/release``: a worker that has come back says that the one it was is gone.

    What that one held is offered again at once, instead of when its lease has run out.
    """
    principal = call.principal
    params = await call.decode(ReleaseWork)
    environment_id = principal.environment_id if isinstance(principal, EnvironmentKey) else None
    released = await call.services.work.release(environment_id, params.worker_id)
    return answer(WorkReleased(released=released))


async def begin_call(call: Call) -> ASGIApp:
    """``POST /corral/v1/sessions/{session_id}/calls/{tool_use_id}/begin``: may this claim run the call?

    200 to the claim that begins it, and to its repeats; 409 where another claim had begun it, or it has its
    answer already. Whoever gets the 409 answers the call with an error instead of running it.
    """
    principal = call.principal
    session_id, tool_use_id = call.params["session_id"], call.params["tool_use_id"]
    if not isinstance(principal, WorkToken) or principal.claim.session_id != session_id:
        raise not_found(session_id)
    if not await call.services.work.begin_call(principal.claim, tool_use_id):
        raise Conflict(f"Tool use {tool_use_id} was begun by another worker, or has been answered.")
    # What the worker needs to know of files, without a request of its own before each call.
    begun = CallBegun(
        tool_use_id=tool_use_id,
        files=await call.services.session_resources.revision(session_id),
        repositories=await call.services.sandbox_plans.revision(session_id),
        max_output_bytes=call.services.files.blobs.limits.most,
    )
    return answer(begun)


_WORK: Final = "/v1/environments/{environment_id}/work"

_POLLING: Final = (
    integer(
        "reclaim_older_than_ms",
        "Take over what was polled but not acknowledged for so long.",
        least=0,
        most=RECLAIM_MS_MOST,
    ),
    header("anthropic-worker-id", "The name of the worker that polls."),
)
_BLOCK_ABOUT: Final = "How long to wait for an item."
_ENVIRONMENT_POLLING: Final = (integer("block_ms", _BLOCK_ABOUT, least=1, most=BLOCK_MS), *_POLLING)
_POOL_POLLING: Final = (integer("block_ms", _BLOCK_ABOUT, least=1, most=POOL_BLOCK_MS), *_POLLING)
_ITEM: Final = _WORK + "/{work_id}"

ROUTES = (
    Route(
        "GET",
        _WORK + "/poll",
        _POLLERS,
        poll,
        "Take a work item; null where there is none",
        query=_ENVIRONMENT_POLLING,
        gives=Work | None,
    ),
    Route("GET", _WORK + "/stats", _COUNTERS, stats, "Look at an environment's queue", gives=WorkStats),
    Route(
        "GET", _WORK, _LISTERS, list_work, "List work items, newest first", query=PAGED, gives=PageOf(Work)
    ),
    Route("GET", _ITEM, _OWNERS, retrieve, "Look at a work item", gives=Work),
    Route("POST", _ITEM, _OWNERS, update, "Change a work item's metadata", takes=UpdateWork, gives=Work),
    Route(
        "POST",
        _ITEM + "/ack",
        _HOLDERS,
        acknowledge,
        "Say that the item has arrived",
        gives=Work,
        refuses=(Conflict,),
    ),
    Route(
        "POST",
        _ITEM + "/heartbeat",
        _BEATERS,
        heartbeat,
        "Keep the item's lease",
        query=(
            text("expected_last_heartbeat", "What the last heartbeat was answered with.", longest=64),
            integer("desired_ttl_seconds", "For how long to keep it.", least=1, most=2**31 - 1),
        ),
        takes=Optional(Heartbeat),
        gives=WorkHeartbeat,
        refuses=(PreconditionFailed, Conflict),
    ),
    Route(
        "POST",
        _ITEM + "/stop",
        _STOPPERS,
        stop,
        "Stop the item, or say that it has stopped",
        query=(boolean("force", "Whether at once, without waiting for its worker."),),
        takes=Optional(StopWork),
        gives=Work,
        refuses=(Conflict,),
    ),
    Route(
        "GET",
        "/corral/v1/work/poll",
        frozenset({PoolKey}),
        poll_pool,
        "Take a work item of any cloud environment; null where there is none",
        query=_POOL_POLLING,
        gives=Work | None,
    ),
    Route(
        "GET",
        "/corral/v1/sessions/{session_id}/hands",
        _OWNERS,
        hands,
        "Look at a session's newest work items, and why each ended",
        gives=PageOf(SessionHands, cursors=()),
    ),
    Route(
        "POST",
        "/corral/v1/work/release",
        frozenset({PoolKey, EnvironmentKey}),
        release,
        "Say that a worker is gone, so that its items are offered again",
        takes=ReleaseWork,
        gives=WorkReleased,
    ),
    Route(
        "POST",
        "/corral/v1/sessions/{session_id}/calls/{tool_use_id}/begin",
        frozenset({WorkToken}),
        begin_call,
        "May this claim run the call?",
        gives=CallBegun,
        refuses=(Conflict,),
    ),
)
