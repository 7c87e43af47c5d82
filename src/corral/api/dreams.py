"""Routes of dreams (contract section 21)."""

from typing import Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import ARCHIVED, PAGED, PageOf, choices
from corral.api.describe import times as described_times
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.resources import dreams
from corral.wire.dreams import STATUSES, CreateDream, Dream
from corral.wire.errors import Conflict

_DREAM: Final = "/v1/dreams/{dream_id}"
_BOUNDS: Final = ("gt", "lt")


async def create(call: Call) -> ASGIApp:
    """``POST /v1/dreams``."""
    return answer(await call.services.dreams.create(await call.decode(CreateDream)))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/dreams/{dream_id}``."""
    return answer(await call.services.dreams.retrieve(call.params["dream_id"]))


async def cancel(call: Call) -> ASGIApp:
    """``POST /v1/dreams/{dream_id}/cancel``."""
    return answer(await call.services.dreams.cancel(call.params["dream_id"]))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/dreams/{dream_id}/archive``."""
    return answer(await call.services.dreams.archive(call.params["dream_id"]))


async def list_dreams(call: Call) -> ASGIApp:
    """``GET /v1/dreams``."""
    page = call.page(dreams.LIST, (int, str))
    times = call.query.times("created_at", _BOUNDS)
    statuses = call.query.values("statuses", STATUSES)
    archived = call.query.boolean("include_archived")
    return answer(await call.services.dreams.list(page, times, statuses=statuses, include_archived=archived))


ROUTES = (
    Route(
        "POST",
        "/v1/dreams",
        APPLICATION,
        create,
        "Dream: reorganise a memory store in the light of past sessions",
        takes=CreateDream,
        gives=Dream,
        refuses=(Conflict,),
    ),
    Route(
        "GET",
        "/v1/dreams",
        APPLICATION,
        list_dreams,
        "List dreams, newest first",
        query=(
            *PAGED,
            ARCHIVED,
            choices("statuses", "Only dreams that are at one of these.", STATUSES),
            *described_times("created_at", _BOUNDS),
        ),
        gives=PageOf(Dream),
    ),
    Route("GET", _DREAM, APPLICATION, retrieve, "Look at a dream", gives=Dream),
    Route("POST", _DREAM + "/cancel", APPLICATION, cancel, "End a dream", gives=Dream),
    Route("POST", _DREAM + "/archive", APPLICATION, archive, "Archive a dream", gives=Dream),
)
