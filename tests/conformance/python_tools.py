"""Tools and conditions that the tests of the official Python worker share."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from anthropic import beta_async_tool
from anthropic.lib.tools.agent_toolset import AgentToolContext, beta_agent_toolset_20260401

from tests.conformance.premises import (
    Answer,
)

BRIEFLY = 0.05


@beta_async_tool(name="get_weather")
async def get_weather(city: str = "here") -> str:
    """The weather of a city."""
    return f"{city}: 17 C"


class Slow:
    """A custom tool that takes as long as the test wants."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.let_go = asyncio.Event()

    @property
    def tool(self) -> Any:
        @beta_async_tool(name="get_weather")
        async def slowly(city: str = "here") -> str:
            """The weather of a city."""
            self.called.set()
            await self.let_go.wait()
            return f"{city}: 17 C"

        return slowly


def with_weather(context: AgentToolContext) -> list[Any]:
    return [*beta_agent_toolset_20260401(context), get_weather]


def state_is(state: str) -> Callable[[Answer], bool]:
    def holds(answer: Answer) -> bool:
        return answer.status == 200 and msgspec.json.decode(answer.body)["state"] == state

    return holds


def failed_with(status: int) -> Callable[[Answer], bool]:
    return lambda answer: answer.status == status
