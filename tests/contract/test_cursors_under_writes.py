"""Cursors while the list changes: nothing is missed, nothing shown twice (contract sections 2.3 and 10.9)."""

from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.test_events_list import page as events_page
from tests.contract.test_events_send import INTERRUPT
from tests.contract.test_sessions_create import CUSTOM, message
from tests.contract.test_sessions_list import page, several, titles
from tests.corral_server import Corral, SessionUnderTest


async def rename(api: Api, session: dict[str, Any], title: str) -> None:
    assert (await api.post(f"/v1/sessions/{session['id']}", {"title": title})).status_code == 200


async def delete(api: Api, session: dict[str, Any]) -> None:
    assert (await api.http.delete(f"/v1/sessions/{session['id']}")).status_code == 200


@pytest.mark.parametrize(("order", "second"), [("desc", ["2", "1"]), ("asc", ["2", "3"])])
async def test_the_session_at_which_a_cursor_stands_may_be_deleted(
    api: Api, order: str, second: list[str]
) -> None:
    made = await several(api, 5)
    first = await page(api, order=order, limit=2)
    await delete(api, next(one for one in made if one["title"] == titles(first)[-1]))
    following = await page(api, order=order, limit=2, page=first["next_page"])
    assert titles(following) == second
    back = await page(api, order=order, limit=2, page=following["prev_page"])
    assert titles(back) == titles(first)[:1]
    assert back["prev_page"] is None
    assert titles(await page(api, order=order, limit=2, page=back["next_page"])) == second


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_backward_page_is_filled_from_its_near_end(api: Api, order: str) -> None:
    made = await several(api, 6)
    pages = [await page(api, order=order, limit=2)]
    while pages[-1]["next_page"]:
        pages.append(await page(api, order=order, limit=2, page=pages[-1]["next_page"]))
    await delete(api, next(one for one in made if one["title"] == titles(pages[1])[0]))
    back = await page(api, order=order, limit=2, page=pages[2]["prev_page"])
    assert titles(back) == [titles(pages[0])[1], titles(pages[1])[1]]
    begin = await page(api, order=order, limit=2, page=back["prev_page"])
    assert titles(begin) == titles(pages[0])[:1]


async def test_a_session_made_meanwhile_is_found_before_the_first_page_when_newest_come_first(
    api: Api,
) -> None:
    made = await several(api, 3)
    first = await page(api, limit=1)
    second = await page(api, limit=1, page=first["next_page"])
    await api.session(agent=made[0]["agent"]["id"], environment_id=made[0]["environment_id"], title="new")
    back = await page(api, limit=2, page=second["prev_page"])
    assert titles(back) == ["new", "2"]


