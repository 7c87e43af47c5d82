"""The rules of credentials, without a server: bounds, what may change, what not (contract section 15.2)."""

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from corral.wire.credential_rules import created, key_hash, updated
from corral.wire.credentials import CreateCredential, UpdateCredential
from corral.wire.decode import decode
from corral.wire.errors import InvalidRequest
from corral.wire.fields import UNSET

NOW = datetime(2026, 4, 1, tzinfo=UTC)
URL = "https://mcp.example.com/mcp"
LATER = "2026-05-01T00:00:00Z"
BEARER: dict[str, Any] = {"type": "static_bearer", "token": "hunter2", "mcp_server_url": URL}
REFRESH: dict[str, Any] = {
    "client_id": "client",
    "refresh_token": "hunter2-refresh",
    "token_endpoint": "https://auth.example.com/token",
    "token_endpoint_auth": {"type": "client_secret_basic", "client_secret": "hunter2-client"},
    "scope": "read",
}
OAUTH: dict[str, Any] = {
    "type": "mcp_oauth",
    "access_token": "hunter2-access",
    "mcp_server_url": URL,
    "expires_at": LATER,
    "refresh": REFRESH,
}
VARIABLE: dict[str, Any] = {
    "type": "environment_variable",
    "secret_name": "API_KEY",
    "secret_value": "hunter2",
    "networking": {"type": "unrestricted"},
}


def sent(auth: dict[str, Any]) -> CreateCredential:
    return decode(msgspec.json.encode({"auth": auth}), CreateCredential)


