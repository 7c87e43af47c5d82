"""What each route's tests need: one module for each family, a table of routes in each.

A rule makes what the request names and puts the ids in. It may not look at, or change, any answer.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.workshop import Workshop

Rule: TypeAlias = Callable[[Asked, Workshop], Awaitable[None]]
Rules: TypeAlias = Mapping[str, Rule]
"""Rules by ``METHOD /v1/path/{with}/{parameters}``."""


async def as_it_is(asked: Asked, at: Workshop) -> None:
    """The request names nothing that has to be made."""
