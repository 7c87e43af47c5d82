"""Routes of memory stores, memories and versions (contract section 16).

A work token reaches the stores of its session alone, and changes what is in those that are not read-only.
"""

from typing import Final, cast

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import ARCHIVED, PAGED, Deleted, PageOf, choice, integer, text, times
from corral.api.principals import APPLICATION, ApiKey, Kind, WorkToken
from corral.api.routing import Route
from corral.resources import memories, memory_stores, memory_versions
from corral.resources.memory_versions import VersionFilter
from corral.wire import pagination
from corral.wire.errors import (
    Conflict,
    MemoryPathConflict,
    MemoryPreconditionFailed,
    PermissionDenied,
)
from corral.wire.memories import (
    OPERATIONS,
    VIEWS,
    Actor,
    ApiActor,
    CreateMemory,
    Memory,
    MemoryPrefix,
    MemoryVersion,
    Operation,
    SessionActor,
    UpdateMemory,
    View,
    check_prefix,
    check_sha256,
)
from corral.wire.memory_stores import CreateMemoryStore, MemoryStore, UpdateMemoryStore
from corral.wire.pagination import Page

_STORE: Final = "/v1/memory_stores/{memory_store_id}"
_MEMORY: Final = _STORE + "/memories/{memory_id}"
_VERSION: Final = _STORE + "/memory_versions/{memory_version_id}"
# Applications, and whoever holds a session's work item; never a worker's own key (contract section 12.1).
_SESSION: Final[frozenset[Kind]] = APPLICATION | {WorkToken}
_BOUNDS: Final = ("gte", "lte")
_FULL_PAGE: Final = 20


async def create(call: Call) -> ASGIApp:
    """``POST /v1/memory_stores``."""
    return answer(await call.services.memory.stores.create(await call.decode(CreateMemoryStore)))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/memory_stores/{memory_store_id}``."""
    return answer(await call.services.memory.stores.retrieve(await _store(call)))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/memory_stores/{memory_store_id}``."""
    params = await call.decode(UpdateMemoryStore)
    return answer(await call.services.memory.stores.update(await _store(call), params))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/memory_stores/{memory_store_id}/archive``."""
    return answer(await call.services.memory.stores.archive(await _store(call)))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/memory_stores/{memory_store_id}``."""
    store_id = await _store(call)
    await call.services.memory.stores.delete(store_id)
    return answer({"id": store_id, "type": "memory_store_deleted"})


async def list_stores(call: Call) -> ASGIApp:
    """``GET /v1/memory_stores``."""
    page = call.page(memory_stores.LIST, (int, str))
    times = call.query.times("created_at", _BOUNDS)
    archived = call.query.boolean("include_archived")
    return answer(await call.services.memory.stores.list(page, times, include_archived=archived))


async def create_memory(call: Call) -> ASGIApp:
    """``POST /v1/memory_stores/{memory_store_id}/memories``."""
    store_id = await _store(call, writes=True)
    full = _view(call, "basic") == "full"
    params = await call.decode(CreateMemory)
    return answer(await call.services.memory.memories.create(store_id, params, _actor(call), full=full))


async def retrieve_memory(call: Call) -> ASGIApp:
    """``GET /v1/memory_stores/{memory_store_id}/memories/{memory_id}``."""
    store_id, memory_id = await _store(call), call.params["memory_id"]
    full = _view(call, "full") == "full"
    return answer(await call.services.memory.memories.retrieve(store_id, memory_id, full=full))


async def update_memory(call: Call) -> ASGIApp:
    """``POST /v1/memory_stores/{memory_store_id}/memories/{memory_id}``; older clients send ``PATCH``."""
    store_id, memory_id = await _store(call, writes=True), call.params["memory_id"]
    full = _view(call, "basic") == "full"
    params = await call.decode(UpdateMemory)
    memory = await call.services.memory.memories.update(store_id, memory_id, params, _actor(call), full=full)
    return answer(memory)


