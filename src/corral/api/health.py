"""Is the process alive, and can it do its work? Both are open, and tell nothing else."""

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.principals import OPEN
from corral.api.routing import Route
from corral.wire.errors import Overloaded


async def alive(_: Call) -> ASGIApp:
    """``GET /healthz``: the process answers. The database is left out, so a probe never restarts a server."""
    return answer({"status": "ok"})


async def ready(call: Call) -> ASGIApp:
    """``GET /readyz``: the database answers, and models can be called without further preparation."""
    if not call.services.warm.is_set():
        raise Overloaded("The server is still starting.", retry_after=1)
    await call.services.keys.ping()
    return answer({"status": "ready"})


ROUTES = (Route("GET", "/healthz", OPEN, alive), Route("GET", "/readyz", OPEN, ready))
