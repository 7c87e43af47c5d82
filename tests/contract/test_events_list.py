"""Listing events: filters, order, cursors, what waits comes last (contract sections 2.3 and 10.9)."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.test_sessions_create import message
from tests.corral_server import Corral, SessionUnderTest


async def three_turns(corral: Corral) -> SessionUnderTest:
    session = await corral.session()
    after = None
    for text in ("one", "two", "three"):
        await session.says(text, script=[{"text": text}])
        after = (await session.idle(after=after)).id
    return session


async def page(api: Api, session: dict[str, Any], **query: Any) -> dict[str, Any]:
    response = await api.get(f"/v1/sessions/{session['id']}/events", params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def test_events_are_found_by_type_time_and_order(corral: Corral) -> None:
    session = await three_turns(corral)
    every = await session.events()
    ids = [event.id for event in every]
    assert [event.id for event in await session.events(order="desc")] == ids[::-1]
    spoken = await session.events(types=["agent.message", "user.message"])
    assert [event.type for event in spoken] == ["user.message", "agent.message"] * 3
    assert await session.events(types=["agent.mcp_tool_use"]) == []
    middle = next(event for event in every if event.type == "session.status_idle")
    at = middle.processed_at
    assert [e.id for e in await session.events(created_at_gt=at)] == [
        e.id for e in every if e.processed_at > at
    ]
    assert [e.id for e in await session.events(created_at_lte=at)] == [
        e.id for e in every if e.processed_at <= at
    ]
    within = await session.events(created_at_gte=at, created_at_lt=every[-1].processed_at, order="desc")
    expected = [e.id for e in every if at <= e.processed_at < every[-1].processed_at]
    assert [e.id for e in within] == expected[::-1]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_filters_of_a_list_of_events_hold_all_at_once_on_pages_of_any_size(
    corral: Corral, order: Any
) -> None:
    session = await three_turns(corral)
    every = await session.events(order=order)
    moments = sorted(event.processed_at for event in every)
    early, late = moments[len(moments) // 4], moments[-len(moments) // 4]
    kinds: list[Any] = ["user.message", "session.status_idle", "span.model_request_end"]
    bounds: list[tuple[dict[str, Any], Callable[[datetime], bool]]] = [
        ({}, lambda at: True),
        ({"created_at_gt": early}, lambda at: at > early),
        ({"created_at_gte": early, "created_at_lte": late}, lambda at: early <= at <= late),
        ({"created_at_gt": early, "created_at_lt": late}, lambda at: early < at < late),
        ({"created_at_gt": late, "created_at_lt": early}, lambda at: False),
    ]
    for times, holds in bounds:
        for types in (None, kinds):
            expected = [e.id for e in every if holds(e.processed_at) and (not types or e.type in types)]
            for limit in (1, 3, 1000):
                query = times if types is None else {**times, "types": types}
                found = await session.events(order=order, limit=limit, **query)
                assert [event.id for event in found] == expected, (times, types, limit)


async def test_times_never_go_back_and_ids_are_never_used_twice(corral: Corral) -> None:
    every = await (await three_turns(corral)).events()
    moments = [event.processed_at for event in every]
    assert moments == sorted(moments)
    assert len({event.id for event in every}) == len(every)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_any_size_hold_every_event_once(corral: Corral, order: Any) -> None:
    session = await three_turns(corral)
    whole = [event.id for event in await session.events(order=order)]
    for limit in (1, 4, len(whole), 1000):
        assert [event.id for event in await session.events(order=order, limit=limit)] == whole


async def test_what_waits_comes_last_without_a_time_across_pages(api: Api) -> None:
    session = await api.session()
    await api.post(f"/v1/sessions/{session['id']}", {"title": "logged"})
    for n in range(3):
        await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message(str(n))]})
    await api.post(f"/v1/sessions/{session['id']}", {"title": "logged later"})
    whole = (await page(api, session))["data"]
    assert [event["type"] for event in whole] == ["session.updated"] * 2 + ["user.message"] * 3
    assert [event["processed_at"] for event in whole[2:]] == [None] * 3
    assert (await page(api, session, order="desc"))["data"] == whole[::-1]
    for order, expected in (("asc", whole), ("desc", whole[::-1])):
        seen: list[Any] = []
        listed = await page(api, session, order=order, limit=1)
        while True:
            seen += listed["data"]
            if listed["next_page"] is None:
                break
            listed = await page(api, session, order=order, limit=1, page=listed["next_page"])
        assert seen == expected
    timed = {"created_at[gt]": "2020-01-01T00:00:00Z"}
    assert (await page(api, session, **timed))["data"] == whole[:2]
    assert (await page(api, session, **{"types[]": "user.message"}))["data"] == whole[2:]


async def test_a_list_that_grows_while_it_is_read_loses_and_doubles_nothing(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}"

    async def write() -> None:
        for n in range(40):
            await api.post(path, {"title": f"t{n}"})
            await api.post(f"{path}/events", {"events": [message(str(n))]})

    writing = asyncio.create_task(write())
    seen: list[Any] = []
    cursor: dict[str, str] = {}
    while not writing.done() or cursor:
        listed = await page(api, session, **{"limit": 3, "types[]": "session.updated"}, **cursor)
        seen = [*seen, *listed["data"]] if cursor else listed["data"]
        cursor = {"page": listed["next_page"]} if listed["next_page"] else {}
    await writing
    final = (await page(api, session, **{"types[]": "session.updated"}))["data"]
    assert [event["title"] for event in final] == [f"t{n}" for n in range(40)]
    ids = [event["id"] for event in seen]
    assert ids == [event["id"] for event in final][: len(ids)]
    waiting = (await page(api, session, **{"types[]": "user.message"}))["data"]
    assert [event["content"][0]["text"] for event in waiting] == [str(n) for n in range(40)]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"limit": "1001"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "newest"}, "order"),
        ({"types[]": "session.deleted"}, "types"),
        ({"types[]": "event_start"}, "types"),
        ({"types[]": ["user.message", "nothing"]}, "types"),
        ({"created_at[gt]": "x"}, "created_at[gt]"),
        ({"page": "AAAA"}, "invalid page cursor"),
    ],
)
async def test_a_bad_parameter_is_a_400_that_names_it(api: Api, query: dict[str, Any], text: str) -> None:
    session = await api.session()
    response = await api.get(f"/v1/sessions/{session['id']}/events", params=query)
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


async def test_a_cursor_serves_its_own_session_and_order_alone(api: Api) -> None:
    session = await api.session()
    await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message("a"), message("b")]})
    cursor = (await page(api, session, limit=1))["next_page"]
    changed = await api.get(f"/v1/sessions/{session['id']}/events", params={"page": cursor, "order": "desc"})
    assert changed.json()["error"]["message"] == "page token order does not match request"
    other = await api.session()
    foreign = await api.get(f"/v1/sessions/{other['id']}/events", params={"page": cursor})
    assert (foreign.status_code, foreign.json()["error"]["message"]) == (400, "invalid page cursor")


async def test_a_time_filter_that_excludes_the_cursor_is_refused(api: Api) -> None:
    session = await api.session()
    for title in ("a", "b"):
        await api.post(f"/v1/sessions/{session['id']}", {"title": title})
    listed = await page(api, session, limit=1)
    query = {"page": listed["next_page"], "created_at[gt]": listed["data"][0]["processed_at"]}
    response = await api.get(f"/v1/sessions/{session['id']}/events", params=query)
    assert (response.status_code, "created_at" in response.json()["error"]["message"]) == (400, True)


async def test_the_largest_page_holds_a_thousand(api: Api) -> None:
    session = await api.session()
    events = {"events": [message(str(n)) for n in range(600)]}
    for _ in range(2):
        await api.post(f"/v1/sessions/{session['id']}/events", events)
    for query in ({}, {"limit": 1000}):
        listed = await page(api, session, **query)
        assert len(listed["data"]) == 1000
        rest = await page(api, session, page=listed["next_page"])
        assert (len(rest["data"]), rest["next_page"]) == (200, None)
