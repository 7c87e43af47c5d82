"""Routes of agents (contract section 4)."""

from typing import Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import ARCHIVED, PAGED, PageOf, integer, times
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.resources import agents
from corral.wire.agents import Agent, CreateAgent, UpdateAgent
from corral.wire.errors import Conflict


async def create(call: Call) -> ASGIApp:
    """``POST /v1/agents``."""
    return answer(await call.services.agents.create(await call.decode(CreateAgent)))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/agents/{agent_id}``, of one version where ``version`` is given."""
    version = call.query.integer("version", least=1, most=2**31 - 1)
    return answer(await call.services.agents.retrieve(call.params["agent_id"], version))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/agents/{agent_id}``."""
    params = await call.decode(UpdateAgent)
    return answer(await call.services.agents.update(call.params["agent_id"], params))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/agents/{agent_id}/archive``."""
    return answer(await call.services.agents.archive(call.params["agent_id"]))


async def list_agents(call: Call) -> ASGIApp:
    """``GET /v1/agents``."""
    listing = await call.services.agents.list(
        call.page(agents.LIST, (int, str)),
        call.query.times(allowed=("gte", "lte")),
        include_archived=call.query.boolean("include_archived"),
    )
    return answer(listing)


async def list_versions(call: Call) -> ASGIApp:
    """``GET /v1/agents/{agent_id}/versions``."""
    agent_id = call.params["agent_id"]
    page = call.page(agents.VERSIONS, (int,), scope=agent_id)
    return answer(await call.services.agents.versions(agent_id, page))


_AGENT: Final = "/v1/agents/{agent_id}"
_VERSION: Final = integer("version", "The version; the latest unless given.", least=1, most=2**31 - 1)

ROUTES = (
    Route("POST", "/v1/agents", APPLICATION, create, "Make an agent", takes=CreateAgent, gives=Agent),
    Route(
        "GET",
        "/v1/agents",
        APPLICATION,
        list_agents,
        "List agents, newest first",
        query=(*PAGED, *times(allowed=("gte", "lte")), ARCHIVED),
        gives=PageOf(Agent),
    ),
    Route("GET", _AGENT, APPLICATION, retrieve, "Look at an agent", query=(_VERSION,), gives=Agent),
    Route(
        "POST",
        _AGENT,
        APPLICATION,
        update,
        "Change an agent: a new version",
        takes=UpdateAgent,
        gives=Agent,
        refuses=(Conflict,),
    ),
    Route("POST", _AGENT + "/archive", APPLICATION, archive, "Archive an agent", gives=Agent),
    Route(
        "GET",
        _AGENT + "/versions",
        APPLICATION,
        list_versions,
        "List an agent's versions, newest first",
        query=PAGED,
        gives=PageOf(Agent),
    ),
)
