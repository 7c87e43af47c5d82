"""What holds of every list of resources: page sizes, order, cursors, times (contract section 2.3)."""

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from .conftest import Api
from .kinds import KINDS, Ground, ground, ok

__all__ = ["ground"]
TIMED = [name for name, kind in KINDS.items() if kind.times]


async def page(ground: Ground, name: str, **query: Any) -> dict[str, Any]:
    return await ok(ground.api.get(KINDS[name].at(ground), params=query))


async def ids(ground: Ground, name: str, **query: Any) -> list[str]:
    return [one["id"] for one in (await page(ground, name, **query))["data"]]


async def several(ground: Ground, name: str, count: int, start: int = 0) -> list[str]:
    """The ids of new resources of a kind, oldest first."""
    return [(await KINDS[name].make(ground, number))["id"] for number in range(start, start + count)]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "credentials"])
async def test_a_page_holds_twenty_unless_another_number_is_asked_for(ground: Ground, name: str) -> None:
    before = len(await ids(ground, name))
    made = (await several(ground, name, 21))[::-1]
    first = await page(ground, name)
    assert [one["id"] for one in first["data"]] == made[:20]
    rest = await page(ground, name, page=first["next_page"])
    assert [one["id"] for one in rest["data"]][:1] == made[20:]
    assert (len(rest["data"]), rest["next_page"]) == (1 + before, None)
    assert await ids(ground, name, limit=0) == made[:20]
    assert await ids(ground, name, limit=1) == made[:1]
    whole = await page(ground, name, limit=100)
    assert (len(whole["data"]), whole["next_page"]) == (21 + before, None)


@pytest.mark.parametrize("name", KINDS)
async def test_what_comes_and_goes_between_pages_neither_shifts_nor_doubles_them(
    ground: Ground, name: str
) -> None:
    kind = KINDS[name]
    made = await several(ground, name, 6)
    first = await page(ground, name, limit=2)
    assert [one["id"] for one in first["data"]] == [made[5], made[4]]
    new = await several(ground, name, 2, start=6)
    await kind.remove(ground, made[4])  # the one at which the cursor stands
    await kind.remove(ground, made[2])
    second = await page(ground, name, limit=2, page=first["next_page"])
    assert [one["id"] for one in second["data"]] == [made[3], made[1]]
    assert (await ids(ground, name, limit=3))[:2] == new[::-1]


TABLES = {"credentials": "vault_credentials"}


@pytest.mark.parametrize("name", KINDS)
async def test_what_was_made_at_one_moment_is_paged_without_loss_too(ground: Ground, name: str) -> None:
    made = await several(ground, name, 5)
    table: Any = f"update {TABLES.get(name, name)} set created_at = '2026-01-01T00:00:00Z' where id = any(%s)"
    await ground.api.database.execute(table, (made,))
    listed: list[str] = []
    cursor = ""
    for _ in range(20):
        one = await page(ground, name, limit=1, page=cursor)
        listed += [item["id"] for item in one["data"]]
        cursor = one["next_page"]
        if cursor is None:
            break
    assert cursor is None
    assert listed[-5:] == sorted(made, reverse=True)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("name", KINDS)
async def test_a_list_that_is_read_while_others_write_shows_what_was_there_once_each(
    ground: Ground, name: str
) -> None:
    kind = KINDS[name]
    stays, goes = await several(ground, name, 5), await several(ground, name, 5, start=5)

    async def write() -> None:
        for number, id in enumerate(goes):
            await kind.make(ground, 10 + number)
            await kind.remove(ground, id)

    async def read() -> list[str]:
        listed: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            one = await page(ground, name, limit=1, page=cursor)
            listed += [item["id"] for item in one["data"]]
            cursor = one["next_page"]
        return listed

    *readings, _ = await asyncio.gather(read(), read(), read(), write())
    for listed in readings:
        assert isinstance(listed, list)
        assert len(listed) == len(set(listed))
        assert [id for id in listed if id in stays] == stays[::-1]


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if "archive" in kind.leave])
async def test_what_is_archived_is_listed_only_where_it_is_asked_for(ground: Ground, name: str) -> None:
    made = await several(ground, name, 3)
    await KINDS[name].remove(ground, made[1])
    for shown in (await ids(ground, name), await ids(ground, name, include_archived="false")):
        assert shown[:2] == [made[2], made[0]]
        assert made[1] not in shown
    first = await page(ground, name, include_archived="true", limit=1)
    rest = await page(ground, name, include_archived="true", page=first["next_page"])
    listed = [one["id"] for one in first["data"] + rest["data"]]
    assert listed[:3] == made[::-1]
    assert rest["data"][0]["archived_at"] is not None
    # Which of them are listed may change from page to page.
    assert (await ids(ground, name, page=first["next_page"]))[:1] == [made[0]]


