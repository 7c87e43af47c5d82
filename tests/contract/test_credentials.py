"""Credentials of vaults through the official SDK (contract section 15.2 to 15.4)."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import pytest

from corral.store.database import Database
from corral.vault import rows
from corral.vault.sealing import key_ring
from corral.wire.credentials import CreateCredential
from corral.wire.decode import decode

from .conftest import VAULT_KEY, Api, running
from .refusals import refused, undocumented

URL = "https://mcp.example.com/mcp"
FAR = "2099-12-31T23:59:59Z"
BEARER: Any = {"type": "static_bearer", "token": "hunter2-bearer", "mcp_server_url": URL}
OAUTH: Any = {
    "type": "mcp_oauth",
    "access_token": "hunter2-access",
    "mcp_server_url": URL,
    "expires_at": FAR,
    "refresh": {
        "client_id": "client",
        "refresh_token": "hunter2-refresh",
        "token_endpoint": "https://auth.example.com/token",
        "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "hunter2-client"},
    },
}
VARIABLE: Any = {
    "type": "environment_variable",
    "secret_name": "API_KEY",
    "secret_value": "hunter2-value",
    "networking": {"type": "limited", "allowed_hosts": ["api.example.com"]},
    "injection_location": {"header": True},
}


class Vault:
    """A vault and what a test does with it."""

    def __init__(self, api: Api, vault_id: str) -> None:
        self.api = api
        self.id = vault_id
        self._credentials = api.sdk.beta.vaults.credentials

    async def put(self, auth: Any, **fields: Any) -> Any:
        return await self._credentials.create(self.id, auth=auth, **fields)

    async def change(self, credential: Any, **fields: Any) -> Any:
        return await self._credentials.update(credential.id, vault_id=self.id, **fields)

    async def get(self, credential: Any) -> Any:
        return await self._credentials.retrieve(credential.id, vault_id=self.id)

    async def archive(self, credential: Any) -> Any:
        return await self._credentials.archive(credential.id, vault_id=self.id)

    async def delete(self, credential: Any) -> Any:
        return await self._credentials.delete(credential.id, vault_id=self.id)

    async def validate(self, credential: Any) -> Any:
        return await self._credentials.mcp_oauth_validate(credential.id, vault_id=self.id)

    async def ids(self, **query: Any) -> list[str]:
        return [one.id async for one in self._credentials.list(self.id, **query)]

    async def secrets(self, credential: Any) -> dict[str, str]:
        """What the gateway would read."""
        opened = await rows.read(self.api.database, credential.id, key_ring(VAULT_KEY))
        return {field: secret.reveal() for field, secret in opened.items()}


@pytest.fixture
async def vault(api: Api) -> Vault:
    return Vault(api, (await api.sdk.beta.vaults.create(display_name="V")).id)


def at(number: int) -> Any:
    """A bearer token for one of many servers."""
    return {**BEARER, "mcp_server_url": f"https://mcp{number}.example.com"}


@pytest.mark.parametrize(
    ("auth", "shown", "secrets"),
    [
        (BEARER, {"type": "static_bearer", "mcp_server_url": URL}, {"token": "hunter2-bearer"}),
        (
            OAUTH,
            {
                "type": "mcp_oauth",
                "mcp_server_url": URL,
                "expires_at": "2099-12-31T23:59:59.000000Z",
                "refresh": {
                    "client_id": "client",
                    "token_endpoint": "https://auth.example.com/token",
                    "token_endpoint_auth": {"type": "client_secret_post"},
                    "resource": None,
                    "scope": None,
                },
            },
            {
                "access_token": "hunter2-access",
                "refresh_token": "hunter2-refresh",
                "client_secret": "hunter2-client",
            },
        ),
        (
            VARIABLE,
            {
                "type": "environment_variable",
                "secret_name": "API_KEY",
                "networking": {"type": "limited", "allowed_hosts": ["api.example.com"]},
                "injection_location": {"header": True, "body": False},
            },
            {"secret_value": "hunter2-value"},
        ),
    ],
)
async def test_a_credential_is_shown_without_its_secrets_which_the_gateway_can_open(
    vault: Vault, auth: Any, shown: dict[str, Any], secrets: dict[str, str]
) -> None:
    path = f"/v1/vaults/{vault.id}/credentials"
    made = (
        await vault.api.post(path, {"auth": auth, "display_name": "Slack", "metadata": {"a": "b"}})
    ).json()
    assert made["auth"] == shown
    assert made["id"].startswith("vcrd_01")
    assert (made["type"], made["vault_id"], made["archived_at"]) == ("vault_credential", vault.id, None)
    assert (made["display_name"], made["metadata"]) == ("Slack", {"a": "b"})
    assert (await vault.api.get(f"{path}/{made['id']}")).json() == made
    parsed = await vault.api.sdk.beta.vaults.credentials.retrieve(made["id"], vault_id=vault.id)
    assert undocumented(parsed) == []
    assert await vault.secrets(parsed) == secrets


async def test_a_second_active_credential_for_the_same_server_or_name_is_a_conflict(vault: Vault) -> None:
    first, variable = await vault.put(BEARER), await vault.put(VARIABLE)
    same = {**OAUTH, "mcp_server_url": "HTTPS://MCP.Example.com:443/mcp/"}
    await refused(vault.put(same), "auth.mcp_server_url", first.id, kind=anthropic.ConflictError)
    await refused(vault.put(VARIABLE), "auth.secret_name", variable.id, kind=anthropic.ConflictError)
    await vault.put({**BEARER, "mcp_server_url": URL + "/v2"})
    await vault.put({**VARIABLE, "secret_name": "api_key"})
    other = Vault(vault.api, (await vault.api.sdk.beta.vaults.create(display_name="W")).id)
    await other.put(BEARER)


async def test_of_many_that_come_at_once_for_one_server_one_is_taken(vault: Vault) -> None:
    outcomes = await asyncio.gather(*(vault.put(BEARER) for _ in range(6)), return_exceptions=True)
    refusals = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refusals) == 5
    assert all(isinstance(refusal, anthropic.ConflictError) for refusal in refusals)
    assert len(await vault.ids()) == 1


async def test_the_database_itself_refuses_a_second_credential_for_a_server(vault: Vault) -> None:
    await vault.put(BEARER)
    import psycopg

    with pytest.raises(psycopg.errors.UniqueViolation):
        await vault.api.database.execute(
            "insert into vault_credentials (id, vault_id, auth, key_hash)"
            " select 'vcrd_2', vault_id, auth, key_hash from vault_credentials"
        )


async def test_a_vault_has_room_for_twenty_active_credentials(vault: Vault) -> None:
    made = [await vault.put(at(number)) for number in range(20)]
    await refused(vault.put(at(20)), "at most 20 credentials")
    await vault.archive(made[0])
    outcomes = await asyncio.gather(*(vault.put(at(n)) for n in (20, 21, 22)), return_exceptions=True)
    assert sum(isinstance(outcome, anthropic.BadRequestError) for outcome in outcomes) == 2


async def test_archiving_purges_the_secrets_and_frees_the_key(vault: Vault) -> None:
    first = await vault.put(OAUTH)
    archived = await vault.archive(first)
    assert archived.archived_at is not None
    assert archived.auth == first.auth
    assert await vault.secrets(first) == {}
    assert await vault.archive(first) == archived
    second = await vault.put(BEARER)
    assert await vault.ids() == [second.id]
    assert await vault.ids(include_archived=True) == [second.id, first.id]
    await refused(vault.change(first, display_name="x"), "Credential is archived.")


async def test_a_deleted_credential_is_gone_and_frees_its_key(vault: Vault) -> None:
    made = await vault.put(BEARER)
    deleted = await vault.delete(made)
    assert deleted.to_dict() == {"id": made.id, "type": "vault_credential_deleted"}
    for request in (vault.get(made), vault.delete(made), vault.archive(made), vault.change(made)):
        await refused(request, made.id, "not found", kind=anthropic.NotFoundError)
    assert await vault.api.database.fetch("select 1 from vault_secrets") == []
    await vault.put(BEARER)


async def test_a_credential_is_found_in_its_own_vault_alone(vault: Vault) -> None:
    made = await vault.put(OAUTH)
    other = Vault(vault.api, (await vault.api.sdk.beta.vaults.create(display_name="W")).id)
    for request in (
        other.get(made),
        other.change(made, display_name="x"),
        other.archive(made),
        other.delete(made),
        other.validate(made),
    ):
        await refused(request, "not found", kind=anthropic.NotFoundError)
    assert await vault.get(made) == made


async def test_the_list_pages_newest_first(vault: Vault) -> None:
    ids = [(await vault.put(at(number))).id for number in range(5)]
    assert await vault.ids(limit=2) == ids[::-1]
    page = await vault.api.sdk.beta.vaults.credentials.list(vault.id, limit=2)
    other = (await vault.api.sdk.beta.vaults.create(display_name="W")).id
    await refused(
        vault.api.sdk.beta.vaults.credentials.list(other, page=page.next_page or ""), "invalid page cursor"
    )


async def test_a_rotation_replaces_what_is_sent_and_nothing_else(vault: Vault) -> None:
    made = await vault.put(OAUTH, metadata={"a": "1"}, display_name="Slack")
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    auth: Any = {"type": "mcp_oauth", "access_token": "hunter2-new", "expires_at": soon}
    changed = await vault.change(made, auth=auth)
    assert changed.auth.expires_at == soon
    assert changed.auth.refresh == made.auth.refresh
    assert (changed.display_name, changed.metadata) == ("Slack", {"a": "1"})
    assert changed.updated_at > made.updated_at
    assert await vault.secrets(made) == {
        "access_token": "hunter2-new",
        "refresh_token": "hunter2-refresh",
        "client_secret": "hunter2-client",
    }


async def test_an_update_that_changes_nothing_leaves_updated_at_and_the_same_secret_again_does_not(
    vault: Vault,
) -> None:
    made = await vault.put(VARIABLE)
    assert await vault.change(made, auth={"type": "environment_variable"}, metadata={}) == made
    again: Any = {"type": "environment_variable", "secret_value": "hunter2-value"}
    assert (await vault.change(made, auth=again)).updated_at > made.updated_at


async def test_a_name_is_cleared_by_null_and_metadata_is_patched(vault: Vault) -> None:
    made = await vault.put(BEARER, display_name="S", metadata={"a": "1", "b": "2"})
    changed = await vault.change(made, display_name=None, metadata={"a": None})
    assert (changed.display_name, changed.metadata) == (None, {"b": "2"})
    await refused(vault.change(made, display_name=""), "display_name: must have at least 1")


@pytest.mark.parametrize("field", ["mcp_server_url", "secret_name", "client_id"])
async def test_what_a_credential_is_found_by_cannot_be_changed(vault: Vault, field: str) -> None:
    made = await vault.put(BEARER)
    await refused(
        vault.change(made, auth={"type": "static_bearer", field: URL}), f"auth.{field}: Extra inputs"
    )
    await refused(vault.change(made, auth={"type": "mcp_oauth"}), "auth.type: cannot change")


async def test_a_refused_change_leaves_everything_as_it_was(vault: Vault) -> None:
    made = await vault.put(OAUTH)
    past: Any = {"type": "mcp_oauth", "access_token": "hunter2-new", "expires_at": "2020-01-01T00:00:00Z"}
    await refused(vault.change(made, auth=past), "auth.expires_at must be in the future.")
    assert await vault.get(made) == made
    assert (await vault.secrets(made))["access_token"] == "hunter2-access"


async def test_a_validation_is_refused_and_says_that_it_takes_a_gateway(vault: Vault) -> None:
    made, bearer = await vault.put(OAUTH), await vault.put(at(1))
    error = await refused(vault.validate(made), "gateway")
    assert error["details"]["error_code"] == "gateway_required"
    await refused(vault.validate(bearer), "mcp_oauth")
    await vault.archive(made)
    await refused(vault.validate(made), "Credential is archived.")


async def test_without_a_key_there_are_vaults_but_no_secret_is_taken(database: Database) -> None:
    async with running(database) as api:
        vault_id = (await api.sdk.beta.vaults.create(display_name="V")).id
        made = await Vault(api, vault_id).put(BEARER)
    async with running(database, vault_key=None) as api:
        vault = Vault(api, vault_id)
        token: Any = {"type": "static_bearer", "token": "hunter2-new"}
        for request in (vault.put(VARIABLE), vault.change(made, auth=token)):
            error = await refused(request, "CORRAL_VAULT__PUBLIC_KEY", "corral admin vault-key create")
            assert error["details"]["error_code"] == "vault_key_missing"
        assert await vault.ids() == [made.id]
        assert (await vault.change(made, display_name="renamed")).display_name == "renamed"
        await vault.archive(made)


async def test_the_first_vault_that_has_a_credential_for_a_server_wins(vault: Vault) -> None:
    api, credentials = vault.api, vault.api.services.vaults.credentials
    other = Vault(api, (await api.sdk.beta.vaults.create(display_name="W")).id)
    empty = (await api.sdk.beta.vaults.create(display_name="X")).id
    here, there = await vault.put(BEARER), await other.put(OAUTH)

    async def found(*vault_ids: str, url: str = "https://MCP.example.com:443/mcp/") -> str | None:
        credential = await credentials.for_server(vault_ids, url)
        return None if credential is None else credential.id

    assert await found(empty, vault.id, other.id) == here.id
    assert await found(other.id, vault.id) == there.id
    assert await found(empty) is None
    assert await found(vault.id, url="https://mcp.example.com/other") is None
    await vault.archive(here)
    assert await found(vault.id, other.id) == there.id


async def test_a_vault_archived_meanwhile_takes_no_credential(vault: Vault) -> None:
    """However the two are ordered, no secret is left in an archived vault."""
    params = decode(
        b'{"auth":{"type":"static_bearer","token":"t","mcp_server_url":"https://x.example"}}',
        CreateCredential,
    )
    await asyncio.gather(
        vault.api.services.vaults.archive(vault.id),
        *(vault.api.services.vaults.credentials.create(vault.id, params) for _ in range(3)),
        return_exceptions=True,
    )
    assert await vault.api.database.fetch("select 1 from vault_secrets") == []
