"""A whole server and a self-hosted environment for clients that Corral's authors did not write."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.conformance.premises import Premises, premises_of
from tests.corral_server import Corral
from tests.e2e.conftest import corral as corral
from tests.e2e.conftest import model as model


@pytest_asyncio.fixture
async def premises(corral: Corral) -> AsyncIterator[Premises]:
    """A self-hosted environment, its key, and a client as a worker's host has it."""
    async with premises_of(corral) as made:
        yield made