async def test_no_cursor_of_one_list_is_good_for_another(ground: Ground) -> None:
    cursors: dict[str, str] = {}
    for name in KINDS:
        await several(ground, name, 2)
        cursors[name] = (await page(ground, name, limit=1))["next_page"]
    for name in KINDS:
        for other, cursor in cursors.items():
            response = await ground.api.get(KINDS[name].at(ground), params={"page": cursor})
            assert response.status_code == (200 if name == other else 400), (name, other)
            if name != other:
                assert response.json()["error"]["message"] == "invalid page cursor"


@pytest.mark.parametrize("name", TIMED)
async def test_bounds_on_the_time_are_exact_to_the_microsecond_in_any_zone(ground: Ground, name: str) -> None:
    kind = KINDS[name]
    made = [await kind.make(ground, number) for number in range(3)]
    late, early = kind.times
    moment = datetime.fromisoformat(made[1]["created_at"])
    inclusive = [made[1]["id"]] if late == "gte" else []
    zones = (moment, moment.astimezone(timezone(timedelta(hours=5, minutes=45))))
    for text in (made[1]["created_at"], *(zone.isoformat() for zone in zones)):
        assert await ids(ground, name, **{f"created_at[{late}]": text}) == [made[2]["id"], *inclusive]
        older = await ids(ground, name, **{f"created_at[{early}]": text})
        assert older[: 1 + len(inclusive)] == [*inclusive, made[0]["id"]]
        both = {f"created_at[{late}]": text, f"created_at[{early}]": text}
        assert await ids(ground, name, **both) == inclusive
    just = {f"created_at[{late}]": (moment - timedelta(microseconds=1)).isoformat()}
    assert await ids(ground, name, **just) == [made[2]["id"], made[1]["id"]]
    whole_seconds = {f"created_at[{late}]": "2020-01-01T00:00:00Z"}
    assert (await ids(ground, name, **whole_seconds))[:3] == [one["id"] for one in made[::-1]]


@pytest.mark.parametrize("name", TIMED)
async def test_a_time_filter_that_leaves_the_cursor_out_is_refused(ground: Ground, name: str) -> None:
    kind = KINDS[name]
    made = [await kind.make(ground, number) for number in range(3)]
    cursor = (await page(ground, name, limit=2))["next_page"]
    late, early = kind.times
    for bound, text in ((late, made[2]["created_at"]), (early, made[0]["created_at"])):
        query = {"page": cursor, f"created_at[{bound}]": text}
        response = await ground.api.get(kind.at(ground), params=query)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("page: the created_at filter excludes")
    assert (await ids(ground, name, page=cursor, limit=5, **{f"created_at[{early}]": made[2]["created_at"]}))[
        0
    ] == made[0]["id"]


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00:00Z", "2026-10-10T25:00:00Z", "1760000000"])
async def test_what_is_no_time_is_refused_by_the_parameters_name(api: Api, name: str, text: str) -> None:
    bound = KINDS[name].times[0]
    response = await api.get(KINDS[name].path, params={f"created_at[{bound}]": text})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"created_at[{bound}]: ")


async def test_a_date_alone_is_midnight_and_a_time_without_an_offset_is_utc(ground: Ground) -> None:
    (made,) = await several(ground, "agents", 1)
    table: Any = "update agents set created_at = '2026-01-02T03:04:05.678901Z' where id = %s"
    await ground.api.database.execute(table, (made,))
    for late, listed in (
        ("2026-01-02", True),
        ("2026-01-03", False),
        ("2026-01-02T03:04:05.678901", True),
        ("2026-01-02T03:04:05.678902", False),
        ("2026-01-02T04:04:05.678901+01:00", True),
        ("2026-01-02T03:04:05.678901Z", True),
        ("2026-01-02t03:04:05.678901z", True),
        ("2026-01-02T03:04:06Z", False),
    ):
        shown = await ids(
            ground, "agents", **{"created_at[gte]": late, "created_at[lte]": "2026-01-04T00:00:00Z"}
        )
        assert shown == ([made] if listed else []), late


async def test_parameters_that_a_list_does_not_know_are_ignored(ground: Ground) -> None:
    for name in KINDS:
        (made,) = await several(ground, name, 1)
        assert (await ids(ground, name, beta="true", nonsense="1"))[0] == made, name
