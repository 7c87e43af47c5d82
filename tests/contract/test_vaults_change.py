"""Vaults and credentials: bounds at both edges, null and absence, archive and deletion (contract 15)."""

from typing import Any

import pytest

from .conftest import Api
from .kinds import ok

URL = "https://mcp.example.com/mcp"
FAR = "2099-12-31T23:59:59Z"
BEARER: dict[str, Any] = {"type": "static_bearer", "token": "t", "mcp_server_url": URL}
REFRESH: dict[str, Any] = {
    "client_id": "c",
    "refresh_token": "r",
    "token_endpoint": "https://auth.example.com/token",
    "token_endpoint_auth": {"type": "client_secret_basic", "client_secret": "s"},
}
OAUTH: dict[str, Any] = {
    "type": "mcp_oauth",
    "access_token": "t",
    "mcp_server_url": URL,
    "expires_at": FAR,
    "refresh": REFRESH,
}
VARIABLE: dict[str, Any] = {
    "type": "environment_variable",
    "secret_name": "KEY",
    "secret_value": "v",
    "networking": {"type": "unrestricted"},
}


async def vault(api: Api, **fields: Any) -> str:
    """The path of a new vault."""
    made = await ok(api.post("/v1/vaults", {"display_name": "V", **fields}))
    return f"/v1/vaults/{made['id']}"


async def test_the_bounds_of_a_vaults_name(api: Api) -> None:
    path = await vault(api)
    before = await ok(api.get(path))
    for name in ("n", "\U0001f408" * 255):
        assert (await ok(api.post("/v1/vaults", {"display_name": name})))["display_name"] == name
    for name, said in (
        ("", "must have at least 1"),
        ("n" * 256, "must have at most 255"),
        (3, "Input should"),
    ):
        for target in ("/v1/vaults", path):
            response = await api.post(target, {"display_name": name})
            assert response.status_code == 400
            assert response.json()["error"]["message"].startswith(f"display_name: {said}")
    assert await ok(api.get(path)) == before
    assert (await ok(api.post(path, {"display_name": "n" * 255})))["display_name"] == "n" * 255


async def test_a_vaults_update_that_changes_nothing_leaves_updated_at(api: Api) -> None:
    path = await vault(api, metadata={"a": "1"})
    before = await ok(api.get(path))
    for fields in ({}, {"display_name": "V"}, {"display_name": None}, {"metadata": {"a": "1"}}):
        assert await ok(api.post(path, fields)) == before


@pytest.mark.parametrize("auth", [BEARER, OAUTH, VARIABLE], ids=lambda auth: auth["type"])
async def test_the_bounds_of_a_credentials_name(api: Api, auth: dict[str, Any]) -> None:
    path = f"{await vault(api)}/credentials"
    response = await api.post(path, {"auth": auth, "display_name": "n" * 256})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("display_name: must have at most 255 characters")
    made = await ok(api.post(path, {"auth": auth, "display_name": "n" * 255}))
    one = f"{path}/{made['id']}"
    assert (await ok(api.get(one)))["display_name"] == "n" * 255
    for name in ("", "n" * 256):
        response = await api.post(one, {"display_name": name})
        assert response.json()["error"]["message"].startswith("display_name: must have at ")
    assert (await ok(api.post(one, {"display_name": "x"})))["display_name"] == "x"


BOUNDS: dict[str, tuple[dict[str, Any], str, int]] = {
    "a token": (BEARER, "token", 8192),
    "an access token": (OAUTH, "access_token", 8192),
    "a refresh token": (OAUTH, "refresh.refresh_token", 8192),
    "a scope": (OAUTH, "refresh.scope", 8192),
    "a client": (OAUTH, "refresh.client_id", 1024),
    "a client's secret": (OAUTH, "refresh.token_endpoint_auth.client_secret", 512),
    "a resource": (OAUTH, "refresh.resource", 2047),
    "a variable's value": (VARIABLE, "secret_value", 4096),
    "a variable's name": (VARIABLE, "secret_name", 255),
}


def with_value(auth: dict[str, Any], field: str, value: str) -> dict[str, Any]:
    first, _, rest = field.partition(".")
    return {**auth, first: with_value(auth[first], rest, value) if rest else value}


@pytest.mark.parametrize("case", BOUNDS)
async def test_each_part_of_a_credential_is_taken_up_to_its_bound(api: Api, case: str) -> None:
    auth, field, most = BOUNDS[case]
    path = f"{await vault(api)}/credentials"
    for value in ("", "N" * (most + 1)):
        response = await api.post(path, {"auth": with_value(auth, field, value)})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(f"auth.{field}: must have "), response.text
    await ok(api.post(path, {"auth": with_value(auth, field, "N" * most)}))


@pytest.mark.parametrize("field", ["mcp_server_url", "refresh.token_endpoint"])
async def test_urls_have_at_most_2047_characters(api: Api, field: str) -> None:
    path = f"{await vault(api)}/credentials"
    response = await api.post(path, {"auth": with_value(OAUTH, field, URL + "u" * (2048 - len(URL)))})
    assert response.json()["error"]["message"].startswith(f"auth.{field}: must have at most 2047 characters")
    await ok(api.post(path, {"auth": with_value(OAUTH, field, URL + "u" * (2047 - len(URL)))}))


