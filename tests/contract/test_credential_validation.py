"""``mcp_oauth_validate`` through the official SDK (contract section 15.4), with a real MCP server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest_asyncio

from corral.store.database import Database
from corral.vault import rows
from corral.vault.sealing import key_ring
from tests.mcp_parts import McpUnderTest, TokenEndpoint, gateway_at_work, mcp_server, token_endpoint

from .conftest import VAULT_KEY, Api, running
from .refusals import refused

ACCESS = "access-0-hunter2"
FAR = "2099-12-31T23:59:59Z"


@dataclass
class House:
    """An API with a gateway, an MCP server that accepts the credential's token, and a token endpoint."""

    api: Api
    server: McpUnderTest
    endpoint: TokenEndpoint
    vault_id: str

    async def credential(self, *, refreshable: bool = True, **changed: Any) -> Any:
        auth: dict[str, Any] = {
            "type": "mcp_oauth",
            "access_token": ACCESS,
            "mcp_server_url": self.server.url,
            "expires_at": FAR,
        }
        if refreshable:
            auth["refresh"] = {
                "client_id": "client",
                "refresh_token": self.endpoint.refresh_token,
                "token_endpoint": self.endpoint.url,
                "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "client-hunter2"},
                "scope": "a b",
            }
        auth |= changed
        sdk: Any = self.api.sdk.beta.vaults.credentials
        return await sdk.create(self.vault_id, auth=auth)

    async def validate(self, credential: Any) -> Any:
        return await self.api.sdk.beta.vaults.credentials.mcp_oauth_validate(
            credential.id, vault_id=self.vault_id
        )

    async def secrets(self, credential: Any) -> dict[str, str]:
        opened = await rows.read(self.api.database, credential.id, key_ring(VAULT_KEY))
        return {field: secret.reveal() for field, secret in opened.items()}


@pytest_asyncio.fixture
async def house(database: Database) -> AsyncIterator[House]:
    async with (
        mcp_server(accepted=[ACCESS]) as server,
        token_endpoint(server) as endpoint,
        gateway_at_work(database, VAULT_KEY) as gateway,
        running(database, gateway_url=gateway.url) as api,
    ):
        vault = await api.sdk.beta.vaults.create(display_name="V")
        yield House(api, server, endpoint, vault.id)


async def test_a_token_that_works_is_valid_and_is_tried_with_a_listing_of_tools(house: House) -> None:
    made = await house.credential()
    validation = await house.validate(made)
    assert (validation.status, validation.mcp_probe, validation.refresh) == ("valid", None, None)
    assert validation.type == "vault_credential_validation"
    assert (validation.credential_id, validation.vault_id) == (made.id, house.vault_id)
    assert validation.has_refresh_token is True
    assert house.server.methods() == ["initialize", "notifications/initialized", "tools/list"]
    assert house.endpoint.requests == []


async def test_a_refused_token_is_renewed_and_the_new_one_is_kept(house: House) -> None:
    made = await house.credential()
    house.server.accepted = set()
    validation = await house.validate(made)
    assert (validation.status, validation.mcp_probe) == ("valid", None)
    assert (validation.refresh.status, validation.refresh.http_response) == ("succeeded", None)
    assert house.endpoint.requests == [
        {
            "grant_type": "refresh_token",
            "refresh_token": "refresh-0-hunter2",
            "client_id": "client",
            "client_secret": "client-hunter2",
            "scope": "a b",
        }
    ]
    secrets = await house.secrets(made)
    assert (secrets["access_token"], secrets["refresh_token"]) == ("access-1-hunter2", "refresh-1-hunter2")
    assert (await house.validate(made)).refresh is None


async def test_without_a_refresh_token_a_refused_one_is_invalid(house: House) -> None:
    made = await house.credential(refreshable=False)
    house.server.accepted = set()
    validation = await house.validate(made)
    assert (validation.status, validation.has_refresh_token) == ("invalid", False)
    assert validation.refresh.status == "no_refresh_token"
    probe = validation.mcp_probe
    assert (probe.method, probe.http_response.status_code) == ("initialize", 401)
    assert (probe.http_response.body, probe.http_response.body_truncated) == ('{"error":"refused"}', False)
    assert probe.http_response.content_type == "application/json"


