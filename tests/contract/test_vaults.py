"""Vaults through the official SDK (contract section 15.1), and sessions that name them."""

from typing import Any

import anthropic
import pytest

from .conftest import Api
from .refusals import refused, undocumented

UNKNOWN = "vlt_01AAAAAAAAAAAAAAAAAAAAAA"


async def vault(api: Api, name: str = "V") -> str:
    """A new vault's id."""
    return (await api.sdk.beta.vaults.create(display_name=name)).id


async def put(api: Api, vault_id: str, name: str = "mcp") -> Any:
    """A new credential in a vault."""
    return await api.sdk.beta.vaults.credentials.create(
        vault_id,
        auth={"type": "static_bearer", "token": "hunter2", "mcp_server_url": f"https://{name}.example.com"},
    )


async def test_a_vault_is_made_retrieved_and_has_nothing_that_is_not_documented(api: Api) -> None:
    made = await api.sdk.beta.vaults.create(display_name="Alice", metadata={"external_user_id": "usr_abc"})
    assert made.id.startswith("vlt_01")
    assert (made.type, made.display_name, made.metadata) == (
        "vault",
        "Alice",
        {"external_user_id": "usr_abc"},
    )
    assert (made.archived_at, made.updated_at) == (None, made.created_at)
    assert undocumented(made) == []
    assert await api.sdk.beta.vaults.retrieve(made.id) == made
    assert (await api.sdk.beta.vaults.create(display_name="Alice")).metadata == {}


async def test_an_update_keeps_what_is_absent_and_patches_metadata(api: Api) -> None:
    made = await api.sdk.beta.vaults.create(display_name="V", metadata={"a": "1", "b": "2"})
    updated = await api.sdk.beta.vaults.update(made.id, metadata={"a": None, "c": "3"})
    assert (updated.display_name, updated.metadata) == ("V", {"b": "2", "c": "3"})
    assert updated.updated_at > made.updated_at
    assert await api.sdk.beta.vaults.update(made.id, display_name=None, metadata=None) == updated
    assert (await api.sdk.beta.vaults.update(made.id, display_name="W")).display_name == "W"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "display_name: Field required"),
        ({"display_name": None}, "display_name: Input should be a valid string"),
        ({"display_name": ""}, "display_name: must have at least 1 characters"),
        ({"display_name": "n" * 256}, "display_name: must have at most 255 characters"),
        ({"display_name": "a\x00"}, "display_name: holds a NUL"),
        ({"display_name": "a", "name": "b"}, "name: Extra inputs are not permitted"),
        ({"display_name": "a", "metadata": {"k": "v" * 513}}, "metadata.k: must have at most 512"),
        ({"display_name": "a", "metadata": {str(i): "v" for i in range(17)}}, "metadata: at most 16 pairs"),
    ],
)
async def test_a_bad_vault_is_refused_with_the_path_of_the_field(
    api: Api, fields: dict[str, Any], message: str
) -> None:
    response = await api.post("/v1/vaults", fields)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_the_list_is_newest_first_and_hides_archived_vaults_unless_asked(api: Api) -> None:
    ids = [await vault(api, f"V{number}") for number in range(4)]
    await api.sdk.beta.vaults.archive(ids[1])
    assert [v.id async for v in api.sdk.beta.vaults.list(limit=1)] == [ids[3], ids[2], ids[0]]
    assert [v.id async for v in api.sdk.beta.vaults.list(limit=3, include_archived=True)] == ids[::-1]
    assert (await api.get("/v1/vaults")).json()["next_page"] is None
    await refused(api.sdk.beta.vaults.list(page="nonsense"), "invalid page cursor")
    assert (await api.get("/v1/vaults?limit=101")).status_code == 400


