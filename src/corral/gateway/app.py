"""What servers ask of the gateway, over HTTP. Each request shows a grant; without one nothing is told.

Errors have the form of the API's. No request is logged with its content.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from corral.gateway.services import GatewayServices
from corral.gateway.validation import validate
from corral.vault.grants import GrantedSession
from corral.vault.sealing import CannotOpen
from corral.wire import gateway as wire
from corral.wire.credentials import OAuth
from corral.wire.errors import ApiError, AuthenticationFailed, InternalError, InvalidRequest

BODY_BYTES: Final = 16 * 1024 * 1024

_Handler = Callable[[GatewayServices, Request], Awaitable[object]]
T = TypeVar("T")

_log = structlog.get_logger(__name__)


def create_app(services: GatewayServices) -> Starlette:
    """The gateway's application on these services."""

    def route(method: str, path: str, handler: _Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _respond(services, request, handler)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            route("GET", wire.HEALTH_PATH, _alive),
            route("POST", wire.VALIDATE_PATH, _validate),
            route("POST", wire.TOOLS_PATH, _tools),
            route("POST", wire.CALL_PATH, _call),
            route("POST", wire.CANCEL_PATH, _cancel),
        ]
    )


async def _respond(services: GatewayServices, request: Request, handler: _Handler) -> Response:
    try:
        answer = await handler(services, request)
    except ClientDisconnect:
        return Response(status_code=499)
    except ApiError as error:
        return Response(error.body(None), error.status, media_type="application/json")
    except CannotOpen as error:
        _log.error("a secret does not open", path=request.url.path, reason=str(error))
        fault = InternalError(f"The gateway cannot open a secret: {error}.")
        return Response(fault.body(None), fault.status, media_type="application/json")
    except Exception:
        _log.exception("a request failed inside", path=request.url.path)
        fault = InternalError("The gateway failed inside; its log says why.")
        return Response(fault.body(None), fault.status, media_type="application/json")
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _alive(services: GatewayServices, request: Request) -> object:
    return {"status": "ok"}


async def _validate(services: GatewayServices, request: Request) -> wire.Validation:
    credential_id = await services.grants.validation(_token(request))
    if credential_id is None:
        raise AuthenticationFailed
    credential = await services.credentials.by_id(credential_id)
    if credential.archived_at is not None or not isinstance(credential.auth, OAuth):
        raise InvalidRequest("Only active credentials of type mcp_oauth can be validated.")
    return await validate(credential, await services.now(), services.tokens, services.reach)


async def _tools(services: GatewayServices, request: Request) -> wire.ToolsAnswer:
    session = await _session(services, request)
    asked = await _body(request, wire.ToolsRequest)
    return await services.mcp.tools(session, asked.server_name, asked.thread_id)


async def _call(services: GatewayServices, request: Request) -> wire.CallOutcome:
    session = await _session(services, request)
    return await services.calls.call(session, await _body(request, wire.CallRequest))


async def _cancel(services: GatewayServices, request: Request) -> object:
    session = await _session(services, request)
    asked = await _body(request, wire.CancelRequest)
    await services.calls.cancel(session.session_id, asked.event_id)
    return {}


async def _session(services: GatewayServices, request: Request) -> GrantedSession:
    session = await services.grants.session(_token(request))
    if session is None:
        raise AuthenticationFailed
    return session


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise AuthenticationFailed
    return token


async def _body(request: Request, kind: type[T]) -> T:
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > BODY_BYTES:
            raise InvalidRequest(f"The body is longer than {BODY_BYTES} bytes.")
    try:
        return msgspec.json.decode(received, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not what is expected here: {error}") from None