async def delete_memory(call: Call) -> ASGIApp:
    """``DELETE /v1/memory_stores/{memory_store_id}/memories/{memory_id}``."""
    store_id, memory_id = await _store(call, writes=True), call.params["memory_id"]
    expected = call.query.text("expected_content_sha256")
    if expected is not None:
        check_sha256(expected, "expected_content_sha256")
    await call.services.memory.memories.delete(store_id, memory_id, _actor(call), expected_sha256=expected)
    return answer({"id": memory_id, "type": "memory_deleted"})


async def list_memories(call: Call) -> ASGIApp:
    """``GET /v1/memory_stores/{memory_store_id}/memories``."""
    store_id = await _store(call)
    prefix = call.query.text("path_prefix") or "/"
    check_prefix(prefix)
    depth = call.query.integer("depth", least=0, most=1) or 0
    full = _view(call, "basic") == "full"
    cursor = pagination.decode(call.query.text("page"), memories.LIST, (str,), order="asc", scope=store_id)
    page = Page(limit=_limit(call, full), order="asc", after=cursor)
    return answer(
        await call.services.memory.memories.list(
            store_id, page, prefix=prefix, children=depth == 1, full=full
        )
    )


async def list_versions(call: Call) -> ASGIApp:
    """``GET /v1/memory_stores/{memory_store_id}/memory_versions``."""
    store_id = await _store(call)
    full = _view(call, "basic") == "full"
    page = call.page(memory_versions.LIST, (int, str), scope=store_id)
    page = Page(limit=_limit(call, full), order=page.order, after=page.after)
    operations = call.query.values("operation", OPERATIONS, most=1)
    narrow = VersionFilter(
        memory_id=call.query.text("memory_id"),
        session_id=call.query.text("session_id"),
        api_key_id=call.query.text("api_key_id"),
        service_account_id=call.query.text("service_account_id"),
        operation=cast("Operation", operations[0]) if operations else None,
        times=call.query.times("created_at", _BOUNDS),
    )
    return answer(await call.services.memory.versions.list(store_id, page, narrow, full=full))


async def retrieve_version(call: Call) -> ASGIApp:
    """``GET /v1/memory_stores/{memory_store_id}/memory_versions/{memory_version_id}``."""
    store_id, version_id = await _store(call), call.params["memory_version_id"]
    full = _view(call, "full") == "full"
    return answer(await call.services.memory.versions.retrieve(store_id, version_id, full=full))


async def redact_version(call: Call) -> ASGIApp:
    """``POST /v1/memory_stores/{memory_store_id}/memory_versions/{memory_version_id}/redact``."""
    store_id, version_id = await _store(call), call.params["memory_version_id"]
    actor = _actor(call)
    if not isinstance(actor, ApiActor):
        raise PermissionDenied("An agent cannot redact a memory version.")
    return answer(await call.services.memory.versions.redact(store_id, version_id, actor))


async def _store(call: Call, *, writes: bool = False) -> str:
    """The store in the path, checked against the caller: a foreign one reads as if it did not exist."""
    store_id = call.params["memory_store_id"]
    if isinstance(call.principal, WorkToken):
        access = await call.services.memory.mounts.access(call.principal.claim.session_id, store_id)
        if access is None:
            raise memory_stores.not_found(store_id)
        if writes and access == "read_only":
            raise PermissionDenied(f"Memory store {store_id} is attached to this session as read_only.")
    return store_id


def _actor(call: Call) -> Actor:
    match call.principal:
        case ApiKey(key_id=key_id):
            return ApiActor(key_id)
        case WorkToken(claim=claim):
            return SessionActor(claim.session_id)
        case _:
            raise PermissionDenied("This credential may not be used for this request.")


def _view(call: Call, default: View) -> View:
    views = call.query.values("view", VIEWS, most=1)
    return cast("View", views[0]) if views else default


