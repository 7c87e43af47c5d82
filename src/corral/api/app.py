"""The ASGI application: every request gets an id, a route, a caller and an answer, in this order.

An unknown path is 404 and a wrong method 405 before any credential is looked at; then a bad credential is
401, whatever else is wrong; then come the beta header, who may call, and the route itself. Errors leave in
the documented envelope with the request's id, which the log line of a failed request has too.
"""

import asyncio
import math
import time
from contextlib import ExitStack
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
    audit,
    deployments,
    dreams,
    environments,
    events,
    extensions,
    files,
    health,
    memory_stores,
    models,
    sandboxes,
    session_resources,
    sessions,
    skills,
    streams,
    threads,
    tunnels,
    user_profiles,
    vaults,
    webhooks,
    work,
)
from corral.api.audit import is_administrative, recorded
from corral.api.beta import check_beta
from corral.api.call import Call
from corral.api.connection import Arriving
from corral.api.describe import Stream
from corral.api.openapi import described
from corral.api.principals import ApiKey, authenticate, credential
from corral.api.routing import Route, RouteTable, check_ids
from corral.api.services import Services
from corral.wire.errors import (
    ApiError,
    InternalError,
    Overloaded,
    PermissionDenied,
    RequestTimeout,
    RequestTooLarge,
)
from corral.wire.ids import new_id
from corral.wire.query import Query

_log = structlog.get_logger(__name__)

ROUTES: Final[tuple[Route, ...]] = described(
    (
        *health.ROUTES,
        *agents.ROUTES,
        *audit.ROUTES,
        *environments.ROUTES,
        *memory_stores.ROUTES,
        *models.ROUTES,
        *vaults.ROUTES,
        *webhooks.ROUTES,
        *user_profiles.ROUTES,
        *tunnels.ROUTES,
        *work.ROUTES,
        *sessions.ROUTES,
        *session_resources.ROUTES,
        *sandboxes.ROUTES,
        *events.ROUTES,
        *extensions.ROUTES,
        *files.ROUTES,
        *skills.ROUTES,
        *deployments.ROUTES,
        *dreams.ROUTES,
        *threads.ROUTES,
        *streams.ROUTES,
    )
)


def create_app(services: Services) -> ASGIApp:
    """The API as an ASGI application on these services."""
    return Api(services, RouteTable(ROUTES))


def create_probes(services: Services) -> ASGIApp:
    """What a server answers that is no API: whether it is alive, and ready."""
    return Api(services, RouteTable(health.ROUTES))


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
        exchange = _Exchange(request_id, send, self._services.draining)
        receive = Arriving(receive, self._services.body_seconds)
        begun = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                # The place is held until the answer is out: it is the answer that takes memory.
                with ExitStack() as place:
                    response = await self._respond(scope, receive, exchange, place)
                    await response(scope, receive, exchange.send)
            except ClientDisconnect:
                _log.debug("the client went away", path=exchange.path)
            except Exception as error:
                fault = _as_api_error(error)
                _report(fault, error, scope, exchange, begun)
                if exchange.started:
                    raise  # the answer is half out: only a broken connection can tell
                await _error_response(fault, request_id)(scope, receive, exchange.send)

    async def _respond(
        self, scope: Scope, receive: Receive, exchange: "_Exchange", place: ExitStack
    ) -> ASGIApp:
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
        write = route.method not in {"GET", "HEAD"}
        stream = isinstance(route.gives, Stream)
        key_id = caller.key_id if isinstance(caller, ApiKey) else None
        place.enter_context(self._services.admission.admitted(key_id, write=write, stream=stream))
        if isinstance(caller, ApiKey):
            self._services.limits.admit(caller.key_id, write=write)
        check_ids(params)
        # A worker's result must not be lost for what others send: it waits for room, and they do not.
        patience = 0.0 if key_id is not None else self._services.body_seconds
        room = place.enter_context(self._services.admission.bodies.hold(wait_seconds=patience))
        call = Call(self._services, http, params, caller, Query(http.query_params.multi_items()), room)
        if isinstance(caller, ApiKey) and is_administrative(route):
            return await recorded(route, call, caller, exchange.request_id, lambda: route.handler(call))
        return await route.handler(call)


class _Exchange:
    """The sending side of one request: adds the headers that every response has."""

    def __init__(self, request_id: str, send: Send, draining: asyncio.Event) -> None:
        self._headers = [
            (b"request-id", request_id.encode()),
            (b"corral-version", corral.__version__.encode()),
        ]
        self._draining = draining
        self._send = send
        self.started = False
        self.path = ""
        self.request_id = request_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            # The next request had better go to a server that stays.
            last = [(b"connection", b"close")] if self._draining.is_set() else []
            message = {**message, "headers": [*message["headers"], *self._headers, *last]}
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
    if fault.status < 500 or (fault is error and isinstance(fault, Overloaded)):
        _log.info("request refused", **line)
    elif isinstance(fault, Overloaded):
        # A state of the server, or of what it depends on; load balancers ask for it every few seconds.
        _log.warning("request cannot be served now", reason=str(error), **line)
    else:
        _log.error("request failed", exc_info=error, **line)


def _error_response(fault: ApiError, request_id: str) -> Response:
    headers = {"x-should-retry": "true" if fault.should_retry else "false"}
    if fault.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(fault.retry_after)))
        headers["retry-after-ms"] = str(max(1, math.ceil(fault.retry_after * 1000)))
    if isinstance(fault, RequestTimeout | RequestTooLarge):
        headers["connection"] = "close"  # what is left of the body is nobody's
    return Response(fault.body(request_id), fault.status, headers, media_type="application/json")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
