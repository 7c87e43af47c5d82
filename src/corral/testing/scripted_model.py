"""The scripted model for tests: a real HTTP server in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from corral.testing.player import Player
from corral.testing.record import RecordedRequest
from corral.testing.serving import RunningServer
from corral.testing.steps import Playable, Script

WAIT_SECONDS = 30.0
"""How long the `until_...` methods wait before they fail."""


class ScriptedModel:
    """A Messages API server that plays scripts, as an async context manager on a free loopback port.

    `clock` returns seconds and ages the prompt cache; prefixes shorter than `cache_minimum_tokens` are not
    cached.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
        cache_minimum_tokens: int = 1,
    ) -> None:
        self.player = Player(clock=clock, cache_minimum_tokens=cache_minimum_tokens)
        self.base_url = ""
        self._host = host
        self._port = port
        self._running: RunningServer | None = None

    async def __aenter__(self) -> ScriptedModel:
        self._running = RunningServer(self.player)
        self.base_url = await self._running.start(self._host, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            await self._running.stop()

    def script(self, name: str, steps: Playable | Script | list[Any] | dict[str, Any]) -> str:
        """Registers a script and returns the directive line that names it, to put into a user's message."""
        self.player.add_script(name, steps)
        return f"script: {name}"

    def rule(self, **step: Any) -> None:
        """Adds a rule for every conversation: a step's fields, conditions among them."""
        self.player.add_rule(step)

    def limit_context(self, tokens: int | None) -> None:
        """Has the model refuse requests of more tokens than its context holds, as `prompt is too long`."""
        self.player.context_tokens = tokens

    def release(self, name: str) -> None:
        """Lets everything pass that waits at the hold `name`, now and later."""
        self.player.holds.release(name)

    async def until_holding(self, name: str, count: int = 1) -> None:
        """Returns once `count` responses wait at the hold `name`. TimeoutError after `WAIT_SECONDS`."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.player.holds.until_waiting(name, count)

    async def until_requests(self, count: int) -> None:
        """Returns once `count` requests have come since the last reset. Raises TimeoutError after
        `WAIT_SECONDS`.
        """
        await self._until(lambda: self.player.record.requests >= count)

    async def until_outcome(self, outcome: str, count: int = 1) -> None:
        """Returns once `count` responses ended so: `complete`, `error`, `cut`, `disconnected`."""
        await self._until(lambda: self.player.record.by_outcome[outcome] >= count)

    def recorded(self, path: str = "/v1/messages") -> list[RecordedRequest]:
        """The latest requests to `path`, oldest first, with status and outcome."""
        return [request for request in self.player.record.ring if request.path == path]

    def requests(self) -> list[dict[str, Any]]:
        """Bodies of the latest `/v1/messages` requests, oldest first."""
        return [request.body for request in self.recorded()]

    @property
    def stats(self) -> dict[str, Any]:
        """Counts since the last reset, as `GET /_scripted/stats` shows them."""
        return self.player.record.stats()

    def assert_no_refusals(self) -> None:
        """Fails with every refusal since the last reset."""
        refused = self.player.record.refused
        assert not refused, f"the model refused {len(refused)} requests: {json.dumps(refused, indent=1)}"

    def reset(self) -> None:
        """Forgets scripts, rules, requests, attempts and the cache; holds hold again."""
        self.player.reset()

    async def _until(self, reached: Callable[[], bool]) -> None:
        changed = self.player.record.changed
        async with asyncio.timeout(WAIT_SECONDS):
            async with changed:
                await changed.wait_for(reached)
