"""User profiles, skills and webhooks at their bounds, updates that change nothing (contract 17, 22, 23)."""

from typing import Any

import pytest

from .conftest import Api
from .kinds import ok

PROFILES = "/v1/user_profiles"
HOOKS = "/corral/v1/webhooks"
NEWEST = {"anthropic-beta": "user-profiles-2026-09-04"}
URL = "https://hooks.example.com/"


def part(name: str, description: str = "d", front: str = "") -> tuple[str, tuple[str, bytes]]:
    text = f"---\nname: {name}\ndescription: {description}\n{front}---\n"
    return ("files[]", (f"{name}/SKILL.md", text.encode()))


async def uploaded(api: Api, *parts: Any, path: str = "/v1/skills", **data: str) -> Any:
    return await api.http.post(path, files=list(parts), data=data)


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ({"name": "n" * 255}, {"name": "n" * 256}, "name: must have at most 255 characters"),
        ({"name": ""}, {"name": 1}, "name: Input should be a valid string"),
        (
            {"access_type": "passthrough"},
            {"access_type": "owner"},
            'access_type: "owner" is not a valid value',
        ),
        (
            {"external_user_details": {"reference_id": "r" * 255}},
            {"external_user_details": {"reference_id": "r" * 256}},
            "external_user_details.reference_id: must have at most 255 characters",
        ),
        (
            {"external_user_details": {"email_hash": "e"}},
            {"external_user_details": {"email_hash": ""}},
            "external_user_details.email_hash: must have at least 1 characters",
        ),
        (
            {"external_user_details": {"country": "NO"}},
            {"external_user_details": {"country": "NOR"}},
            "external_user_details.country: must match",
        ),
        ({}, {"trust_grants": {}}, "trust_grants: Extra inputs are not permitted"),
    ],
)
async def test_the_bounds_of_a_user_profile(
    api: Api, good: dict[str, Any], bad: dict[str, Any], said: str
) -> None:
    made = await ok(api.post(PROFILES, {}, headers=NEWEST))
    path = f"{PROFILES}/{made['id']}"
    for target in (PROFILES, path):
        response = await api.post(target, bad, headers=NEWEST)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
    assert await ok(api.get(path, headers=NEWEST)) == made
    await ok(api.post(PROFILES, good, headers=NEWEST))
    await ok(api.post(path, good, headers=NEWEST))


async def test_a_profiles_update_that_changes_nothing_leaves_updated_at(api: Api) -> None:
    details = {"country": "SE", "reference_id": "7"}
    made = await ok(
        api.post(
            PROFILES, {"name": "A", "metadata": {"a": "1"}, "external_user_details": details}, headers=NEWEST
        )
    )
    no_changes: tuple[dict[str, Any], ...] = (
        {},
        {"name": "A"},
        {"name": None, "access_type": None, "metadata": None},
        {"external_user_details": {}},
        {"external_user_details": {"country": "SE"}},
        {"metadata": {"a": "1", "unknown": ""}},
    )
    for fields in no_changes:
        assert await ok(api.post(f"{PROFILES}/{made['id']}", fields, headers=NEWEST)) == made


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_profiles_made_and_deleted_between_pages_do_not_shift_them_in_either_order(
    api: Api, order: str
) -> None:
    ids = [(await ok(api.post(PROFILES, {"name": f"n{n}"})))["id"] for n in range(5)]
    expected = ids if order == "asc" else ids[::-1]
    for order_by in ("created_at", "name"):
        query: dict[str, Any] = {"order": order, "order_by": order_by, "limit": 2}
        first = await ok(api.get(PROFILES, params=query))
        gone = (await ok(api.post(PROFILES, {"name": "n1a"})))["id"]
        await ok(api.http.delete(f"{PROFILES}/{gone}"))
        rest = await ok(api.get(PROFILES, params={**query, "limit": 100, "page": first["next_page"]}))
        assert [one["id"] for one in first["data"] + rest["data"]] == expected


