"""Routes of sandboxes: what a worker is told before it starts one, and what sandboxes did outside."""

from typing import Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PageOf
from corral.api.principals import APPLICATION, WorkToken
from corral.api.reach import session_of
from corral.api.routing import Route
from corral.wire.egress import EgressDecision, ReportRepository, RepositoryReported, SandboxPlan

_SESSION: Final = "/corral/v1/sessions/{session_id}"


async def plan(call: Call) -> ASGIApp:
    """``GET /corral/v1/sessions/{session_id}/sandbox``."""
    return answer(await call.services.sandbox_plans.plan(await session_of(call)))


async def egress(call: Call) -> ASGIApp:
    """``GET /corral/v1/sessions/{session_id}/egress``."""
    return answer({"data": await call.services.sandbox_plans.decisions(call.params["session_id"])})


async def repository(call: Call) -> ASGIApp:
    """``POST /corral/v1/sessions/{session_id}/repositories/{resource_id}/failure``."""
    session_id = await session_of(call)
    params = await call.decode(ReportRepository)
    await call.services.sandbox_plans.report_repository(
        session_id, call.params["resource_id"], params.error, params.message
    )
    return answer(RepositoryReported(id=call.params["resource_id"]))


ROUTES = (
    Route(
        "GET",
        _SESSION + "/sandbox",
        frozenset({WorkToken}),
        plan,
        "What the session's sandbox is to have",
        gives=SandboxPlan,
    ),
    Route(
        "GET",
        _SESSION + "/egress",
        APPLICATION,
        egress,
        "Which hosts a session's sandbox has asked for, and what was decided",
        gives=PageOf(EgressDecision, cursors=()),
    ),
    Route(
        "POST",
        _SESSION + "/repositories/{resource_id}/failure",
        frozenset({WorkToken}),
        repository,
        "Say that a repository could not be cloned",
        takes=ReportRepository,
        gives=RepositoryReported,
    ),
)
