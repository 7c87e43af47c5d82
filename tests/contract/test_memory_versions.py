"""The history of memories through the official SDK (contract section 16.3)."""

from typing import Any

from anthropic import NotFoundError

from .conftest import Api
from .refusals import refused, undocumented
from .test_memories import Store, precondition, sha


async def test_every_change_leaves_a_version_newest_first(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "one")
    changed = await store.update(memory.id, content="three")
    moved = await store.update(memory.id, path="/b")
    await store.memories.delete(memory.id, memory_store_id=store.id)
    history = await store.history(memory.id)
    assert [(v.operation, v.path, v.content_size_bytes) for v in history] == [
        ("deleted", "/b", None),
        ("modified", "/b", 5),
        ("modified", "/a", 5),
        ("created", "/a", 3),
    ]
    assert [v.content_sha256 for v in history] == [None, sha("three"), sha("three"), sha("one")]
    ids = [v.id for v in history]
    assert ids[1:] == [moved.memory_version_id, changed.memory_version_id, memory.memory_version_id]
    assert {v.memory_id for v in history} == {memory.id}
    assert all(v.content is None and v.redacted_at is None for v in history)
    assert undocumented(history) == []
    assert changed.updated_at == history[2].created_at


async def test_a_version_shows_its_content_in_the_full_view(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "one")
    await store.update(memory.id, content="two")
    version = await store.versions.retrieve(memory.memory_version_id, memory_store_id=store.id)
    assert (version.content, version.path, version.operation) == ("one", "/a", "created")
    basic = await store.versions.retrieve(memory.memory_version_id, memory_store_id=store.id, view="basic")
    assert (basic.content, basic.content_sha256) == (None, sha("one"))
    full = [v.content async for v in store.versions.list(store.id, view="full")]
    assert full == ["two", "one"]
    await refused(
        store.versions.retrieve("memver_unknown", memory_store_id=store.id),
        "memver_unknown",
        kind=NotFoundError,
    )


async def test_a_version_names_the_key_that_made_it(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "one")
    [version] = await store.history(memory.id)
    assert version.created_by.to_dict()["type"] == "api_actor"
    key_id = version.created_by.to_dict()["api_key_id"]
    assert await api.services.keys.verify(api.api_key) is not None
    other_key, secret = await api.services.keys.create("api", "other")
    async with api.client(secret) as other:
        await other.beta.memory_stores.memories.update(memory.id, memory_store_id=store.id, content="two")
    by_key = [v.operation async for v in store.versions.list(store.id, api_key_id=key_id)]
    by_other = [v.operation async for v in store.versions.list(store.id, api_key_id=other_key.id)]
    assert (by_key, by_other) == (["created"], ["modified"])


async def test_the_list_is_narrowed_by_its_filters(api: Api) -> None:
    store = await Store.made(api, "/a", "/b", "/c")
    listed: list[Any] = [m async for m in store.memories.list(store.id)]
    a, b, c = listed
    await store.update(a.id, content="x")
    await store.memories.delete(b.id, memory_store_id=store.id)

    async def found(**query: Any) -> list[tuple[str, str]]:
        versions = store.versions.list(store.id, **query)
        return [(v.operation, v.memory_id) async for v in versions]

    assert await found(memory_id=a.id) == [("modified", a.id), ("created", a.id)]
    assert await found(memory_id=b.id, operation="deleted") == [("deleted", b.id)]
    assert await found(operation="created", limit=2) == [("created", m.id) for m in (c, b, a)]
    assert await found(session_id="sesn_unknown") == []
    assert await found(service_account_id="svac_1") == []
    assert await found(memory_id="mem_unknown") == []
    everything = [v async for v in store.versions.list(store.id, limit=2)]
    assert len(everything) == 5
    middle = everything[2]
    assert len(await found(created_at_gte=middle.created_at)) == 3
    assert len(await found(created_at_lte=middle.created_at)) == 3
    unknown: Any = "renamed"
    await refused(store.versions.list(store.id, operation=unknown), "operation:")


async def test_with_contents_a_page_of_versions_holds_twenty(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "0")
    for n in range(1, 22):
        await store.update(memory.id, content=str(n), precondition=precondition(str(n - 1)))
    page = await store.versions.list(store.id, view="full", limit=100)
    assert len(page.data) == 20
    rest = await page.get_next_page()
    assert [v.content for v in rest.data] == ["1", "0"]
    assert len((await store.versions.list(store.id, limit=100)).data) == 22


async def test_a_redacted_version_has_lost_its_content_and_path_for_good(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/secret", "password")
    await store.update(memory.id, content="gone", path="/a")
    version_id = memory.memory_version_id
    redacted = await store.versions.redact(version_id, memory_store_id=store.id)
    assert (redacted.content, redacted.path, redacted.content_sha256) == (None, None, None)
    assert (redacted.content_size_bytes, redacted.operation) == (None, "created")
    assert redacted.redacted_at is not None
    assert redacted.redacted_by == redacted.created_by
    assert undocumented(redacted) == []
    assert await store.versions.redact(version_id, memory_store_id=store.id) == redacted
    assert await store.versions.retrieve(version_id, memory_store_id=store.id) == redacted
    row = await api.database.fetch_one(
        "select 1 from memory_versions where path = '/secret' or content = 'password'"
    )
    assert row is None
    assert (await store.get(memory.id)).content == "gone"


async def test_the_version_that_a_memory_lives_on_cannot_be_redacted(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "x")
    redact = store.versions.redact
    await refused(redact(memory.memory_version_id, memory_store_id=store.id), memory.id, "current content")
    await store.memories.delete(memory.id, memory_store_id=store.id)
    for version in await store.history(memory.id):
        assert (await redact(version.id, memory_store_id=store.id)).path is None
    await refused(redact("memver_unknown", memory_store_id=store.id), "not found", kind=NotFoundError)
