"""How tests say that a request must be refused, and that a response holds nothing but what is documented."""

from collections.abc import Awaitable
from typing import Any, cast

import pytest
from anthropic import APIStatusError, BadRequestError
from pydantic import BaseModel


async def refused(
    request: Awaitable[Any], *parts: str, kind: type[APIStatusError] = BadRequestError
) -> dict[str, Any]:
    """The error object of a request that must fail for good, its message holding all of `parts`."""
    with pytest.raises(kind) as caught:
        await request
    response = caught.value.response
    body = cast("dict[str, Any]", caught.value.body)
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    error: dict[str, Any] = body["error"]
    for part in parts:
        assert part in error["message"], error
    # The SDK repeats 408, 409, 429 and 5xx unless it is told not to.
    assert response.headers["x-should-retry"] == "false"
    return error


def undocumented(value: object, path: str = "") -> list[str]:
    """The paths of all fields in a parsed response that the SDK's classes do not know."""
    found: list[str] = []
    if isinstance(value, BaseModel):
        extra = value.model_extra or {}
        found += [f"{path}.{name}" for name in extra]
        for name in type(value).model_fields:
            found += undocumented(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            found += undocumented(item, f"{path}[{index}]")
    return found
