"""Secrets that live in a secret manager: a real OpenBao, a token for either side."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from anthropic import BadRequestError, InternalServerError
from msgspec import structs

from corral.gateway.secret_backends import open_backend
from corral.settings import SecretManager
from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.vault.keeping import remove_dropped
from corral.wire.secret import Secret
from tests.corral_server import running_corral
from tests.mcp_parts import gateway_at_work, mcp_server
from tests.secret_managers import Bao, openbao

from .mcp_house import KEY, McpHouse, calls, last_message, settings_with

WRITES = [("secret/data/corral/*", ["create", "update"]), ("secret/metadata/corral/*", ["delete"])]
READS = [*WRITES, ("secret/data/corral/*", ["create", "update", "read"])]


@dataclass(frozen=True)
class Banked:
    """A house whose secrets lie in a secret manager."""

    house: McpHouse
    bao: Bao
    server: SecretManager
    gateway: SecretManager

    async def kept(self) -> list[str]:
        """The credentials that the manager has something of."""
        return [name.strip("/") for name in await self.bao.kept("corral")]

    async def sweep(self) -> int:
        """What the server's job does."""
        async with open_backend(self.server) as backend:
            assert backend is not None
            return await remove_dropped(self.house.corral.database, backend)


@asynccontextmanager
async def banked(
    database_url: str, model: ScriptedModel, *, public_key: bool = True
) -> AsyncGenerator[Banked]:
    """Both sides name the same manager; each has a token of its own."""
    async with AsyncExitStack() as stack:
        bao = await stack.enter_async_context(openbao())
        at = SecretManager(kind="hashicorp", address=bao.address)
        ours = structs.replace(at, token=Secret(await bao.token(*WRITES)))
        theirs = structs.replace(at, token=Secret(await bao.token(*READS[1:])))
        server = await stack.enter_async_context(mcp_server(accepted=["hunter2-one"]))
        database = await stack.enter_async_context(Database(database_url))
        gateway = await stack.enter_async_context(gateway_at_work(database, KEY, secret_manager=theirs))
        settings = structs.replace(settings_with(gateway.url, model), secret_manager=ours)
        if not public_key:
            settings = structs.replace(settings, vault=structs.replace(settings.vault, public_key=None))
        corral = await stack.enter_async_context(running_corral(database_url, model, settings=settings))
        yield Banked(McpHouse(corral, gateway, server), bao, ours, theirs)


async def credential_of(at: Banked, vault_id: str) -> Any:
    [one] = [one async for one in at.house.corral.client.beta.vaults.credentials.list(vault_id)]
    return one


async def test_a_secret_is_used_from_the_manager_and_the_database_has_none(
    database_url: str, model: ScriptedModel
) -> None:
    async with banked(database_url, model, public_key=False) as at:
        vault = await at.house.vault({"type": "static_bearer", "token": "hunter2-one"})
        session = await at.house.session(vault_ids=[vault])
        await session.says("go", script=[calls("add", a=1, b=2), {"text": "used"}])
        await session.idle()
        assert await last_message(session) == "used"
        assert await session.events(types=["session.error"]) == []
        [row] = await at.house.corral.database.fetch("select key_id, sealed from vault_secrets")
        assert row["key_id"] == "backend:hashicorp"
        assert b"hunter2" not in bytes(row["sealed"])
        assert await at.kept() == [(await credential_of(at, vault)).id]


async def test_the_servers_token_cannot_read_what_it_wrote(database_url: str, model: ScriptedModel) -> None:
    async with banked(database_url, model) as at:
        await at.house.vault({"type": "static_bearer", "token": "hunter2-one"})
        [row] = await at.house.corral.database.fetch("select sealed from vault_secrets")
        lies = bytes(row["sealed"]).partition(b"\x00")[2].decode()
        assert at.server.token is not None
        assert at.gateway.token is not None
        refused = await at.bao.ask("GET", f"secret/data/{lies}", at.server.token.reveal())
        given = await at.bao.ask("GET", f"secret/data/{lies}", at.gateway.token.reveal())
        assert (refused.status_code, given.status_code) == (403, 200)


