"""Routes of deployments and of their runs (contract section 19)."""

from typing import Final, cast

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import ARCHIVED, PAGE, PAGED, PageOf, boolean, choice, limit, text, times
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.resources import deployment_runs, deployments
from corral.wire import pagination
from corral.wire.deployments import (
    CreateDeployment,
    Deployment,
    DeploymentRun,
    DeploymentStatus,
    TriggerType,
    UpdateDeployment,
)
from corral.wire.errors import InvalidRequest
from corral.wire.pagination import Page

_RUNS: Final = 1000
"""The largest page of runs."""


async def create(call: Call) -> ASGIApp:
    """``POST /v1/deployments``."""
    return answer(await call.services.deployments.create(await call.decode(CreateDeployment)))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/deployments/{deployment_id}``."""
    return answer(await call.services.deployments.retrieve(call.params["deployment_id"]))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/deployments/{deployment_id}``."""
    params = await call.decode(UpdateDeployment)
    return answer(await call.services.deployments.update(call.params["deployment_id"], params))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/deployments/{deployment_id}/archive``."""
    return answer(await call.services.deployments.archive(call.params["deployment_id"]))


async def pause(call: Call) -> ASGIApp:
    """``POST /v1/deployments/{deployment_id}/pause``."""
    return answer(await call.services.deployments.pause(call.params["deployment_id"]))


async def unpause(call: Call) -> ASGIApp:
    """``POST /v1/deployments/{deployment_id}/unpause``."""
    return answer(await call.services.deployments.unpause(call.params["deployment_id"]))


async def run(call: Call) -> ASGIApp:
    """``POST /v1/deployments/{deployment_id}/run``: the record of the run that this starts."""
    return answer(await call.services.deployment_runs.start(call.params["deployment_id"]))


async def list_deployments(call: Call) -> ASGIApp:
    """``GET /v1/deployments``."""
    page = call.page(deployments.LIST, (int, str))
    status = cast("DeploymentStatus | None", _choice(call, "status", ("active", "paused")))
    archived = call.query.boolean("include_archived")
    if status is not None and archived:
        raise InvalidRequest("status: cannot be combined with include_archived")
    times = call.query.times(allowed=("gte", "lte"))
    return answer(
        await call.services.deployments.list(
            page,
            times,
            agent_id=call.query.text("agent_id"),
            status=status,
            include_archived=archived,
        )
    )


async def retrieve_run(call: Call) -> ASGIApp:
    """``GET /v1/deployment_runs/{deployment_run_id}``."""
    return answer(await call.services.deployment_runs.retrieve(call.params["deployment_run_id"]))


async def list_runs(call: Call) -> ASGIApp:
    """``GET /v1/deployment_runs``."""
    query = call.query
    cursor = pagination.decode(query.text("page"), deployment_runs.LIST, (int, str), order="desc")
    page = Page(limit=query.limit(default=20, most=_RUNS), order="desc", after=cursor)
    has_error = None if query.text("has_error") is None else query.boolean("has_error")
    return answer(
        await call.services.deployment_runs.list(
            page,
            query.times(),
            deployment_id=query.text("deployment_id"),
            has_error=has_error,
            trigger=cast("TriggerType | None", _choice(call, "trigger_type", ("schedule", "manual"))),
        )
    )


def _choice(call: Call, name: str, allowed: tuple[str, ...]) -> str | None:
    value = call.query.text(name, longest=64)
    if value is not None and value not in allowed:
        raise InvalidRequest(f'{name}: "{value}" is not a valid value')
    return value


_DEPLOYMENTS: Final = "/v1/deployments"
_ONE: Final = _DEPLOYMENTS + "/{deployment_id}"

ROUTES = (
    Route(
        "POST",
        _DEPLOYMENTS,
        APPLICATION,
        create,
        "Make a deployment",
        takes=CreateDeployment,
        gives=Deployment,
    ),
    Route(
        "GET",
        _DEPLOYMENTS,
        APPLICATION,
        list_deployments,
        "List deployments, newest first",
        query=(
            *PAGED,
            *times(allowed=("gte", "lte")),
            text("agent_id", "Only deployments of this agent."),
            choice("status", "Only those; not together with `include_archived`.", ("active", "paused")),
            ARCHIVED,
        ),
        gives=PageOf(Deployment),
    ),
    Route("GET", _ONE, APPLICATION, retrieve, "Look at a deployment", gives=Deployment),
    Route("POST", _ONE, APPLICATION, update, "Change a deployment", takes=UpdateDeployment, gives=Deployment),
    Route("POST", _ONE + "/archive", APPLICATION, archive, "Archive a deployment", gives=Deployment),
    Route("POST", _ONE + "/pause", APPLICATION, pause, "Pause a deployment's schedule", gives=Deployment),
    Route("POST", _ONE + "/unpause", APPLICATION, unpause, "Let its schedule go on", gives=Deployment),
    Route("POST", _ONE + "/run", APPLICATION, run, "Run a deployment now", gives=DeploymentRun),
    Route(
        "GET",
        "/v1/deployment_runs",
        APPLICATION,
        list_runs,
        "List runs, newest first",
        query=(
            limit(most=_RUNS),
            PAGE,
            *times(),
            text("deployment_id", "Only runs of this deployment."),
            boolean("has_error", "Only runs that made no session, or only those that made one."),
            choice("trigger_type", "Only runs that began so.", ("schedule", "manual")),
        ),
        gives=PageOf(DeploymentRun),
    ),
    Route(
        "GET",
        "/v1/deployment_runs/{deployment_run_id}",
        APPLICATION,
        retrieve_run,
        "Look at a run",
        gives=DeploymentRun,
    ),
)