async def test_the_bounds_of_a_skill(api: Api) -> None:
    longest = "s" * 64
    made = await ok(uploaded(api, part(longest, "d" * 1024), display_name="n" * 255))
    assert made["display_name"] == "n" * 255
    version = await ok(api.get(f"/v1/skills/{made['id']}/versions/latest"))
    assert (version["name"], version["description"]) == (longest, "d" * 1024)
    for sent, data, said in (
        (part("s" * 65), {}, "at most 64"),
        (part("s", "d" * 1025), {}, "description: must have at most 1024"),
        (part("s", '""'), {}, "description: "),
        (part("Capital"), {}, "name: must be"),
        (part("under_score"), {}, "name: must be"),
        (part("s"), {"display_name": "n" * 256}, "display_name: must have 1 to 255 characters"),
        (part("s"), {"display_name": " "}, "display_name: must have 1 to 255 characters"),
    ):
        response = await uploaded(api, sent, **data)
        assert response.status_code == 400
        assert said in response.json()["error"]["message"], response.text
    assert [one["id"] for one in (await ok(api.get("/v1/skills")))["data"]] == [made["id"]]


async def test_a_skill_keeps_its_label_when_it_gets_a_version_and_moves_its_time(api: Api) -> None:
    made = await ok(uploaded(api, part("s"), display_name="Label"))
    path = f"/v1/skills/{made['id']}"
    version = await ok(uploaded(api, part("s", "other"), path=f"{path}/versions"))
    after = await ok(api.get(path))
    assert (after["display_name"], after["latest_version_id"]) == ("Label", version["id"])
    assert after["created_at"] == made["created_at"]
    assert after["updated_at"] > made["updated_at"]
    first = await ok(api.get(f"{path}/versions/{made['latest_version_id']}"))
    assert first["description"] == "d", "a version is never changed"


async def test_versions_of_a_skill_page_newest_first_while_more_are_made(api: Api) -> None:
    made, other = await ok(uploaded(api, part("s"))), await ok(uploaded(api, part("t")))
    path = f"/v1/skills/{made['id']}/versions"
    ids = [
        made["latest_version_id"],
        *[(await ok(uploaded(api, part("s"), path=path)))["id"] for _ in range(3)],
    ]
    first = await ok(api.get(f"{path}?limit=2"))
    await ok(uploaded(api, part("s"), path=path))
    await ok(api.http.delete(f"{path}/{ids[2]}"))
    rest = await ok(api.get(path, params={"page": first["next_page"]}))
    assert [one["id"] for one in first["data"] + rest["data"]] == ids[::-1]
    stolen = await api.get(f"/v1/skills/{other['id']}/versions", params={"page": first["next_page"]})
    assert (stolen.status_code, stolen.json()["error"]["message"]) == (400, "invalid page cursor")
    for version in ("skver_unknown", "1", "20261001"):
        assert (await api.get(f"{path}/{version}")).status_code == 404


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (
            {"description": "d" * 255},
            {"description": "d" * 256},
            "description: must have at most 255 characters",
        ),
        (
            {"url": URL + "u" * (2047 - len(URL))},
            {"url": URL + "u" * (2048 - len(URL))},
            "url: must have at most",
        ),
        (
            {"events": ["agent.created"] * 100},
            {"events": ["agent.created"] * 101},
            "events: must have at most 100",
        ),
        ({"events": ["agent.created"]}, {"events": []}, "events: must have at least 1 items"),
        ({"events": ["all"]}, {"events": ["agent"]}, "events[0]: there is no event 'agent'"),
        ({"description": None}, {"description": 1}, "description: Input should be a valid string"),
        ({}, {"url": None}, "url: Input should be a valid string"),
        ({}, {"status": "disabled"}, "status: Extra inputs are not permitted"),
    ],
)
async def test_the_bounds_of_an_endpoint(
    api: Api, good: dict[str, Any], bad: dict[str, Any], said: str
) -> None:
    plain = {"url": URL, "events": ["agent.created"]}
    made = await ok(api.post(HOOKS, {**plain, **good}))
    path = f"{HOOKS}/{made['id']}"
    before = await ok(api.get(path))
    for request in (api.post(HOOKS, {**plain, **bad}), api.post(path, bad)):
        response = await request
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
    assert await ok(api.get(path)) == before
    assert await ok(api.post(path, good)) == before, "it is so already"


async def test_the_overlap_of_two_secrets_has_its_bounds(api: Api) -> None:
    made = await ok(api.post(HOOKS, {"url": URL, "events": ["all"]}))
    path = f"{HOOKS}/{made['id']}/rotate_secret"
    for seconds in (-1, 2_592_001, "1", None):
        response = await api.post(path, {"overlap_seconds": seconds})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("overlap_seconds: ")
    for seconds in (2_592_000, 0):
        assert (await ok(api.post(path, {"overlap_seconds": seconds})))["secret"].startswith("whsec_")