async def test_a_session_made_meanwhile_is_found_behind_the_last_page_when_oldest_come_first(
    api: Api,
) -> None:
    made = await several(api, 3)
    first = await page(api, order="asc", limit=2)
    await api.session(agent=made[0]["agent"]["id"], environment_id=made[0]["environment_id"], title="new")
    assert titles(await page(api, order="asc", page=first["next_page"])) == ["2", "new"]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_filters_and_page_size_may_change_from_page_to_page(api: Api, order: str) -> None:
    made = await several(api, 6)
    for title in ("1", "3"):
        await api.post(f"/v1/sessions/{made[int(title)]['id']}/archive")
    first = await page(api, order=order, limit=1, include_archived="true")
    narrowed = await page(api, order=order, limit=50, page=first["next_page"])
    expected = [str(n) for n in (0, 2, 4, 5)]
    expected = expected if order == "asc" else expected[::-1]
    assert titles(narrowed) == expected[1:]
    query = {"statuses[]": "terminated", "include_archived": "true", "page": first["next_page"]}
    ended = await page(api, order=order, agent_id=made[0]["agent"]["id"], **query)
    assert titles(ended) == (["1", "3"] if order == "asc" else ["3", "1"])


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_filters_of_a_list_of_sessions_hold_all_at_once(api: Api, order: str) -> None:
    other = await several(api, 1)
    made = await several(api, 4)
    [busy] = await several(api, 1, agent=made[0]["agent"]["id"], initial_events=[message()])
    await api.post(f"/v1/sessions/{made[3]['id']}/archive")
    query: dict[str, Any] = {
        "agent_id": made[0]["agent"]["id"],
        "agent_version": 1,
        "statuses[]": ["idle", "terminated"],
        "created_at[gte]": made[1]["created_at"],
        "created_at[lt]": busy["created_at"],
        "order": order,
    }
    seen: list[str] = []
    listed = await page(api, limit=1, **query)
    while True:
        seen += titles(listed)
        if listed["next_page"] is None:
            break
        listed = await page(api, limit=1, page=listed["next_page"], **query)
    assert seen == (["1", "2"] if order == "asc" else ["2", "1"])
    with_archived = await page(api, include_archived="true", **query)
    assert sorted(titles(with_archived)) == ["1", "2", "3"]
    assert other[0]["id"] not in {one["id"] for one in with_archived["data"]}


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_what_enters_the_log_while_a_list_is_read_doubles_nothing_and_hides_nothing(
    api: Api, order: str
) -> None:
    session = await api.session()
    for n in range(6):
        await rename(api, session, f"t{n}")
    seen: list[str] = []
    listed = await events_page(api, session, order=order, limit=2)
    coming = ["t6", "t7", "t8"]
    while True:
        seen += [event["title"] for event in listed["data"]]
        if coming:
            await rename(api, session, coming.pop(0))
        if listed["next_page"] is None:
            break
        listed = await events_page(api, session, order=order, limit=2, page=listed["next_page"])
    expected = [f"t{n}" for n in (range(9) if order == "asc" else range(5, -1, -1))]
    assert seen == expected


async def blocked(corral: Corral) -> tuple[SessionUnderTest, str]:
    """A session with three messages that wait behind a custom tool's call, and the call's id."""
    session = await corral.session(CUSTOM)
    await session.says("go", script=[{"tools": [{"name": "lookup", "input": {"key": "k"}}]}, {"text": "ok"}])
    idle = await session.idle()
    for word in ("one", "two", "three"):
        await session.says(word)
    return session, idle.stop_reason.event_ids[0]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2])
async def test_what_is_taken_up_between_two_pages_is_never_missed(
    corral: Corral, order: Any, limit: int
) -> None:
    session, call = await blocked(corral)
    before = [event.id for event in await session.events()]
    events = corral.client.beta.sessions.events
    listed = await events.list(session.id, order=order, limit=limit)
    seen = [event.id for event in listed.data]
    if order == "asc":
        while len(seen) < len(before) - 2:
            listed = await listed.get_next_page()
            seen += [event.id for event in listed.data]
    waiting = [event for event in listed.data if event.processed_at is None]
    assert waiting, "the page ends among those that wait"
    await session.sends({"type": "user.custom_tool_result", "custom_tool_use_id": call})
    await session.until("agent.message")
    last = await session.idle(after=before[-4])
    async for event in await listed.get_next_page() if listed.has_next_page() else listed:
        seen.append(event.id)
    assert set(before) <= set(seen)
    # What had been shown as waiting may come again with its time, and nothing else twice.
    doubled = {one for one in seen if seen.count(one) > 1}
    assert doubled <= {event.id for event in waiting}
    assert last.id in seen


async def test_a_cursor_among_what_waits_goes_on_among_what_waits(api: Api) -> None:
    session = await api.session()
    await rename(api, session, "first")
    for n in range(4):
        await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message(str(n))]})
    listed = await events_page(api, session, limit=2)
    await rename(api, session, "meanwhile")
    await api.post(f"/v1/sessions/{session['id']}/events", {"events": [INTERRUPT]})
    rest = await events_page(api, session, limit=2, page=listed["next_page"])
    assert [event.get("title") or event["content"][0]["text"] for event in rest["data"]] == ["meanwhile", "1"]
    rest = await events_page(api, session, limit=10, page=rest["next_page"])
    assert [event["type"] for event in rest["data"]] == ["user.message", "user.message", "user.interrupt"]
    assert rest["next_page"] is None