def make(auth: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    made = created(sent(auth).auth, NOW)
    return msgspec.to_builtins(made.auth), {field: secret.reveal() for field, secret in made.secrets.items()}


def change(auth: dict[str, Any], update: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    stored = created(sent(auth).auth, NOW).auth
    params = decode(msgspec.json.encode({"auth": {"type": auth["type"], **update}}), UpdateCredential)
    assert params.auth is not UNSET
    made = updated(stored, params.auth, NOW)
    return msgspec.to_builtins(made.auth), {field: secret.reveal() for field, secret in made.secrets.items()}


def without(auth: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {name: value for name, value in auth.items() if name not in fields}


def test_an_oauth_token_is_taken_apart_into_what_is_shown_and_what_is_sealed() -> None:
    shown, secrets = make(OAUTH)
    assert shown == {
        "type": "mcp_oauth",
        "mcp_server_url": URL,
        "expires_at": "2026-05-01T00:00:00.000000Z",
        "refresh": {
            "client_id": "client",
            "token_endpoint": "https://auth.example.com/token",
            "token_endpoint_auth": {"type": "client_secret_basic"},
            "resource": None,
            "scope": "read",
        },
    }
    assert secrets == {
        "access_token": "hunter2-access",
        "refresh_token": "hunter2-refresh",
        "client_secret": "hunter2-client",
    }


def test_an_oauth_token_needs_neither_expiry_nor_refresh() -> None:
    shown, secrets = make(without(OAUTH, "expires_at", "refresh"))
    assert (shown["expires_at"], shown["refresh"]) == (None, None)
    assert secrets == {"access_token": "hunter2-access"}


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ({}, {"header": True, "body": True}),
        ({"injection_location": {"header": True}}, {"header": True, "body": False}),
        ({"injection_location": {"body": True}}, {"header": False, "body": True}),
        ({"injection_location": {"body": True, "header": True}}, {"header": True, "body": True}),
    ],
)
def test_a_location_left_out_is_off_but_leaving_all_out_is_on(
    location: dict[str, Any], shown: dict[str, bool]
) -> None:
    assert make({**VARIABLE, **location})[0]["injection_location"] == shown


@pytest.mark.parametrize(
    ("update", "shown"),
    [
        ({}, {"header": True, "body": False}),
        ({"injection_location": {}}, {"header": True, "body": False}),
        ({"injection_location": {"body": True}}, {"header": True, "body": True}),
        ({"injection_location": {"body": True, "header": False}}, {"header": False, "body": True}),
    ],
)
def test_an_update_merges_the_location(update: dict[str, Any], shown: dict[str, bool]) -> None:
    stored = {**VARIABLE, "injection_location": {"header": True}}
    assert change(stored, update)[0]["injection_location"] == shown


def test_an_update_replaces_networking_as_a_whole() -> None:
    limited = {"type": "limited", "allowed_hosts": ["a.example", "192.0.2.1", "*.b.example"]}
    assert change(VARIABLE, {"networking": limited})[0]["networking"] == limited
    other: dict[str, Any] = {"type": "limited", "allowed_hosts": []}
    assert change({**VARIABLE, "networking": limited}, {"networking": other})[0]["networking"] == other
    assert change({**VARIABLE, "networking": limited}, {"networking": None})[0]["networking"] == limited


def test_an_update_replaces_only_the_secrets_that_it_has() -> None:
    assert change(OAUTH, {})[1] == {}
    assert change(OAUTH, {"access_token": "new"})[1] == {"access_token": "new"}
    assert change(OAUTH, {"refresh": {"refresh_token": "new"}})[1] == {"refresh_token": "new"}
    assert change(OAUTH, {"access_token": None, "refresh": None})[1] == {}
    assert change(BEARER, {"token": "new"})[1] == {"token": "new"}
    assert change(BEARER, {"token": None})[1] == {}
    assert change(VARIABLE, {"secret_value": "new"})[1] == {"secret_value": "new"}


def test_a_new_client_secret_keeps_the_stored_way_of_sending_it() -> None:
    auth = {"type": "client_secret_post", "client_secret": "new"}
    shown, secrets = change(OAUTH, {"refresh": {"token_endpoint_auth": auth}})
    assert shown["refresh"]["token_endpoint_auth"] == {"type": "client_secret_basic"}
    assert secrets == {"client_secret": "new"}


def test_an_expiry_stays_unless_it_is_given_and_null_makes_it_unknown() -> None:
    assert change(OAUTH, {"access_token": "new"})[0]["expires_at"] == "2026-05-01T00:00:00.000000Z"
    assert change(OAUTH, {"expires_at": "2026-06-01T02:00:00+02:00"})[0]["expires_at"] == (
        "2026-06-01T00:00:00.000000Z"
    )
    assert change(OAUTH, {"expires_at": None})[0]["expires_at"] is None


def test_an_empty_scope_clears_it_and_null_keeps_it() -> None:
    assert change(OAUTH, {"refresh": {"scope": ""}})[0]["refresh"]["scope"] is None
    assert change(OAUTH, {"refresh": {"scope": None}})[0]["refresh"]["scope"] == "read"
    assert change(OAUTH, {"refresh": {"scope": "write"}})[0]["refresh"]["scope"] == "write"


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ({**BEARER, "token": ""}, "auth.token: must have 1 to 8192 characters"),
        ({**BEARER, "token": "t" * 8193}, "auth.token: must have 1 to 8192 characters"),
        ({**BEARER, "token": 5}, "auth.token: Input should be a valid string"),
        ({**BEARER, "token": None}, "auth.token: Input should be a valid string"),
        ({**BEARER, "token": ["hunter2"]}, "auth.token: Input should be a valid string"),
        ({**BEARER, "token": "hunter2\x00"}, "auth.token: holds a NUL"),
        (without(BEARER, "token"), "auth.token: Field required"),
        (without(BEARER, "mcp_server_url"), "auth.mcp_server_url: Field required"),
        ({**BEARER, "mcp_server_url": "hunter2"}, "auth.mcp_server_url: must be an http or https URL"),
        (
            {**BEARER, "mcp_server_url": "https://x/" + "u" * 2038},
            "auth.mcp_server_url: must have at most 2047",
        ),
        ({**BEARER, "expires_at": LATER}, "auth.expires_at: Extra inputs are not permitted"),
        ({**BEARER, "type": "basic"}, 'auth.type: "basic" is not a valid value'),
        ({**OAUTH, "access_token": "t" * 8193}, "auth.access_token: must have 1 to 8192"),
        ({**OAUTH, "expires_at": "2026-04-01T00:00:00Z"}, "auth.expires_at must be in the future."),
        (
            {**OAUTH, "expires_at": "0001-01-01T00:00:00+23:59"},
            "auth.expires_at: Input should be a valid RFC",
        ),
        ({**OAUTH, "expires_at": "tomorrow"}, "auth.expires_at: Input should be a valid RFC 3339"),
        ({**OAUTH, "refresh": without(REFRESH, "client_id")}, "auth.refresh.client_id: Field required"),
        (
            {**OAUTH, "refresh": {**REFRESH, "client_id": "c" * 1025}},
            "auth.refresh.client_id: must have at most",
        ),
        (
            {**OAUTH, "refresh": {**REFRESH, "refresh_token": ""}},
            "auth.refresh.refresh_token: must have 1 to 8192",
        ),
        ({**OAUTH, "refresh": {**REFRESH, "scope": ""}}, "auth.refresh.scope: must have at least 1"),
        (
            {**OAUTH, "refresh": {**REFRESH, "token_endpoint": "x"}},
            "auth.refresh.token_endpoint: must be an http",
        ),
        (
            {**OAUTH, "refresh": {**REFRESH, "resource": "r" * 2048}},
            "auth.refresh.resource: must have at most 2047",
        ),
        (
            {**OAUTH, "refresh": {**REFRESH, "token_endpoint_auth": {"type": "client_secret_post"}}},
            "auth.refresh.token_endpoint_auth.client_secret: Field required",
        ),
        (
            {
                **OAUTH,
                "refresh": {
                    **REFRESH,
                    "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "s" * 513},
                },
            },
            "auth.refresh.token_endpoint_auth.client_secret: must have 1 to 512 characters",
        ),
        ({**VARIABLE, "secret_value": "v" * 4097}, "auth.secret_value: must have 1 to 4096"),
        ({**VARIABLE, "secret_name": "n" * 256}, "auth.secret_name: must have at most 255"),
        ({**VARIABLE, "secret_name": "A=B"}, "auth.secret_name: must be the name of an environment variable"),
        ({**VARIABLE, "secret_name": "1A"}, "auth.secret_name: must be the name of an environment variable"),
        (without(VARIABLE, "networking"), "auth.networking: Field required"),
        ({**VARIABLE, "networking": {"type": "limited"}}, "auth.networking.allowed_hosts: Field required"),
        (
            {**VARIABLE, "networking": {"type": "limited", "allowed_hosts": ["h.example"] * 17}},
            "auth.networking.allowed_hosts: at most 16 hosts",
        ),
        (
            {**VARIABLE, "networking": {"type": "limited", "allowed_hosts": ["h.example:443"]}},
            "auth.networking.allowed_hosts[0]",
        ),
        (
            {**VARIABLE, "networking": {"type": "limited", "allowed_hosts": ["::1"]}},
            "auth.networking.allowed_hosts[0]",
        ),
        ({**VARIABLE, "injection_location": {}}, "auth.injection_location: header or body must be true"),
        (
            {**VARIABLE, "injection_location": {"header": False, "body": False}},
            "auth.injection_location: header or body must be true",
        ),
        ({**VARIABLE, "injection_location": None}, "auth.injection_location: Input should be a valid object"),
        (
            {**VARIABLE, "injection_location": {"header": None}},
            "auth.injection_location.header: Input should be",
        ),
    ],
)
def test_a_bad_credential_is_refused_with_the_path_and_without_the_secret(
    auth: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make(auth)
    assert message in caught.value.message
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("auth", "update", "message"),
    [
        (BEARER, {"mcp_server_url": URL}, "auth.mcp_server_url: Extra inputs are not permitted"),
        (OAUTH, {"refresh": {"client_id": "x"}}, "auth.refresh.client_id: Extra inputs are not permitted"),
        (OAUTH, {"refresh": {"token_endpoint": "x"}}, "auth.refresh.token_endpoint: Extra inputs"),
        (VARIABLE, {"secret_name": "X"}, "auth.secret_name: Extra inputs are not permitted"),
        (
            without(OAUTH, "refresh"),
            {"refresh": {"refresh_token": "hunter2"}},
            "auth.refresh: the credential was",
        ),
        (
            {**OAUTH, "refresh": {**REFRESH, "token_endpoint_auth": {"type": "none"}}},
            {"refresh": {"token_endpoint_auth": {"type": "client_secret_basic", "client_secret": "hunter2"}}},
            "auth.refresh.token_endpoint_auth: the credential uses no client secret",
        ),
        (
            OAUTH,
            {"refresh": {"token_endpoint_auth": {"type": "none"}}},
            'auth.refresh.token_endpoint_auth.type: "none" is not a valid value',
        ),
        (
            OAUTH,
            {"refresh": {"token_endpoint_auth": None}},
            "auth.refresh.token_endpoint_auth: Input should be",
        ),
        (OAUTH, {"expires_at": "2026-03-31T23:59:59Z"}, "auth.expires_at must be in the future."),
        (OAUTH, {"access_token": ""}, "auth.access_token: must have 1 to 8192 characters"),
        (
            VARIABLE,
            {"injection_location": {"header": False, "body": False}},
            "auth.injection_location: header or",
        ),
        (VARIABLE, {"injection_location": None}, "auth.injection_location: Input should be a valid object"),
        (
            VARIABLE,
            {"injection_location": {"body": None}},
            "auth.injection_location.body: Input should be a valid",
        ),
        (BEARER, {"type": "mcp_oauth"}, 'auth.type: cannot change from "static_bearer" to "mcp_oauth"'),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_the_path_and_without_the_secret(
    auth: dict[str, Any], update: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        change(auth, update)
    assert message in caught.value.message
    assert "hunter2" not in caught.value.message


def test_the_largest_of_everything_is_taken() -> None:
    url = "https://x/" + "ü" * 2037
    make({**BEARER, "token": "ü" * 8192, "mcp_server_url": url})
    make({**VARIABLE, "secret_value": "ü" * 4096, "secret_name": "N" * 255})
    make(
        {
            **OAUTH,
            "refresh": {**REFRESH, "client_id": "c" * 1024, "scope": "s" * 8192, "resource": "r" * 2047},
        }
    )


def test_both_kinds_of_token_for_a_server_have_the_same_key_and_a_variable_never_has() -> None:
    def key(auth: dict[str, Any]) -> bytes:
        return key_hash(created(sent(auth).auth, NOW).auth)

    assert key(BEARER) == key(OAUTH) == key({**BEARER, "mcp_server_url": "HTTPS://MCP.example.com:443/mcp/"})
    assert key(VARIABLE) not in (key(BEARER), key({**VARIABLE, "secret_name": "api_key"}))


def test_a_request_with_a_secret_cannot_be_printed_pickled_or_encoded() -> None:
    for auth in (BEARER, OAUTH, VARIABLE):
        request = sent(auth)
        for shown in (repr(request), str(request), f"{request}", repr(created(request.auth, NOW))):
            assert "hunter2" not in shown
            assert "[secret]" in shown
        for leak in (pickle.dumps, msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins):
            with pytest.raises(TypeError) as caught:
                leak(request)
            assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(copy.deepcopy(request))
