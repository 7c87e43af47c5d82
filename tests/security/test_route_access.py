"""Deny by default: every route against every kind of credential, row by row, over HTTP.

The table is written by hand (`route_access.txt`), not read from the code: a route that is not in it, or is
open to somebody else than it says, fails.
"""

import asyncio
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

from corral.api.app import ROUTES
from corral.store.database import Database
from tests.contract.conftest import Api, running

_TABLE: Final = Path(__file__).with_name("route_access.txt")
_KINDS: Final = ("api", "environment", "pool", "work", "former")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    method: str
    path: str
    kinds: frozenset[str]

    def filled(self, **values: str) -> str:
        """The path with these ids, and made-up ones where none is given."""
        return re.sub(r"{(\w+)}", lambda found: values.get(found[1], f"{found[1]}_01none"), self.path)


def _rows() -> list[Row]:
    lines = [line.split("#")[0].split() for line in _TABLE.read_text().splitlines()]
    return [Row(method, path, frozenset(kinds)) for method, path, *kinds in filter(None, lines)]


ROWS: Final = _rows()
OPEN: Final = frozenset({"anybody"})


@dataclass(frozen=True)
class House:
    """Two environments, each with a session at work, and the credentials of everybody around them."""

    api: Api
    nobody: httpx.AsyncClient
    """A client without a credential."""
    ours: dict[str, str]
    """The ids of the first environment, its session and its work item."""
    keys: dict[str, str]
    """Credentials by kind; those of workers are for the first environment."""
    foreign: dict[str, str]
    """Credentials of the second environment's workers, and of the pool: it has no business in either."""
    useless: list[str | None]
    """No credential, made-up ones and a revoked key."""

    async def status(self, method: str, path: str, key: str | None) -> int:
        asked: dict[str, Any] = {"json": {}} if method in {"POST", "PATCH"} else {}
        if key is not None:
            asked["headers"] = {"authorization": f"Bearer {key}"}
        # A stream that opens is left at once.
        async with self.nobody.stream(method, path, params={"block_ms": "1"}, **asked) as response:
            return response.status_code


async def _worked(api: Api, name: str) -> tuple[dict[str, str], str, str, str]:
    """An environment with a session: its ids, its worker's key, the token of its work, and a former one."""
    environment = (await api.environment(name=name, config={"type": "self_hosted"}))["id"]
    key = await api.environment_key(environment)
    agent = (await api.agent(tools=[{"type": "agent_toolset_20260401"}]))["id"]
    tokens: list[tuple[str, str]] = []
    session = ""
    for _ in range(2):
        session = (await api.session(environment_id=environment, agent=agent))["id"]
        await api.services.work.ensure(session, environment)
        async with api.client(key) as worker:
            item = await worker.beta.environments.work.poll(environment)
        assert item is not None
        assert item.secret is not None
        tokens.append((item.id, _token(item.secret)))
    (former_work, former), (work, token) = tokens
    stopped = await api.post(f"/v1/environments/{environment}/work/{former_work}/stop", {"force": True})
    assert stopped.status_code == 200
    ids = {"environment_id": environment, "session_id": session, "work_id": work}
    return ids, key, token, former


def _token(secret: str) -> str:
    return json.loads(urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))["sessions_token"]


@pytest_asyncio.fixture
async def house(database: Database) -> AsyncIterator[House]:
    async with running(database) as api:
        ours, key, token, former = await _worked(api, "ours")
        _, other_key, other_token, other_former = await _worked(api, "theirs")
        pool = await api.pool_key()
        revoked, revoked_key = await api.services.keys.create("api", "revoked")
        await api.services.keys.revoke(revoked.id)
        async with httpx.AsyncClient(base_url=api.base_url, timeout=20) as nobody:
            yield House(
                api,
                nobody,
                ours,
                {"api": api.api_key, "environment": key, "pool": pool, "work": token, "former": former},
                {"environment": other_key, "pool": pool, "work": other_token, "former": other_former},
                [None, "nonsense", "corral_ak_nonsense", "corral_wt_nonsense", revoked_key],
            )


def test_the_table_has_every_route_and_no_other() -> None:
    assert sorted((row.method, row.path) for row in ROWS) == sorted(
        (route.method, route.path) for route in ROUTES
    )
    assert [row.path for row in ROWS if row.kinds == OPEN] == [
        "/enrollment/{until}",
        "/healthz",
        "/openapi.json",
        "/readyz",
    ]
    assert all(row.kinds == OPEN or row.kinds <= set(_KINDS) for row in ROWS)


async def test_nobody_gets_in_without_a_credential_that_is_good(house: House) -> None:
    async def tried(row: Row, key: str | None) -> str | None:
        status = await house.status(row.method, row.filled(**house.ours), key)
        opened = row.kinds == OPEN
        return None if (status != 401) == opened else f"{row.method} {row.path} with {key}: {status}"

    for key in house.useless:
        found = await asyncio.gather(*(tried(row, key) for row in ROWS))
        assert [one for one in found if one] == []


@pytest.mark.parametrize("kind", _KINDS)
async def test_each_kind_of_credential_gets_in_where_the_table_says(house: House, kind: str) -> None:
    async def tried(row: Row) -> str | None:
        if row.kinds == OPEN:
            return None
        allowed = kind in row.kinds
        # With ids of nothing where it may come in, so that nothing is changed; with real ones elsewhere.
        path = row.filled() if allowed else row.filled(**house.ours)
        status = await house.status(row.method, path, house.keys[kind])
        # What a former token once was is not told where it is of no use.
        expected = status not in {401, 403} if allowed else status == (401 if kind == "former" else 403)
        return None if expected else f"{row.method} {row.path}: {status}"

    found = await asyncio.gather(*map(tried, ROWS))
    assert [one for one in found if one] == []


@pytest.mark.parametrize("kind", ["environment", "pool", "work", "former"])
async def test_what_belongs_to_others_is_not_there(house: House, kind: str) -> None:
    async def tried(row: Row) -> str | None:
        if kind not in row.kinds or not {"{environment_id}", "{session_id}"} & set(row.path.split("/")):
            return None
        status = await house.status(row.method, row.filled(**house.ours), house.foreign[kind])
        return None if status in {403, 404} else f"{row.method} {row.path}: {status}"

    found = await asyncio.gather(*map(tried, ROWS))
    assert [one for one in found if one] == []