async def test_what_is_replaced_archived_or_deleted_is_removed_from_the_manager(
    database_url: str, model: ScriptedModel
) -> None:
    async with banked(database_url, model) as at:
        sdk: Any = at.house.corral.client.beta.vaults.credentials
        vault = await at.house.vault({"type": "static_bearer", "token": "hunter2-old"})
        credential = await credential_of(at, vault)
        folder = f"corral/{credential.id}/token"
        await sdk.update(
            credential.id, vault_id=vault, auth={"type": "static_bearer", "token": "hunter2-one"}
        )
        assert len(await at.bao.kept(folder)) == 2
        assert await at.sweep() == 1
        assert len(await at.bao.kept(folder)) == 1
        session = await at.house.session(vault_ids=[vault])
        await session.says("go", script=[calls("add", a=1, b=2), {"text": "used"}])
        await session.idle()
        assert await last_message(session) == "used"

        await sdk.archive(credential.id, vault_id=vault)
        assert await at.sweep() == 1
        other = await at.house.vault({"type": "static_bearer", "token": "hunter2-two"})
        await at.house.corral.client.beta.vaults.delete(other)
        assert await at.sweep() == 1
        assert await at.kept() == []
        assert await at.sweep() == 0


async def test_a_credential_that_is_refused_leaves_nothing_with_the_manager(
    database_url: str, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with banked(database_url, model) as at:
        vault = await at.house.vault({"type": "static_bearer", "token": "hunter2-one"})
        kept = await at.kept()
        await at.house.corral.database.execute(
            "create function no_more() returns trigger language plpgsql as"
            " $$ begin raise exception 'no more' using errcode = 'data_exception'; end $$;"
            "create trigger no_more before insert on vault_secrets execute function no_more()"
        )
        sdk: Any = at.house.corral.client.beta.vaults.credentials
        auth = {"type": "static_bearer", "token": "hunter2-two", "mcp_server_url": "https://two.example"}
        with pytest.raises(InternalServerError):
            await sdk.create(vault, auth=auth)
        assert await at.kept() == kept


async def test_a_manager_that_is_away_is_told_apart_from_one_that_refuses(
    database_url: str, model: ScriptedModel
) -> None:
    async with banked(database_url, model) as at:
        corral = at.house.corral
        auth: Any = {"type": "static_bearer", "token": "hunter2", "mcp_server_url": "https://a.example"}
        vault = (await corral.client.beta.vaults.create(display_name="V")).id
        async with httpx.AsyncClient() as client:
            revoked = await client.post(
                f"{at.bao.address}/v1/auth/token/revoke",
                headers={"x-vault-token": "root-of-the-test"},
                json={"token": at.server.token.reveal() if at.server.token else ""},
            )
        assert revoked.status_code == 204
        with pytest.raises(InternalServerError) as refused:
            await corral.client.beta.vaults.credentials.create(vault, auth=auth)
        assert (refused.value.status_code, "refuses" in str(refused.value)) == (500, True)
        assert "hunter2" not in str(refused.value)

    away = SecretManager(kind="hashicorp", address="http://127.0.0.1:9", token=Secret("any"))
    settings = structs.replace(settings_with(None, model), secret_manager=away)
    async with running_corral(database_url, model, settings=settings) as corral:
        vault = (await corral.client.beta.vaults.create(display_name="V")).id
        with pytest.raises(InternalServerError) as unreachable:
            await corral.client.beta.vaults.credentials.create(vault, auth=auth)
        assert unreachable.value.status_code == 529
        assert [one async for one in corral.client.beta.vaults.credentials.list(vault)] == []


async def test_secrets_stay_readable_where_they_are_when_the_manager_changes(
    database_url: str, model: ScriptedModel
) -> None:
    async with banked(database_url, model) as at:
        vault = await at.house.vault({"type": "static_bearer", "token": "hunter2-one"})
        sealed_here = structs.replace(settings_with(at.house.gateway.url, model))
        async with running_corral(database_url, model, settings=sealed_here) as later:
            sdk: Any = later.client.beta.vaults.credentials
            await sdk.create(
                vault,
                auth={"type": "static_bearer", "token": "sealed", "mcp_server_url": "https://b.example"},
            )
            with pytest.raises(BadRequestError):
                await sdk.create(vault, auth={"type": "static_bearer", "token": "", "mcp_server_url": "x"})
        session = await at.house.session(vault_ids=[vault])
        await session.says("go", script=[calls("add", a=1, b=2), {"text": "used"}])
        await session.idle()
        assert await last_message(session) == "used"
        found = await at.house.corral.database.fetch("select key_id from vault_secrets order by key_id")
        assert [row["key_id"] for row in found] == sorted([KEY.public.id, "backend:hashicorp"])
