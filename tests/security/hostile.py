"""What tests of hostile requests share: a world with one of everything, bytes as they are, and refusals."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from tests.contract.conftest import Api
from tests.populated import World, populated


@pytest_asyncio.fixture
async def world(api: Api) -> AsyncIterator[World]:
    yield await populated(api)


def refused(response: httpx.Response, *statuses: int) -> str:
    """The message of a refusal, which is one of these and in the envelope."""
    assert response.status_code in (statuses or (400,)), (response.request.url, response.text[:500])
    assert response.headers["content-type"] == "application/json"
    told = response.json()
    assert set(told) == {"type", "error", "request_id"}
    assert told["type"] == "error"
    assert told["request_id"] == response.headers["request-id"]
    assert response.headers["x-should-retry"] in ("true", "false")
    message = told["error"]["message"]
    assert message
    assert len(message) < 1000
    assert message.isprintable()
    return message


async def raw(api: Api | str, *pieces: bytes) -> bytes:
    """What a server answers to these bytes until it closes the connection, or has nothing more to say."""
    url = httpx.URL(api if isinstance(api, str) else api.base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read(2**20)
    finally:
        writer.close()
