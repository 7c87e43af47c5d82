"""The ASGI application: every request gets an id, a route, a caller and an answer, in this order.

An unknown path is 404 and a wrong method 405 before any credential is looked at; then a bad credential is
401, whatever else is wrong; then come the beta header, who may call, and the route itself. Errors leave in
the documented envelope with the request's id, which the log line of a failed request has too.
"""

import time
from typing import Final

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import corral
from corral.api import (
    agents,
    deployments,
    environments,
    events,
    files,
    health,
    memory_stores,
    session_resources,
    sessions,
    streams,
    threads,
    vaults,
    work,
)
from corral.api.beta import check_beta
from corral.api.call import Call
from corral.api.principals import authenticate, credential
from corral.api.routing import Route, RouteTable, check_ids
from corral.api.services import Services
from corral.wire.errors import ApiError, InternalError, Overloaded, PermissionDenied
from corral.wire.ids import new_id
from corral.wire.query import Query

_log = structlog.get_logger(__name__)

ROUTES: Final[tuple[Route, ...]] = (
    *health.ROUTES,
    *agents.ROUTES,
    *environments.ROUTES,
    *memory_stores.ROUTES,
    *vaults.ROUTES,
    *work.ROUTES,
    *sessions.ROUTES,
    *session_resources.ROUTES,
    *events.ROUTES,
    *files.ROUTES,
    *deployments.ROUTES,
    *threads.ROUTES,
    *streams.ROUTES,
)


def create_app(services: Services) -> ASGIApp:
    """The API as an ASGI application on these services."""
    return Api(services, RouteTable(ROUTES))


class Api:
    """See `create_app`."""

    def __init__(self, services: Services, table: RouteTable) -> None:
        self._services = services
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's start and stop; WebSockets are refused."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_id("req")
        exchange = _Exchange(request_id, send)
        begun = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                response = await self._respond(scope, receive, exchange)
                await response(scope, receive, exchange.send)
            except ClientDisconnect:
                _log.debug("the client went away", path=exchange.path)
            except Exception as error:
                fault = _as_api_error(error)
                _report(fault, error, scope, exchange, begun)
                if exchange.started:
                    raise  # the answer is half out: only a broken connection can tell
                await _error_response(fault, request_id)(scope, receive, exchange.send)

    async def _respond(self, scope: Scope, receive: Receive, exchange: "_Exchange") -> ASGIApp:
        http = HttpRequest(scope, receive)
        route, params = self._table.find(scope["method"], scope["path"])
        exchange.path = route.path
        caller = None
        if route.callers:
            caller = await authenticate(self._services, credential(http.headers), route.callers)
            if self._services.strict_beta and route.path.startswith("/v1/"):
                check_beta(http.headers, route.path)
            if type(caller) not in route.callers:
                raise PermissionDenied("This credential may not be used for this request.")
        check_ids(params)
        query = Query(http.query_params.multi_items())
        return await route.handler(Call(self._services, http, params, caller, query))


class _Exchange:
    """The sending side of one request: adds the headers that every response has."""

    def __init__(self, request_id: str, send: Send) -> None:
        self._headers = [
            (b"request-id", request_id.encode()),
            (b"corral-version", corral.__version__.encode()),
        ]
        self._send = send
        self.started = False
        self.path = ""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message = {**message, "headers": [*message["headers"], *self._headers]}
        await self._send(message)


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PoolTimeout | psycopg.OperationalError):
        return Overloaded("The server cannot reach its database at the moment; try again.", retry_after=1)
    return InternalError("Internal server error")


def _report(fault: ApiError, error: Exception, scope: Scope, exchange: _Exchange, begun: float) -> None:
    """One line per failed request. It has the route's pattern, not the path, and nothing that was sent."""
    line = {
        "method": scope["method"],
        "route": exchange.path,
        "status": fault.status,
        "error_type": fault.type,
        "seconds": round(time.monotonic() - begun, 4),
    }
    if fault.status < 500:
        _log.info("request refused", **line)
    else:
        _log.error("request failed", exc_info=error, **line)


def _error_response(fault: ApiError, request_id: str) -> Response:
    headers = {"x-should-retry": "true" if fault.should_retry else "false"}
    if fault.retry_after is not None:
        headers["retry-after"] = str(max(1, round(fault.retry_after)))
    return Response(fault.body(request_id), fault.status, headers, media_type="application/json")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
