from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from anthropic import AsyncAnthropic

from corral.testing import ScriptedModel


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as running:
        yield running


@pytest.fixture
async def client(model: ScriptedModel) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=model.base_url, api_key="key", max_retries=0) as opened:
        yield opened