async def test_a_refresh_that_the_endpoint_refuses_is_invalid_and_shows_no_secret(house: House) -> None:
    made = await house.credential()
    house.server.accepted = set()
    house.endpoint.refresh_token = "another"
    validation = await house.validate(made)
    assert (validation.status, validation.refresh.status) == ("invalid", "failed")
    answer = validation.refresh.http_response
    assert answer.status_code == 400
    assert answer.body == '{"error":"invalid_grant","sent":"[secret]"}'
    assert (await house.secrets(made))["refresh_token"] == "refresh-0-hunter2", "nothing is cleared"


async def test_a_refresh_that_fails_for_now_leaves_the_verdict_open(house: House) -> None:
    made = await house.credential()
    house.server.accepted = set()
    for status in (429, 503):
        house.endpoint.answer = status
        validation = await house.validate(made)
        assert (validation.status, validation.refresh.status) == ("unknown", "failed")


async def test_an_endpoint_that_does_not_answer_leaves_the_verdict_open(house: House) -> None:
    refresh = {
        "client_id": "client",
        "refresh_token": "refresh-0-hunter2",
        "token_endpoint": "https://127.0.0.1:9/token",
        "token_endpoint_auth": {"type": "none"},
    }
    made = await house.credential(refresh=refresh)
    house.server.accepted = set()
    validation = await house.validate(made)
    assert (validation.status, validation.refresh.status) == ("unknown", "connect_error")
    assert validation.refresh.http_response is None


async def test_a_server_that_is_unwell_or_away_leaves_the_verdict_open(house: House) -> None:
    made = await house.credential()
    house.server.answer = 503
    validation = await house.validate(made)
    assert (validation.status, validation.refresh) == ("unknown", None)
    assert validation.mcp_probe.http_response.status_code == 503
    away = await house.credential(mcp_server_url="http://127.0.0.1:9/mcp")
    validation = await house.validate(away)
    assert validation.status == "unknown"
    assert (validation.mcp_probe.method, validation.mcp_probe.http_response) == ("initialize", None)


async def test_a_long_answer_is_cut_and_a_token_in_it_is_masked(house: House) -> None:
    made = await house.credential(refreshable=False)
    house.server.answer = 403
    house.server.body = b"Bearer " + ACCESS.encode() + b" " + b"x" * 10_000
    response = (await house.validate(made)).mcp_probe.http_response
    assert response.body.startswith("Bearer [secret] xxx")
    assert (len(response.body), response.body_truncated) == (4096, True)


async def test_only_an_active_credential_of_oauth_can_be_tried(house: House) -> None:
    bearer: Any = {"type": "static_bearer", "token": "t", "mcp_server_url": "https://other.example.com"}
    made = await house.api.sdk.beta.vaults.credentials.create(house.vault_id, auth=bearer)
    await refused(house.validate(made), "mcp_oauth")
    oauth = await house.credential()
    await house.api.sdk.beta.vaults.credentials.archive(oauth.id, vault_id=house.vault_id)
    await refused(house.validate(oauth), "Credential is archived.")
    assert house.server.seen == []


async def test_a_private_address_that_the_operator_has_not_named_is_never_asked(database: Database) -> None:
    async with (
        mcp_server(accepted=[ACCESS]) as server,
        token_endpoint(server) as endpoint,
        gateway_at_work(database, VAULT_KEY, internal=[]) as gateway,
        running(database, gateway_url=gateway.url) as api,
    ):
        vault = await api.sdk.beta.vaults.create(display_name="V")
        house = House(api, server, endpoint, vault.id)
        validation = await house.validate(await house.credential())
        assert validation.status == "unknown"
        assert (server.seen, endpoint.requests) == ([], [])
