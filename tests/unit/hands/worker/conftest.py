"""A documented server for each test."""

from collections.abc import AsyncGenerator

import pytest_asyncio

from tests.unit.hands.worker.documented_server import DocumentedServer, documented_server


@pytest_asyncio.fixture
async def server() -> AsyncGenerator[DocumentedServer]:
    """A running server with the documented endpoints only."""
    async with documented_server() as running:
        yield running
