"""The routes under `/_scripted/`: scripts, rules, holds, statistics and recorded requests over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from corral.testing.player import Player
from corral.testing.refusal import Refused, error_body
from corral.testing.reply import make_id

MAX_WAIT_SECONDS = 60.0
"""Longest time that `GET /_scripted/holding/NAME` waits."""


def steering_routes(player: Player) -> list[Route]:
    """The routes that steer `player`. They need no credential: a scripted model serves loopback and tests."""

    async def stats(request: Request) -> Response:
        return JSONResponse({**player.record.stats(), "holding": player.holds.waiting()})

    async def requests(request: Request) -> Response:
        return JSONResponse({"requests": [one.as_json() for one in player.record.ring]})

    async def reset(request: Request) -> Response:
        player.reset()
        return JSONResponse({"reset": True})

    async def scripts(request: Request) -> Response:
        return JSONResponse({"scripts": player.script_names})

    async def add_script(request: Request) -> Response:
        player.add_script(request.path_params["name"], await request.json())
        return JSONResponse({"scripts": player.script_names})

    async def add_rule(request: Request) -> Response:
        player.add_rule(await request.json())
        return JSONResponse({"added": True})

    async def release(request: Request) -> Response:
        player.holds.release(request.path_params["name"])
        return JSONResponse({"released": request.path_params["name"]})

    async def holding(request: Request) -> Response:
        name = request.path_params["name"]
        query = request.query_params
        timeout = min(float(query.get("timeout", "30")), MAX_WAIT_SECONDS)
        try:
            async with asyncio.timeout(timeout):
                await player.holds.until_waiting(name, int(query.get("count", "1")))
        except TimeoutError:
            return JSONResponse({"holding": False})
        return JSONResponse({"holding": True})

    return [
        Route("/_scripted/stats", stats, methods=["GET"]),
        Route("/_scripted/requests", requests, methods=["GET"]),
        Route("/_scripted/reset", reset, methods=["POST"]),
        Route("/_scripted/scripts", scripts, methods=["GET"]),
        Route("/_scripted/scripts/{name}", _checked(add_script), methods=["POST"]),
        Route("/_scripted/rules", _checked(add_rule), methods=["POST"]),
        Route("/_scripted/release/{name}", release, methods=["POST"]),
        Route("/_scripted/holding/{name}", _checked(holding), methods=["GET"]),
    ]


def _checked(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except (Refused, json.JSONDecodeError, ValueError) as error:
            return JSONResponse(error_body(400, str(error), make_id("req")), status_code=400)

    return handle
