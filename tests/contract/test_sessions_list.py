"""Listing sessions: both ways, in both orders, filtered (contract sections 2.3 and 8.4)."""

from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.test_sessions_create import message


async def several(api: Api, count: int, **fields: Any) -> list[dict[str, Any]]:
    """Sessions of one agent on one environment, oldest first."""
    fields = {"agent": (await api.agent())["id"], "environment_id": (await api.environment())["id"], **fields}
    return [await api.session(**fields, title=str(n)) for n in range(count)]


async def page(api: Api, **query: Any) -> dict[str, Any]:
    response = await api.get("/v1/sessions", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def titles(listed: dict[str, Any]) -> list[str]:
    return [session["title"] for session in listed["data"]]


async def test_an_empty_list_has_every_key(api: Api) -> None:
    assert await page(api) == {"data": [], "next_page": None, "prev_page": None}


async def test_newest_come_first_and_the_sdk_pages_through_all(api: Api) -> None:
    made = await several(api, 5)
    listed = [session.id async for session in api.sdk.beta.sessions.list(limit=2)]
    assert listed == [session["id"] for session in reversed(made)]


@pytest.mark.parametrize(("order", "first"), [("asc", ["0", "1"]), ("desc", ["4", "3"])])
async def test_pages_lead_back_to_where_they_came_from_in_the_order_asked_for(
    api: Api, order: str, first: list[str]
) -> None:
    await several(api, 5)
    pages = [await page(api, order=order, limit=2)]
    while pages[-1]["next_page"]:
        pages.append(await page(api, order=order, limit=2, page=pages[-1]["next_page"]))
    assert [len(listed["data"]) for listed in pages] == [2, 2, 1]
    assert titles(pages[0]) == first
    assert pages[0]["prev_page"] is None
    middle = await page(api, order=order, limit=2, page=pages[2]["prev_page"])
    assert titles(middle) == titles(pages[1])
    begin = await page(api, order=order, limit=2, page=middle["prev_page"])
    assert titles(begin) == titles(pages[0])
    assert begin["prev_page"] is None
    onward = await page(api, order=order, limit=2, page=begin["next_page"])
    assert titles(onward) == titles(pages[1])


async def test_a_session_made_meanwhile_does_not_shift_a_page(api: Api) -> None:
    made = await several(api, 3)
    first = await page(api, limit=2)
    await api.session(agent=made[0]["agent"]["id"], environment_id=made[0]["environment_id"], title="new")
    assert titles(await page(api, limit=2, page=first["next_page"])) == ["0"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"page": "nonsense"}, "invalid page cursor"),
        ({"limit": "0.5"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"order": "up"}, "order"),
        ({"statuses[]": "busy"}, "statuses"),
        ({"created_at[gte]": "yesterday"}, "created_at[gte]"),
        ({"include_archived": "maybe"}, "include_archived"),
        ({"agent_version": "one", "agent_id": "a"}, "agent_version"),
    ],
)
async def test_a_bad_parameter_is_a_400_that_names_it(api: Api, query: dict[str, str], text: str) -> None:
    response = await api.get("/v1/sessions", params=query)
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


async def test_a_cursor_is_bound_to_its_order_and_list(api: Api) -> None:
    made = await several(api, 2)
    cursor = (await page(api, limit=1))["next_page"]
    response = await api.get("/v1/sessions", params={"page": cursor, "order": "asc"})
    assert response.json()["error"]["message"] == "page token order does not match request"
    foreign = await api.get(f"/v1/sessions/{made[0]['id']}/events", params={"page": cursor})
    assert (foreign.status_code, foreign.json()["error"]["message"]) == (400, "invalid page cursor")
    other_limit = await page(api, limit=5, page=cursor)
    assert titles(other_limit) == ["0"]


async def test_a_time_filter_that_excludes_the_cursor_is_refused(api: Api) -> None:
    made = await several(api, 3)
    cursor = (await page(api, limit=1))["next_page"]
    query = {"page": cursor, "created_at[lt]": made[1]["created_at"]}
    assert (await api.get("/v1/sessions", params=query)).status_code == 400


async def test_sessions_are_found_by_time(api: Api) -> None:
    made = await several(api, 3)
    moments = [session.created_at async for session in api.sdk.beta.sessions.list(order="asc")]
    sessions = api.sdk.beta.sessions
    assert [s.title async for s in sessions.list(created_at_gt=moments[0], order="asc")] != []
    late: list[Any] = [s async for s in sessions.list(created_at_gte=moments[1], order="asc")]
    assert [s.id for s in late] == [session["id"] for session in made[1:]]
    early: list[Any] = [s async for s in sessions.list(created_at_lt=moments[1], order="asc")]
    assert [s.id for s in early] == [made[0]["id"]]
    assert [s async for s in sessions.list(created_at_gt=moments[2])] == []
    assert len([s async for s in sessions.list(created_at_lte=moments[2])]) == 3


async def test_sessions_are_found_by_agent_version_and_status(api: Api) -> None:
    agent = await api.agent()
    [first] = await several(api, 1, agent=agent["id"])
    await api.post(f"/v1/agents/{agent['id']}", {"version": 1, "name": "renamed"})
    [second] = await several(api, 1, agent=agent["id"])
    [busy] = await several(api, 1, initial_events=[message()])

    async def found(**query: Any) -> set[str]:
        return {session["id"] for session in (await page(api, **query))["data"]}

    assert await found(agent_id=agent["id"]) == {first["id"], second["id"]}
    assert await found(agent_id=agent["id"], agent_version=2) == {second["id"]}
    # The version means nothing without its agent.
    assert await found(agent_version=2) == {first["id"], second["id"], busy["id"]}
    assert await found(**{"statuses[]": "running"}) == {busy["id"]}
    assert await found(**{"statuses[]": ["running", "idle"]}) == {first["id"], second["id"], busy["id"]}
    assert await found(statuses="idle") == {first["id"], second["id"]}
    assert await found(deployment_id="depl_1") == set()
    assert await found(memory_store_id="memstore_1") == set()


async def test_archived_sessions_are_left_out_unless_asked_for(api: Api) -> None:
    made = await several(api, 2)
    await api.post(f"/v1/sessions/{made[0]['id']}/archive")
    assert titles(await page(api)) == ["1"]
    assert titles(await page(api, include_archived="true")) == ["1", "0"]
    assert titles(await page(api, **{"statuses[]": "terminated", "include_archived": "true"})) == ["0"]
