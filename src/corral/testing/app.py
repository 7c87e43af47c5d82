"""The scripted model as an ASGI app: the Messages API, and `/_scripted/` to steer and question it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from corral.testing.performance import PerformanceResponse
from corral.testing.player import Player
from corral.testing.prefix_cache import count_tokens
from corral.testing.record import RecordedRequest
from corral.testing.refusal import Refused, error_body
from corral.testing.reply import make_id
from corral.testing.steering import steering_routes
from corral.testing.validation.context import TooLong, check_context_management, check_length
from corral.testing.validation.models import MODEL_IDS
from corral.testing.validation.request import MAX_REQUEST_BYTES, check_request

_KEPT_HEADERS = ("anthropic-version", "anthropic-beta", "user-agent", "content-type")
_Handler = Callable[[RecordedRequest, Any], Awaitable[ASGIApp]]


def create_app(player: Player, closing: asyncio.Event) -> Starlette:
    """The app that plays `player`. When `closing` is set, delays end at once so that the server can stop."""

    async def messages(recorded: RecordedRequest, value: Any) -> ASGIApp:
        body = check_request(value, version=recorded.headers.get("anthropic-version"), issued=player.issued)
        check_context_management(body, recorded.headers.get("anthropic-beta", ""))
        check_length(count_tokens(body), player.context_tokens)
        return PerformanceResponse(
            player.perform(body), player, recorded, streaming=bool(body.get("stream")), closing=closing
        )

    async def tokens(recorded: RecordedRequest, value: Any) -> ASGIApp:
        body = check_request(value, counting=True, version=recorded.headers.get("anthropic-version"))
        player.record.answered(recorded, 200)
        return JSONResponse({"input_tokens": count_tokens(body)}, headers={"request-id": recorded.request_id})

    return Starlette(
        routes=[
            Route("/v1/messages", _endpoint(player, messages), methods=["POST"]),
            Route("/v1/messages/count_tokens", _endpoint(player, tokens), methods=["POST"]),
            Route("/v1/models", _models, methods=["GET"]),
            Route("/v1/models/{model_id}", _model, methods=["GET"]),
            *steering_routes(player),
        ]
    )


class _Endpoint:
    """Reads, records and checks a request, then hands it to its handler; a refusal becomes an error."""

    def __init__(self, player: Player, handler: _Handler) -> None:
        self._player = player
        self._handler = handler

    async def __call__(self, request: Request) -> ASGIApp:
        recorded = RecordedRequest(
            path=request.url.path,
            request_id=make_id("req"),
            raw=b"",
            headers={name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers},
        )
        try:
            recorded.raw, too_large = await _read(request)
        except ClientDisconnect:
            return Response(status_code=400)
        await self._player.record.add(recorded)
        try:
            _check_credential(request)
            if too_large:
                raise Refused(
                    "", f"request exceeds the maximum size of {MAX_REQUEST_BYTES} bytes", status=413
                )
            return await self._handler(recorded, _decode(recorded.raw))
        except Refused as refused:
            self._player.record.answered(recorded, refused.status)
            if isinstance(refused, TooLong):
                self._player.record.too_long += 1
            else:
                self._player.record.refuse(recorded, refused)
            return _refusal(refused, recorded.request_id)


def _endpoint(player: Player, handler: _Handler) -> Callable[[Request], Awaitable[Any]]:
    endpoint = _Endpoint(player, handler)

    async def handle(request: Request) -> ASGIApp:
        return await endpoint(request)

    return handle


async def _read(request: Request) -> tuple[bytes, bool]:
    """The body, and whether it was too large; a large one is read to its end, so that the client sees the
    answer.
    """
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_REQUEST_BYTES:
            parts.clear()
        else:
            parts.append(part)
    return b"".join(parts), size > MAX_REQUEST_BYTES


def _check_credential(request: Request) -> None:
    if not request.headers.get("x-api-key") and not request.headers.get("authorization"):
        raise Refused("", "x-api-key or authorization header is required", status=401)


def _decode(raw: bytes) -> Any:
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("", "the request body is not valid JSON: a lone surrogate in a string") from None
    except (ValueError, RecursionError) as error:
        raise Refused("", f"the request body is not valid JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _refusal(refused: Refused, request_id: str) -> JSONResponse:
    return JSONResponse(
        error_body(refused.status, str(refused), request_id),
        status_code=refused.status,
        headers={"request-id": request_id},
    )


def _model_entry(model_id: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model_id,
        "display_name": model_id.removeprefix("claude-").replace("-", " ").title(),
        "created_at": "2026-10-01T00:00:00Z",
        "max_input_tokens": 200_000,
        "max_tokens": 64_000,
    }


async def _models(request: Request) -> Response:
    try:
        _check_credential(request)
    except Refused as refused:
        return _refusal(refused, make_id("req"))
    entries = [_model_entry(model_id) for model_id in MODEL_IDS]
    page = {"data": entries, "has_more": False, "first_id": MODEL_IDS[0], "last_id": MODEL_IDS[-1]}
    return JSONResponse(page, headers={"request-id": make_id("req")})


async def _model(request: Request) -> Response:
    try:
        _check_credential(request)
        model_id = request.path_params["model_id"]
        if model_id not in MODEL_IDS:
            raise Refused("", f"model: {model_id}", status=404)
    except Refused as refused:
        return _refusal(refused, make_id("req"))
    return JSONResponse(_model_entry(model_id), headers={"request-id": make_id("req")})
