"""User profiles through the official SDK, and in the forms of older and newer clients (contract 22)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import httpx
import pytest

from .conftest import Api
from .refusals import refused, undocumented

FORMS = ("user-profiles-2026-03-24", "user-profiles-2026-08-18", "user-profiles-2026-09-04")
OLDEST, LEGACY, NEWEST = ({"anthropic-beta": form} for form in FORMS)
PROFILES = "/v1/user_profiles"


async def made(api: Api, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    response = await api.post(PROFILES, fields, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


async def not_made(api: Api, path: str, headers: dict[str, str], **fields: Any) -> str:
    response = await api.post(path, fields, headers=headers)
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


async def test_a_profile_needs_nothing_and_shows_what_it_was_given(api: Api) -> None:
    bare = await api.sdk.beta.user_profiles.create()
    assert bare.id.startswith("uprof_")
    assert (bare.type, bare.name, bare.access_type, bare.external_id) == (
        "user_profile",
        None,
        "application",
        None,
    )
    assert (bare.metadata, bare.trust_grants, bare.external_user_onboarded_at) == ({}, {}, None)
    since = datetime(2024, 11, 2, 8, 15, tzinfo=UTC)
    full = await api.sdk.beta.user_profiles.create(
        name="Acme",
        access_type="passthrough",
        external_id="customer-7",
        external_user_onboarded_at=since,
        metadata={"plan": "gold"},
    )
    assert (full.name, full.access_type, full.external_id) == ("Acme", "passthrough", "customer-7")
    assert (full.external_user_onboarded_at, full.metadata) == (since, {"plan": "gold"})
    assert await api.sdk.beta.user_profiles.retrieve(full.id) == full
    assert undocumented(full) == []


async def test_neither_name_nor_reference_is_unique(api: Api) -> None:
    first = await api.sdk.beta.user_profiles.create(name="Acme", external_id="7")
    second = await api.sdk.beta.user_profiles.create(name="Acme", external_id="7")
    assert first.id != second.id


async def test_each_client_gets_the_form_that_its_header_names(api: Api) -> None:
    details = {"reference_id": "7", "country": "SE", "onboarded_at": "2024-11-02T09:15:00+01:00"}
    profile = await made(api, NEWEST, external_user_details=details)
    path = f"{PROFILES}/{profile['id']}"
    moment = "2024-11-02T08:15:00.000000Z"
    assert profile["external_user_details"] == {
        "account_status": None,
        "country": "SE",
        "email_hash": None,
        "entity_type": None,
        "name_hash": None,
        "onboarded_at": moment,
        "reference_id": "7",
    }
    assert "external_id" not in profile
    assert "external_user_onboarded_at" not in profile
    assert (await api.get(path)).json() == profile
    oldest = (await api.get(path, headers=OLDEST)).json()
    assert oldest["external_id"] == "7"
    assert not {"access_type", "external_user_onboarded_at", "external_user_details"} & oldest.keys()
    legacy = (await api.get(path, headers=LEGACY)).json()
    assert (legacy["external_id"], legacy["external_user_onboarded_at"]) == ("7", moment)
    assert legacy["access_type"] == "application"
    assert "external_user_details" not in legacy
    (listed,) = (await api.get(PROFILES, headers=OLDEST)).json()["data"]
    assert listed == oldest


async def test_of_two_forms_named_the_newer_counts(api: Api) -> None:
    # The SDK adds the form that it was made for to the one that its caller names.
    profile = await api.sdk.beta.user_profiles.create(
        betas=[FORMS[2]], external_user_details={"reference_id": "7"}
    )
    assert profile.external_user_details is not None
    assert profile.external_user_details.reference_id == "7"


@pytest.mark.parametrize(
    ("headers", "fields", "named"),
    [
        (NEWEST, {"external_id": "7"}, "external_id: "),
        ({}, {"external_user_onboarded_at": "2024-11-02T08:15:00Z"}, "external_user_onboarded_at: "),
        (LEGACY, {"external_user_details": {}}, "external_user_details: "),
        (OLDEST, {"external_user_onboarded_at": "2024-11-02T08:15:00Z"}, "external_user_onboarded_at: "),
    ],
)
async def test_a_field_of_another_form_is_refused(
    api: Api, headers: dict[str, str], fields: dict[str, Any], named: str
) -> None:
    assert named in await not_made(api, PROFILES, headers, **fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"access_type": "reseller"}, "access_type: "),
        ({"name": "n" * 256}, "name: must have at most 255 characters"),
        ({"metadata": {"k": ""}}, "metadata.k: must not be empty"),
        ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata: at most 16 pairs"),
        ({"external_user_details": None}, "external_user_details: "),
        ({"external_user_details": {"country": "se"}}, "external_user_details.country: "),
        ({"external_user_details": {"country": "SE\n"}}, "external_user_details.country: "),
        ({"external_user_details": {"email_hash": ""}}, "external_user_details.email_hash: "),
        ({"external_user_details": {"name_hash": "h" * 256}}, "external_user_details.name_hash: "),
        ({"external_user_details": {"account_status": "gone"}}, "external_user_details.account_status: "),
        ({"external_user_details": {"entity_type": "robot"}}, "external_user_details.entity_type: "),
        ({"external_user_details": {"onboarded_at": None}}, "external_user_details.onboarded_at: "),
        ({"external_user_details": {"onboarded_at": "2024-11-02"}}, "external_user_details.onboarded_at: "),
        ({"external_user_details": {"onboarded_at": "2024-11-02T08:15:00"}}, "onboarded_at: "),
        ({"external_user_details": {"shoe_size": 43}}, "external_user_details.shoe_size: Extra inputs"),
        ({"nickname": "x"}, "nickname: Extra inputs"),
    ],
)
async def test_a_value_that_breaks_a_rule_is_refused_with_its_path(
    api: Api, fields: dict[str, Any], named: str
) -> None:
    assert named in await not_made(api, PROFILES, NEWEST, **fields)


async def test_nobody_has_joined_in_the_future(api: Api) -> None:
    def details(ahead: timedelta) -> dict[str, Any]:
        return {"external_user_details": {"onboarded_at": (datetime.now(UTC) + ahead).isoformat()}}

    assert "must not be in the future" in await not_made(
        api, PROFILES, NEWEST, **details(timedelta(minutes=2))
    )
    await made(api, NEWEST, **details(timedelta(seconds=30)))  # clocks differ a little


async def test_an_update_keeps_what_is_absent_or_null(api: Api) -> None:
    profiles = api.sdk.beta.user_profiles
    profile = await profiles.create(name="Acme", external_id="7", metadata={"a": "1", "b": "2"})
    changed = await profiles.update(profile.id, name="Acme Ltd", metadata={"a": "", "c": "3"})
    assert (changed.name, changed.external_id, changed.metadata) == ("Acme Ltd", "7", {"b": "2", "c": "3"})
    assert changed.updated_at > profile.updated_at
    assert await profiles.update(profile.id, name=None, external_id=None, access_type=None) == changed
    assert (await profiles.update(profile.id, access_type="passthrough")).access_type == "passthrough"
    assert (await profiles.update(profile.id, name="")).name is None


async def test_details_are_replaced_one_by_one_and_never_cleared(api: Api) -> None:
    profile = await made(api, NEWEST, external_user_details={"country": "SE", "reference_id": "7"})
    path = f"{PROFILES}/{profile['id']}"
    changed = await api.post(path, {"external_user_details": {"country": "NO"}}, headers=NEWEST)
    details = changed.json()["external_user_details"]
    assert (details["country"], details["reference_id"]) == ("NO", "7")
    cleared = await not_made(api, path, NEWEST, external_user_details={"country": None})
    assert "external_user_details.country: cannot be cleared" in cleared
    response = await api.post(path, {"external_user_onboarded_at": None}, headers=LEGACY)
    assert response.status_code == 400


async def test_a_profile_that_is_deleted_is_gone(api: Api) -> None:
    profiles = api.sdk.beta.user_profiles
    profile = await profiles.create()
    deleted = await profiles.delete(profile.id)
    assert deleted.to_dict() == {"id": profile.id, "type": "user_profile_deleted"}
    for request in (
        profiles.retrieve(profile.id),
        profiles.update(profile.id, name="A"),
        profiles.delete(profile.id),
        profiles.create_enrollment_url(profile.id),
    ):
        await refused(request, profile.id, kind=anthropic.NotFoundError)


async def test_a_list_comes_newest_first_and_can_be_turned(api: Api) -> None:
    profiles = api.sdk.beta.user_profiles
    ids = [(await profiles.create(name=f"n{n}")).id for n in range(5)]
    assert [p.id async for p in profiles.list(limit=2)] == ids[::-1]
    assert [p.id async for p in profiles.list(limit=2, order="asc")] == ids


async def test_names_are_ordered_without_the_case_of_ascii_and_the_nameless_come_last(api: Api) -> None:
    profiles = api.sdk.beta.user_profiles
    for name in ("beta", "Alpha", None, "alpha2", "Éa", "ÉB", "éa", None):
        await profiles.create(name=name)
    up = [p.name async for p in profiles.list(limit=1, order="asc", order_by="name")]
    assert up == ["Alpha", "alpha2", "beta", "Éa", "ÉB", "éa", None, None]
    down = [p.name async for p in profiles.list(limit=3, order_by="name")]
    assert down == ["éa", "ÉB", "Éa", "beta", "alpha2", "Alpha", None, None]


async def test_a_cursor_belongs_to_its_order(api: Api) -> None:
    profiles = api.sdk.beta.user_profiles
    for _ in range(2):
        await profiles.create()
    page = (await profiles.list(limit=1, order="asc")).next_page
    assert page is not None
    wrong: Any = "age"
    await refused(profiles.list(page=page), "page token order")
    await refused(profiles.list(page=page, order="asc", order_by="name"), "invalid page cursor")
    await refused(profiles.list(order_by=wrong), "order_by: ")


async def test_an_enrolment_address_leads_to_a_page_of_this_server_that_says_what_it_is(api: Api) -> None:
    profile = await api.sdk.beta.user_profiles.create()
    enrollment = await api.sdk.beta.user_profiles.create_enrollment_url(profile.id)
    action = await api.sdk.beta.user_profiles.action_urls.create(
        profile.id, action={"type": "enroll_end_user"}
    )
    assert (enrollment.type, action.type) == ("enrollment_url", "user_profile_action_url")
    for url, expires_at in ((enrollment.url, enrollment.expires_at), (action.url, action.expires_at)):
        assert url.startswith(api.base_url)
        assert timedelta(hours=23) < expires_at - datetime.now(UTC) <= timedelta(days=1)
        async with httpx.AsyncClient() as visitor:
            page = await visitor.get(url)
        assert page.status_code == 200
        assert "Nothing to enrol in" in page.text
        assert profile.id not in url


async def test_an_enrolment_address_that_has_expired_says_so(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.base_url) as visitor:
        for until in ("1700000000", "soon"):
            page = await visitor.get(f"/enrollment/{until}")
            assert page.status_code == 410
            assert "expired" in page.text


async def test_an_action_must_be_one_that_is_known(api: Api) -> None:
    profile = await api.sdk.beta.user_profiles.create()
    other: Any = {"type": "dance"}
    await refused(api.sdk.beta.user_profiles.action_urls.create(profile.id, action=other), "action")


async def test_strict_mode_needs_no_header_and_refuses_an_unknown_one(strict_api: Api) -> None:
    assert (await strict_api.get(PROFILES)).status_code == 200
    unknown = await strict_api.get(PROFILES, headers={"anthropic-beta": "user-profiles-1999-01-01"})
    assert unknown.status_code == 400


async def test_workers_see_no_profiles(api: Api) -> None:
    environment = await api.environment()
    async with api.client(await api.environment_key(environment["id"])) as worker:
        await refused(worker.beta.user_profiles.create(), kind=anthropic.PermissionDeniedError)
