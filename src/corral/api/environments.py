"""Routes of environments (contract section 7)."""

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.principals import ANYONE, APPLICATION
from corral.api.reach import environment_of
from corral.api.routing import Route
from corral.resources import environments
from corral.wire.environments import CreateEnvironment, UpdateEnvironment


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


ROUTES = (
    Route("POST", "/v1/environments", APPLICATION, create),
    Route("GET", "/v1/environments", APPLICATION, list_environments),
    Route("GET", "/v1/environments/{environment_id}", ANYONE, retrieve),
    Route("POST", "/v1/environments/{environment_id}", APPLICATION, update),
    Route("DELETE", "/v1/environments/{environment_id}", APPLICATION, delete),
    Route("POST", "/v1/environments/{environment_id}/archive", APPLICATION, archive),
)
