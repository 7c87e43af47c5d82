"""Is the process alive, and can it do its work? Both are open, and tell nothing else."""

from typing import Literal

import msgspec
from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.principals import OPEN
from corral.api.routing import Route
from corral.wire.errors import Overloaded


async def alive(_: Call) -> ASGIApp:
    """``GET /healthz``: the process answers. The database is left out, so a probe never restarts a server."""
    return answer({"status": "ok"})


async def ready(call: Call) -> ASGIApp:
    """``GET /readyz``: the database answers, models can be called without further preparation, and nobody has
    told the server to stop.
    """
    if call.services.draining.is_set():
        raise Overloaded("The server is stopping.", retry_after=1)
    if not call.services.warm.is_set():
        raise Overloaded("The server is still starting.", retry_after=1)
    await call.services.keys.ping()
    return answer({"status": "ready"})


class Health(msgspec.Struct):
    """The answer of either."""

    status: Literal["ok", "ready"]


ROUTES = (
    Route("GET", "/healthz", OPEN, alive, "Is the process alive?", gives=Health),
    Route("GET", "/readyz", OPEN, ready, "Can it do its work?", gives=Health),
)
