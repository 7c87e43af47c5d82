"""Liveness: the process answers. It leaves the database out, so a probe never restarts a waiting server."""

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.principals import OPEN
from corral.api.routing import Route


async def alive(_: Call) -> ASGIApp:
    """``GET /healthz``."""
    return answer({"status": "ok"})


ROUTES = (Route("GET", "/healthz", OPEN, alive),)