async def test_archiving_a_vault_archives_its_credentials_and_purges_their_secrets(api: Api) -> None:
    vault_id, other = await vault(api), await vault(api)
    credential, kept = await put(api, vault_id), await put(api, other)
    archived = await api.sdk.beta.vaults.archive(vault_id)
    assert archived.archived_at is not None
    assert await api.sdk.beta.vaults.archive(vault_id) == archived
    shown = await api.sdk.beta.vaults.credentials.retrieve(credential.id, vault_id=vault_id)
    assert shown.archived_at == archived.archived_at
    secrets = await api.database.fetch("select credential_id from vault_secrets")
    assert [row["credential_id"] for row in secrets] == [kept.id]


async def test_an_archived_vault_takes_no_change_and_no_credential(api: Api) -> None:
    vault_id = await vault(api)
    await api.sdk.beta.vaults.archive(vault_id)
    await refused(api.sdk.beta.vaults.update(vault_id, display_name="W"), vault_id, "is archived")
    await refused(put(api, vault_id), vault_id, "is archived")


async def test_a_deleted_vault_is_gone_with_all_that_was_in_it(api: Api) -> None:
    vault_id = await vault(api)
    credential = await put(api, vault_id)
    deleted = await api.sdk.beta.vaults.delete(vault_id)
    assert deleted.to_dict() == {"id": vault_id, "type": "vault_deleted"}
    for request in (
        api.sdk.beta.vaults.retrieve(vault_id),
        api.sdk.beta.vaults.delete(vault_id),
        api.sdk.beta.vaults.archive(vault_id),
        api.sdk.beta.vaults.update(vault_id, display_name="W"),
        api.sdk.beta.vaults.credentials.list(vault_id),
        api.sdk.beta.vaults.credentials.retrieve(credential.id, vault_id=vault_id),
        put(api, vault_id),
    ):
        await refused(request, "not found", kind=anthropic.NotFoundError)
    assert await api.database.fetch("select 1 from vault_secrets") == []


async def test_no_worker_reaches_a_vault(api: Api) -> None:
    vault_id = await vault(api)
    environment = await api.environment()
    for key in (await api.environment_key(environment["id"]), await api.pool_key()):
        async with api.client(key) as worker:
            for request in (
                worker.beta.vaults.retrieve(vault_id),
                worker.beta.vaults.list(),
                worker.beta.vaults.credentials.list(vault_id),
            ):
                await refused(request, kind=anthropic.PermissionDeniedError)


async def test_a_session_keeps_the_order_of_its_vaults(api: Api) -> None:
    ids = [await vault(api) for _ in range(3)]
    order = [ids[2], ids[0], ids[1]]
    made = await api.session(vault_ids=order)
    assert made["vault_ids"] == order
    assert (await api.sdk.beta.sessions.retrieve(made["id"])).vault_ids == order
    assert (await api.sdk.beta.sessions.list()).data[0].vault_ids == order


async def test_a_vault_that_is_unknown_or_archived_makes_no_session(api: Api) -> None:
    good, old = await vault(api), await vault(api)
    await api.sdk.beta.vaults.archive(old)
    agent, environment = await api.agent(), await api.environment()
    where = {"agent": agent["id"], "environment_id": environment["id"]}

    def create(*vault_ids: str) -> Any:
        return api.sdk.beta.sessions.create(**where, vault_ids=list(vault_ids))

    await refused(create(good, UNKNOWN), "vault_ids[1]", UNKNOWN, kind=anthropic.NotFoundError)
    await refused(create(good, old), "vault_ids[1]", old, "is archived")
    await refused(create(*[good] * 51), "vault_ids: must have at most 50 items")
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_a_session_outlives_its_vaults(api: Api) -> None:
    archived, deleted = await vault(api), await vault(api)
    session = await api.session(vault_ids=[archived, deleted])
    await api.sdk.beta.vaults.archive(archived)
    await api.sdk.beta.vaults.delete(deleted)
    assert (await api.sdk.beta.sessions.retrieve(session["id"])).vault_ids == [archived, deleted]


async def test_strict_mode_wants_the_beta_header(strict_api: Api) -> None:
    assert (await strict_api.get("/v1/vaults")).status_code == 404
    assert (await strict_api.sdk.beta.vaults.list()).data == []