async def test_a_secret_is_limited_to_at_most_16_hosts(api: Api) -> None:
    path = f"{await vault(api)}/credentials"
    hosts = [f"h{n}.example.com" for n in range(17)]

    def of(count: int) -> dict[str, Any]:
        return {"auth": {**VARIABLE, "networking": {"type": "limited", "allowed_hosts": hosts[:count]}}}

    response = await api.post(path, of(17))
    assert response.json()["error"]["message"].startswith("auth.networking.allowed_hosts: at most 16 hosts")
    made = await ok(api.post(path, of(16)))
    assert made["auth"]["networking"]["allowed_hosts"] == hosts[:16]


async def test_the_injection_location_has_its_defaults_and_merges(api: Api) -> None:
    path = f"{await vault(api)}/credentials"
    made = await ok(api.post(path, {"auth": VARIABLE}))
    assert made["auth"]["injection_location"] == {"header": True, "body": True}
    one = f"{path}/{made['id']}"

    async def change(**location: Any) -> Any:
        auth = {"type": "environment_variable", "injection_location": location}
        return await api.post(one, {"auth": auth})

    assert (await ok(change(body=False)))["auth"]["injection_location"] == {"header": True, "body": False}
    for location in ({"header": False}, {"header": False, "body": False}):
        response = await change(**location)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "auth.injection_location: header or body must be true"
    assert (await change(header=None)).status_code == 400
    assert (await ok(change(header=False, body=True)))["auth"]["injection_location"] == {
        "header": False,
        "body": True,
    }


async def test_an_expiry_must_lie_ahead_and_is_shown_in_utc(api: Api) -> None:
    path = f"{await vault(api)}/credentials"
    for expiry in ("2020-01-01T00:00:00Z", "1970-01-01T00:00:00+00:00"):
        response = await api.post(path, {"auth": {**OAUTH, "expires_at": expiry}})
        assert response.json()["error"]["message"] == "auth.expires_at must be in the future."
    for expiry in ("soon", "", "4102444800"):
        response = await api.post(path, {"auth": {**OAUTH, "expires_at": expiry}})
        assert response.json()["error"]["message"].startswith(
            "auth.expires_at: Input should be a valid RFC 3339"
        )
    made = await ok(api.post(path, {"auth": {**OAUTH, "expires_at": "2099-01-01T02:00:00+02:00"}}))
    assert made["auth"]["expires_at"] == "2099-01-01T00:00:00.000000Z"
    one = f"{path}/{made['id']}"
    kept = await ok(api.post(one, {"auth": {"type": "mcp_oauth", "access_token": "new"}}))
    assert kept["auth"]["expires_at"] == made["auth"]["expires_at"]
    unknown = await ok(api.post(one, {"auth": {"type": "mcp_oauth", "expires_at": None}}))
    assert unknown["auth"]["expires_at"] is None


async def test_archived_credentials_and_vaults_can_be_read_and_deleted_but_not_changed(api: Api) -> None:
    path = await vault(api)
    made = await ok(api.post(f"{path}/credentials", {"auth": BEARER}))
    one = f"{path}/credentials/{made['id']}"
    archived = await ok(api.post(f"{one}/archive"))
    assert archived["updated_at"] == archived["archived_at"]
    assert await ok(api.get(one)) == archived
    for fields in ({}, {"display_name": "x"}, {"auth": {"type": "static_bearer", "token": "x"}}):
        response = await api.post(one, fields)
        assert (response.status_code, response.json()["error"]["message"]) == (400, "Credential is archived.")
    assert (await ok(api.http.delete(one)))["type"] == "vault_credential_deleted"
    other = await ok(api.post(f"{path}/credentials", {"auth": BEARER}))
    whole = await ok(api.post(f"{path}/archive"))
    assert (await ok(api.get(path))) == whole
    shown = await ok(api.get(f"{path}/credentials/{other['id']}"))
    assert shown["archived_at"] == whole["archived_at"]
    assert (await ok(api.get(f"{path}/credentials")))["data"] == []
    assert (await ok(api.get(f"{path}/credentials?include_archived=true")))["data"] == [shown]
    assert (await ok(api.http.delete(path)))["type"] == "vault_deleted"
    assert (await api.get(f"{path}/credentials")).status_code == 404


async def test_an_unknown_field_is_refused_wherever_it_stands(api: Api) -> None:
    path = f"{await vault(api)}/credentials"
    for body, said in (
        ({"auth": BEARER, "vault_id": "vlt_1"}, "vault_id: Extra inputs"),
        ({"auth": {**BEARER, "expires_at": FAR}}, "auth.expires_at: Extra inputs"),
        ({"auth": with_value(OAUTH, "refresh.extra", "x")}, "auth.refresh.extra: Extra inputs"),
        (
            {"auth": with_value(OAUTH, "refresh.token_endpoint_auth.extra", "x")},
            "auth.refresh.token_endpoint_auth.extra: Extra inputs",
        ),
        (
            {"auth": {**VARIABLE, "networking": {"type": "unrestricted", "x": 1}}},
            "auth.networking.x: Extra inputs",
        ),
        ({"auth": {**VARIABLE, "injection_location": {"url": True}}}, "auth.injection_location.url: Extra"),
        ({"auth": {"type": "api_key"}}, 'auth.type: "api_key" is not a valid value'),
        ({}, "auth: Field required"),
        ({"auth": None}, "auth: Input should be a valid object"),
    ):
        response = await api.post(path, body)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
    assert (await ok(api.get(path)))["data"] == []
