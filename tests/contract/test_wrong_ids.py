"""Ids that are unknown, of another kind or below another parent are all 404 (contract section 2.2)."""

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest_asyncio

from corral.api.app import ROUTES
from corral.api.principals import ApiKey
from corral.api.routing import Route
from corral.wire.ids import new_id
from tests.populated import World, populated

from .conftest import Api

# Bodies that are good as far as anybody can tell without looking at what the path names.
BODIES: Final[dict[str, Any]] = {
    "CreateMemory": {"path": "/x.md", "content": ""},
    "CreateCredential": {
        "auth": {"type": "static_bearer", "token": "t", "mcp_server_url": "https://x.example"}
    },
    "CreateActionUrl": {"action": {"type": "enroll_end_user"}},
    "AddResource": {"type": "file", "file_id": "file_01"},
    "UpdateResource": {"authorization_token": "t"},
    "UpdateWork": {"metadata": {}},
    "SendEvents": {"events": [{"type": "user.message", "content": [{"type": "text", "text": "x"}]}]},
}
# The ids of no route's own: a version may be called `latest`, a model anything.
OTHERS: Final = {"version", "model_id", "vendor"}
NAMED: Final = [
    route for route in ROUTES if ApiKey in route.callers and "{" in route.path and "tunnel" not in route.path
]


@pytest_asyncio.fixture
async def world(api: Api) -> AsyncIterator[World]:
    yield await populated(api)


async def status(world: World, route: Route, ids: dict[str, str]) -> tuple[int, str]:
    """The status, and the type of the error, of a request with these ids in its path."""
    path = re.sub(r"{(\w+)}", lambda found: ids.get(found[1], "none_01"), route.path)
    sent: dict[str, Any] = {}
    if route.path.endswith("/versions") and route.method == "POST":
        sent["files"] = [("files[]", ("s/SKILL.md", b"---\nname: s\ndescription: d\n---\n"))]
    elif route.takes is not None:
        sent["json"] = BODIES.get(getattr(route.takes, "__name__", ""), {})
    async with world.api.http.stream(route.method, path, headers=world.headers(route), **sent) as response:
        if response.status_code == 200:
            return 200, ""
        await response.aread()
        return response.status_code, response.json()["error"]["type"]


def parameters(route: Route) -> list[str]:
    return [name for name in re.findall(r"{(\w+)}", route.path) if name not in OTHERS]


async def test_an_unknown_id_anywhere_in_a_path_is_not_found(world: World) -> None:
    found: list[str] = []
    for route in NAMED:
        for name in parameters(route):
            ids = {**world.ids, name: new_id("agent") if name == "agent_id" else "none_01unknown"}
            answer = await status(world, route, ids)
            if answer != (404, "not_found_error"):
                found.append(f"{route.method} {route.path} with an unknown {name}: {answer}")
    assert found == [], "\n".join(found)


async def test_an_id_of_another_kind_is_not_found_and_nothing_happens_to_what_it_names(world: World) -> None:
    found: list[str] = []
    for route in NAMED:
        for name in parameters(route):
            other = world.ids["vault_id" if name != "vault_id" else "agent_id"]
            answer = await status(world, route, {**world.ids, name: other})
            if answer != (404, "not_found_error"):
                found.append(f"{route.method} {route.path} with {other} for {name}: {answer}")
    assert found == [], "\n".join(found)
    for kind in ("vault", "agent"):
        shown = (await world.api.get(f"/v1/{kind}s/{world.ids[f'{kind}_id']}")).json()
        assert shown["archived_at"] is None


async def test_what_has_a_parent_is_found_below_it_alone(world: World) -> None:
    """A credential of another vault, a memory of another store, a resource or thread of another session."""
    api = world.api
    strangers = {
        "vault_id": (await api.post("/v1/vaults", {"display_name": "other"})).json()["id"],
        "memory_store_id": (await api.post("/v1/memory_stores", {"name": "other"})).json()["id"],
        "session_id": (await api.session())["id"],
        "environment_id": (await api.environment(config={"type": "self_hosted"}))["id"],
    }
    found: list[str] = []
    nested = [route for route in NAMED if len(parameters(route)) > 1]
    assert len(nested) > 15
    for route in nested:
        parent = parameters(route)[0]
        answer = await status(world, route, {**world.ids, parent: strangers[parent]})
        if answer != (404, "not_found_error"):
            found.append(f"{route.method} {route.path} below another {parent}: {answer}")
    assert found == [], "\n".join(found)


async def test_what_can_be_no_id_is_not_found_either(api: Api) -> None:
    for id in ("", "%20", "agent_01%0A", "a" * 129, "agent_ö", "*", "'--", "{}", "%00", "%ff"):
        for family in ("agents", "environments", "vaults", "memory_stores", "deployments", "dreams"):
            response = await api.post(f"/v1/{family}/{id}/archive")
            assert response.status_code == 404, (family, id, response.status_code)
