"""Routes of what is attached to a session (contract section 9)."""

from typing import Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PAGE, PageOf, limit
from corral.api.principals import ANYONE, APPLICATION
from corral.api.reach import session_of
from corral.api.routing import Route
from corral.resources import session_resources
from corral.wire import pagination
from corral.wire.session_resources import AddResource, ResourceDeleted, UpdateResource
from corral.wire.shown_resources import ShownFileResource, ShownRepository, ShownResource

_LIMIT: Final = 1000


async def add(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/resources``."""
    params = await call.decode(AddResource)
    return answer(await call.services.session_resources.add(call.params["session_id"], params))


async def list_resources(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/resources``; a worker may look at its own session's."""
    session_id = await session_of(call)
    await call.services.sessions.records.retrieve(session_id)
    limit = call.query.integer("limit", least=0, most=_LIMIT) or None
    cursor = pagination.decode(
        call.query.text("page"), session_resources.LIST, (int,), order="asc", scope=session_id
    )
    return answer(await call.services.session_resources.list(session_id, limit=limit, after=cursor))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/resources/{resource_id}``."""
    session_id = call.params["session_id"]
    return answer(await call.services.session_resources.retrieve(session_id, call.params["resource_id"]))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/resources/{resource_id}``: a new token, for what has one."""
    params = await call.decode(UpdateResource)
    session_id, resource_id = call.params["session_id"], call.params["resource_id"]
    return answer(await call.services.session_resources.update(session_id, resource_id, params))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/sessions/{session_id}/resources/{resource_id}``."""
    resource_id = call.params["resource_id"]
    await call.services.session_resources.delete(call.params["session_id"], resource_id)
    return answer(ResourceDeleted(id=resource_id))


_RESOURCES: Final = "/v1/sessions/{session_id}/resources"

ROUTES = (
    Route(
        "POST",
        _RESOURCES,
        APPLICATION,
        add,
        "Attach a file or a repository to a session",
        takes=AddResource,
        gives=ShownFileResource | ShownRepository,
    ),
    Route(
        "GET",
        _RESOURCES,
        ANYONE,
        list_resources,
        "List what is attached to a session",
        query=(limit(default=None, most=_LIMIT), PAGE),
        gives=PageOf(ShownResource),
    ),
    Route(
        "GET",
        _RESOURCES + "/{resource_id}",
        APPLICATION,
        retrieve,
        "Look at what is attached",
        gives=ShownResource,
    ),
    Route(
        "POST",
        _RESOURCES + "/{resource_id}",
        APPLICATION,
        update,
        "Give a repository a new token",
        takes=UpdateResource,
        gives=ShownResource,
    ),
    Route(
        "DELETE",
        _RESOURCES + "/{resource_id}",
        APPLICATION,
        delete,
        "Detach a file or a repository from a session",
        gives=ResourceDeleted,
    ),
)
