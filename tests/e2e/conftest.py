"""A whole server for each test, and the check that the model never refused what it was sent."""

from collections.abc import AsyncGenerator

import pytest_asyncio

from corral.testing import ScriptedModel
from tests.corral_server import Corral, running_corral


@pytest_asyncio.fixture
async def model() -> AsyncGenerator[ScriptedModel]:
    """A scripted model; the test fails if it refused a request."""
    async with ScriptedModel() as scripted:
        yield scripted
        scripted.assert_no_refusals()


@pytest_asyncio.fixture
async def corral(database_url: str, model: ScriptedModel) -> AsyncGenerator[Corral]:
    """A running server on an empty database."""
    async with running_corral(database_url, model) as running:
        yield running
