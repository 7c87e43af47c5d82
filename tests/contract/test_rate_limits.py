"""Rate limits as a client meets them: 429, with when to come back; never for workers."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from corral.api.app import create_app
from corral.api.rate_limits import RateLimits
from corral.store.database import Database

from .conftest import Api, running, serving


@pytest_asyncio.fixture
async def limited(database: Database) -> AsyncIterator[Api]:
    """The API with 20 writes a minute: two at once, then one every three seconds."""
    async with running(database) as api:
        services = replace(api.services, limits=RateLimits(reads=10, writes=20))
        async with serving(create_app(services)) as base_url:
            async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": api.api_key}) as http:
                yield replace(api, base_url=base_url, http=http, services=services)


async def test_too_many_writes_are_refused_and_told_when_to_come_back(limited: Api) -> None:
    made = [await limited.post("/v1/agents", {"name": "A", "model": "claude-opus-5-5"}) for _ in range(3)]
    assert [response.status_code for response in made] == [200, 200, 429]
    refused = made[-1]
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "20 writes a minute" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert 0 < int(refused.headers["retry-after-ms"]) <= 3000
    assert refused.headers["x-should-retry"] == "true"
    assert len((await limited.get("/v1/agents")).json()["data"]) == 2


async def test_another_key_has_a_rate_of_its_own(limited: Api) -> None:
    assert [(await limited.get("/v1/agents")).status_code for _ in range(2)] == [200, 429]
    _, other = await limited.services.keys.create("api", "other")
    assert (await limited.get("/v1/agents", headers={"x-api-key": other})).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/v1/nothing"])
async def test_what_needs_no_key_is_not_counted(limited: Api, path: str) -> None:
    statuses = {(await limited.get(path)).status_code for _ in range(5)}
    assert 429 not in statuses


async def test_workers_are_never_limited(limited: Api) -> None:
    environment = (await limited.environment(config={"type": "self_hosted"}))["id"]
    key = await limited.environment_key(environment)
    path = f"/v1/environments/{environment}/work/poll"
    polled = [await limited.get(path, headers={"x-api-key": key}) for _ in range(15)]
    assert {response.status_code for response in polled} == {200}
