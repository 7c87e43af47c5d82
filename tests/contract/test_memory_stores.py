"""Memory stores through the official SDK (contract section 16.1)."""

from typing import Any

import anthropic
import pytest

from .conftest import Api
from .refusals import refused, undocumented


async def test_a_store_is_shown_as_it_was_made(api: Api) -> None:
    store = await api.sdk.beta.memory_stores.create(
        name="User Preferences", description="Per-user.", metadata={"user": "u1"}
    )
    assert store.id.startswith("memstore_")
    assert (store.type, store.name, store.description) == ("memory_store", "User Preferences", "Per-user.")
    assert (store.metadata, store.archived_at) == ({"user": "u1"}, None)
    assert store.created_at == store.updated_at
    assert await api.sdk.beta.memory_stores.retrieve(store.id) == store
    assert undocumented(store) == []


async def test_a_store_needs_no_more_than_a_name_that_others_may_have_too(api: Api) -> None:
    first = await api.sdk.beta.memory_stores.create(name="Notes")
    second = await api.sdk.beta.memory_stores.create(name="Notes")
    assert first.id != second.id
    assert (first.description, first.metadata) == ("", {})


async def test_an_update_keeps_what_is_absent_and_patches_the_metadata(api: Api) -> None:
    store = await api.sdk.beta.memory_stores.create(
        name="A", description="d", metadata={"a": "1", "b": "2", "c": "3"}
    )
    changed = await api.sdk.beta.memory_stores.update(store.id, metadata={"a": None, "b": "", "d": "4"})
    assert (changed.name, changed.description) == ("A", "d")
    assert changed.metadata == {"b": "", "c": "3", "d": "4"}
    assert changed.updated_at > store.updated_at
    assert (await api.sdk.beta.memory_stores.update(store.id, description="")).description == ""
    renamed = await api.sdk.beta.memory_stores.update(store.id, name="B", description="e")
    assert (renamed.name, renamed.description) == ("B", "e")
    assert (await api.sdk.beta.memory_stores.update(store.id, description=None)).description == ""


async def test_updated_at_moves_with_the_store_and_not_with_its_memories(api: Api) -> None:
    store = await api.sdk.beta.memory_stores.create(name="A")
    await api.sdk.beta.memory_stores.memories.create(store.id, path="/a", content="x")
    assert await api.sdk.beta.memory_stores.update(store.id, name="A") == store
    archived = await api.sdk.beta.memory_stores.archive(store.id)
    assert archived.archived_at == archived.updated_at


async def test_an_archived_store_is_read_only_but_can_be_emptied_and_deleted(api: Api) -> None:
    stores = api.sdk.beta.memory_stores
    store = await stores.create(name="A")
    memory = await stores.memories.create(store.id, path="/a", content="old")
    await stores.memories.update(memory.id, memory_store_id=store.id, content="new")
    archived = await stores.archive(store.id)
    assert await stores.archive(store.id) == archived

    await refused(stores.update(store.id, name="B"), store.id, "archived")
    await refused(stores.memories.create(store.id, path="/b", content=""), store.id, "archived")
    await refused(
        stores.memories.update(memory.id, memory_store_id=store.id, content="newer"), store.id, "archived"
    )
    assert (await stores.memories.retrieve(memory.id, memory_store_id=store.id)).content == "new"
    first = [v async for v in stores.memory_versions.list(store.id)][-1]
    assert (await stores.memory_versions.redact(first.id, memory_store_id=store.id)).path is None
    await stores.memories.delete(memory.id, memory_store_id=store.id)
    assert [m async for m in stores.memories.list(store.id)] == []
    await stores.delete(store.id)


async def test_deleting_a_store_removes_everything_in_it(api: Api) -> None:
    stores = api.sdk.beta.memory_stores
    store, other = await stores.create(name="A"), await stores.create(name="B")
    memory = await stores.memories.create(store.id, path="/a", content="x")
    kept = await stores.memories.create(other.id, path="/a", content="x")
    deleted = await stores.delete(store.id)
    assert deleted.to_dict() == {"id": store.id, "type": "memory_store_deleted"}
    for request in (
        stores.retrieve(store.id),
        stores.delete(store.id),
        stores.archive(store.id),
        stores.update(store.id, name="C"),
        stores.memories.list(store.id),
        stores.memories.create(store.id, path="/a", content=""),
        stores.memories.retrieve(memory.id, memory_store_id=store.id),
        stores.memory_versions.list(store.id),
        stores.memory_versions.retrieve(memory.memory_version_id, memory_store_id=store.id),
    ):
        await refused(request, "not found", kind=anthropic.NotFoundError)
    assert (
        await api.database.fetch_one("select 1 from memory_versions where store_id = %s", (store.id,)) is None
    )
    assert (await stores.memories.retrieve(kept.id, memory_store_id=other.id)).content == "x"