def _limit(call: Call, full: bool) -> int:
    """The page size; with contents a page holds at most 20, whatever was asked (contract section 16.2)."""
    limit = call.query.limit(default=20, most=100)
    return min(limit, _FULL_PAGE) if full else limit


_SHOW: Final = choice("view", "Whether the content is there.", VIEWS)
_EXPECTED: Final = text("expected_content_sha256", "The hash that the content must have.")

ROUTES = (
    Route(
        "POST",
        "/v1/memory_stores",
        APPLICATION,
        create,
        "Make a memory store",
        takes=CreateMemoryStore,
        gives=MemoryStore,
    ),
    Route(
        "GET",
        "/v1/memory_stores",
        APPLICATION,
        list_stores,
        "List memory stores, newest first",
        query=(*PAGED, *times(allowed=_BOUNDS), ARCHIVED),
        gives=PageOf(MemoryStore),
    ),
    Route("GET", _STORE, _SESSION, retrieve, "Look at a memory store", gives=MemoryStore),
    Route(
        "POST",
        _STORE,
        APPLICATION,
        update,
        "Change a memory store",
        takes=UpdateMemoryStore,
        gives=MemoryStore,
    ),
    Route(
        "DELETE", _STORE, APPLICATION, delete, "Delete a memory store", gives=Deleted("memory_store_deleted")
    ),
    Route("POST", _STORE + "/archive", APPLICATION, archive, "Archive a memory store", gives=MemoryStore),
    Route(
        "POST",
        _STORE + "/memories",
        _SESSION,
        create_memory,
        "Write a new memory",
        query=(_SHOW,),
        takes=CreateMemory,
        gives=Memory,
        refuses=(MemoryPathConflict,),
    ),
    Route(
        "GET",
        _STORE + "/memories",
        _SESSION,
        list_memories,
        "List memories by path",
        query=(
            *PAGED,
            text("path_prefix", "Only memories below this folder; begins and ends with a slash."),
            integer("depth", "1 lists what is below deeper folders as those folders.", least=0, most=1),
            _SHOW,
        ),
        gives=PageOf(Memory | MemoryPrefix),
    ),
    Route("GET", _MEMORY, _SESSION, retrieve_memory, "Read a memory", query=(_SHOW,), gives=Memory),
    *(
        Route(
            method,
            _MEMORY,
            _SESSION,
            update_memory,
            "Change or move a memory",
            query=(_SHOW,),
            takes=UpdateMemory,
            gives=Memory,
            refuses=(MemoryPathConflict, MemoryPreconditionFailed),
        )
        for method in ("POST", "PATCH")
    ),
    Route(
        "DELETE",
        _MEMORY,
        _SESSION,
        delete_memory,
        "Delete a memory",
        query=(_EXPECTED,),
        gives=Deleted("memory_deleted"),
        refuses=(MemoryPreconditionFailed,),
    ),
    Route(
        "GET",
        _STORE + "/memory_versions",
        APPLICATION,
        list_versions,
        "List changes of memories, newest first",
        query=(
            *PAGED,
            _SHOW,
            choice("operation", "Only changes of this kind.", OPERATIONS),
            text("memory_id", "Only changes of this memory."),
            text("session_id", "Only changes by this session's agent."),
            text("api_key_id", "Only changes by this API key."),
            text("service_account_id", "Only changes by this service account."),
            *times(allowed=_BOUNDS),
        ),
        gives=PageOf(MemoryVersion),
    ),
    Route(
        "GET",
        _VERSION,
        APPLICATION,
        retrieve_version,
        "Look at a change",
        query=(_SHOW,),
        gives=MemoryVersion,
    ),
    Route(
        "POST",
        _VERSION + "/redact",
        APPLICATION,
        redact_version,
        "Take a change's content out of the history",
        gives=MemoryVersion,
        refuses=(Conflict,),
    ),
)
