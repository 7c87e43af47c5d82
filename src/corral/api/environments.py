"""Routes of environments (contract section 7)."""

from typing import Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import ARCHIVED, PAGED, Deleted, PageOf
from corral.api.principals import ANYONE, APPLICATION
from corral.api.reach import environment_of
from corral.api.routing import Route
from corral.resources import environments
from corral.wire.environments import CreateEnvironment, Environment, UpdateEnvironment
from corral.wire.errors import Conflict


async def create(call: Call) -> ASGIApp:
    """``POST /v1/environments``."""
    return answer(await call.services.environments.create(await call.decode(CreateEnvironment)))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/environments/{environment_id}``; a worker may look at its own, to make its sandboxes."""
    return answer(await environment_of(call, call.params["environment_id"]))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/environments/{environment_id}``."""
    params = await call.decode(UpdateEnvironment)
    return answer(await call.services.environments.update(call.params["environment_id"], params))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/environments/{environment_id}/archive``."""
    return answer(await call.services.environments.archive(call.params["environment_id"]))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/environments/{environment_id}``."""
    environment_id = call.params["environment_id"]
    await call.services.environments.delete(environment_id)
    return answer({"id": environment_id, "type": "environment_deleted"})


async def list_environments(call: Call) -> ASGIApp:
    """``GET /v1/environments``."""
    page = call.page(environments.LIST, (int, str))
    archived = call.query.boolean("include_archived")
    return answer(await call.services.environments.list(page, include_archived=archived))


_ENVIRONMENT: Final = "/v1/environments/{environment_id}"

ROUTES = (
    Route(
        "POST",
        "/v1/environments",
        APPLICATION,
        create,
        "Make an environment",
        takes=CreateEnvironment,
        gives=Environment,
    ),
    Route(
        "GET",
        "/v1/environments",
        APPLICATION,
        list_environments,
        "List environments, newest first",
        query=(*PAGED, ARCHIVED),
        gives=PageOf(Environment),
    ),
    Route("GET", _ENVIRONMENT, ANYONE, retrieve, "Look at an environment", gives=Environment),
    Route(
        "POST",
        _ENVIRONMENT,
        APPLICATION,
        update,
        "Change an environment",
        takes=UpdateEnvironment,
        gives=Environment,
        refuses=(Conflict,),
    ),
    Route(
        "DELETE",
        _ENVIRONMENT,
        APPLICATION,
        delete,
        "Delete an environment",
        gives=Deleted("environment_deleted"),
        refuses=(Conflict,),
    ),
    Route(
        "POST", _ENVIRONMENT + "/archive", APPLICATION, archive, "Archive an environment", gives=Environment
    ),
)