async def test_the_list_is_newest_first_and_hides_archived_stores_unless_asked(api: Api) -> None:
    stores = api.sdk.beta.memory_stores
    made = [await stores.create(name=f"S{i}") for i in range(4)]
    ids = [store.id for store in made]
    await stores.archive(ids[1])
    assert [s.id async for s in stores.list(limit=1)] == [ids[3], ids[2], ids[0]]
    assert [s.id async for s in stores.list(limit=3, include_archived=True)] == ids[::-1]
    late = stores.list(created_at_gte=made[2].created_at)
    assert [s.id async for s in late] == [ids[3], ids[2]]
    early = stores.list(created_at_lte=made[2].created_at, include_archived=True)
    assert [s.id async for s in early] == [ids[2], ids[1], ids[0]]
    page = await stores.list(limit=2)
    await refused(
        stores.list(limit=2, page=page.next_page or "", created_at_gte=made[3].created_at), "page cursor"
    )
    await refused(stores.list(page="nonsense"), "invalid page cursor")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "name: Field required"),
        ({"name": ""}, "name: must have at least 1 characters"),
        ({"name": "n" * 256}, "name: must have at most 255 characters"),
        ({"name": "a\nb"}, "name: holds a control character (U+000A at 1)"),
        ({"name": "a\x85"}, "name: holds a control character (U+0085 at 1)"),
        ({"name": "n", "description": "d" * 1025}, "description: must have at most 1024 characters"),
        ({"name": "n", "metadata": {"k": 1}}, "metadata.k: Input should be a valid string"),
        ({"name": "n", "metadata": {str(i): "v" for i in range(17)}}, "metadata: at most 16 pairs"),
        ({"name": "n", "path": "/"}, "path: Extra inputs"),
    ],
)
async def test_a_bad_store_is_refused_with_the_path_of_the_field(
    api: Api, fields: dict[str, Any], message: str
) -> None:
    response = await api.post("/v1/memory_stores", fields)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_there_are_at_most_a_thousand_stores(api: Api) -> None:
    await api.database.execute(
        "insert into memory_stores (id, name) select 'memstore_' || n, 'S' from generate_series(1, 999) n"
    )
    last = await api.sdk.beta.memory_stores.create(name="the thousandth")
    await refused(api.sdk.beta.memory_stores.create(name="one more"), "1000 memory stores", "Delete")
    await api.sdk.beta.memory_stores.delete(last.id)
    await api.sdk.beta.memory_stores.create(name="room again")


async def test_environment_and_pool_keys_reach_no_store(api: Api) -> None:
    store = await api.sdk.beta.memory_stores.create(name="A")
    environment = await api.environment()
    for key in (await api.environment_key(environment["id"]), await api.pool_key()):
        async with api.client(key) as worker:
            for request in (
                worker.beta.memory_stores.retrieve(store.id),
                worker.beta.memory_stores.list(),
                worker.beta.memory_stores.memories.list(store.id),
                worker.beta.memory_stores.memories.create(store.id, path="/a", content=""),
            ):
                await refused(request, kind=anthropic.PermissionDeniedError)


async def test_strict_mode_wants_one_of_the_two_beta_headers_and_never_both(strict_api: Api) -> None:
    for value, status in (
        ("agent-memory-2026-07-22", 200),
        ("managed-agents-2026-04-01", 200),
        ("agent-memory-2026-07-22,managed-agents-2026-04-01", 400),
        ("files-api-2025-04-14", 404),
        ("", 404),
    ):
        response = await strict_api.get("/v1/memory_stores", headers={"anthropic-beta": value})
        assert response.status_code == status, value
    both = {"anthropic-beta": "agent-memory-2026-07-22,managed-agents-2026-04-01"}
    assert (await strict_api.get("/v1/agents", headers=both)).status_code == 200
    assert (
        await strict_api.get("/v1/agents", headers={"anthropic-beta": "agent-memory-2026-07-22"})
    ).status_code == 404


async def test_without_strict_mode_any_beta_header_will_do(api: Api) -> None:
    both = {"anthropic-beta": "agent-memory-2026-07-22,managed-agents-2026-04-01"}
    assert (await api.get("/v1/memory_stores", headers=both)).status_code == 200
