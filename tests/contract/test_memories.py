"""Memories through the official SDK (contract section 16.2)."""

import asyncio
import hashlib
from typing import Any

import anthropic
import pytest

from .conftest import Api
from .refusals import refused, undocumented


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


class Store:
    """A fresh store, and the SDK's memory calls on it."""

    def __init__(self, api: Api, store_id: str) -> None:
        self.id = store_id
        self.memories = api.sdk.beta.memory_stores.memories
        self.versions = api.sdk.beta.memory_stores.memory_versions

    @staticmethod
    async def made(api: Api, *paths: str) -> "Store":
        store = Store(api, (await api.sdk.beta.memory_stores.create(name="Store")).id)
        for path in paths:
            await store.put(path)
        return store

    async def put(self, path: str, content: str | None = None) -> Any:
        return await self.memories.create(self.id, path=path, content=path if content is None else content)

    async def get(self, memory_id: str) -> Any:
        return await self.memories.retrieve(memory_id, memory_store_id=self.id)

    async def update(self, memory_id: str, **fields: Any) -> Any:
        return await self.memories.update(memory_id, memory_store_id=self.id, **fields)

    async def history(self, memory_id: str) -> list[Any]:
        listed = self.versions.list(self.id, memory_id=memory_id)
        return [version async for version in listed]

    async def entries(self, **query: Any) -> list[str]:
        return [entry.path async for entry in self.memories.list(self.id, **query)]

    async def contents(self, **query: Any) -> list[str | None]:
        listed = [entry async for entry in self.memories.list(self.id, **query)]
        return [entry.content for entry in listed if entry.type == "memory"]


def precondition(content: str) -> Any:
    return {"type": "content_sha256", "content_sha256": sha(content)}


async def test_a_memory_is_kept_byte_for_byte(api: Api) -> None:
    store = await Store.made(api)
    content = "tabs\r\n\u0001 cafe\u0301 \U0001f600 \ufeff end "
    created = await store.put("/preferences/formatting.md", content)
    assert created.id.startswith("mem_")
    assert created.memory_version_id.startswith("memver_")
    assert (created.type, created.memory_store_id, created.content) == ("memory", store.id, None)
    assert created.content_size_bytes == len(content.encode())
    assert created.content_sha256 == sha(content)
    assert created.created_at == created.updated_at
    read = await store.get(created.id)
    assert read.content == content
    assert undocumented(read) == []
    empty = await store.put("/empty", "")
    assert (empty.content_size_bytes, empty.content_sha256) == (0, sha(""))
    assert (await store.get(empty.id)).content == ""


async def test_the_view_says_whether_the_content_comes_along(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.memories.create(store.id, path="/a", content="x", view="full")
    assert memory.content == "x"
    basic = await store.memories.retrieve(memory.id, memory_store_id=store.id, view="basic")
    assert basic.content is None
    assert (await store.update(memory.id, content="y")).content is None
    assert (await store.update(memory.id, content="z", view="full")).content == "z"
    assert (await store.update(memory.id, content="z")).content is None
    assert await store.contents() == [None]
    assert await store.contents(view="full") == ["z"]
    bad: Any = "some"
    await refused(store.memories.list(store.id, view=bad), "view:", "some")


async def test_creating_at_a_used_path_never_overwrites(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a/b", "first")
    for path in ("/a/b", "/a", "/a/b/c"):
        error = await refused(store.put(path, "second"), path, kind=anthropic.ConflictError)
        assert error["type"] == "memory_path_conflict_error"
        assert (error["conflicting_memory_id"], error["conflicting_path"]) == (memory.id, "/a/b")
    assert (await store.get(memory.id)).content == "first"
    await store.put("/A/b", "paths are case-sensitive")
    await store.put("/a-b", "and no prefix without its slash")
    other = await Store.made(api)
    await other.put("/a/b", "and a store's own")


async def test_two_writers_of_one_path_at_once_make_one_memory(api: Api) -> None:
    store = await Store.made(api)
    paths = ["/race"] * 6 + ["/race/below", "/race/below/further"]
    made = await asyncio.gather(*(store.put(path) for path in paths), return_exceptions=True)
    losers = [outcome for outcome in made if isinstance(outcome, anthropic.ConflictError)]
    assert len(losers) == len(paths) - 1
    assert len(await store.entries()) == 1


async def test_of_two_updates_from_one_reading_one_wins(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "0")
    updates = (store.update(memory.id, content=str(i), precondition=precondition("0")) for i in range(1, 9))
    outcomes = await asyncio.gather(*updates, return_exceptions=True)
    winners = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert len(winners) == 1
    losers = [outcome for outcome in outcomes if isinstance(outcome, anthropic.ConflictError)]
    assert len(losers) == 7
    assert len(await store.history(memory.id)) == 2


async def test_a_rename_keeps_the_id_and_the_content(api: Api) -> None:
    store = await Store.made(api, "/taken/x")
    memory = await store.put("/a", "text")
    moved = await store.update(memory.id, path="/b/c")
    assert (moved.id, moved.path, moved.content_sha256) == (memory.id, "/b/c", sha("text"))
    assert moved.memory_version_id != memory.memory_version_id
    assert moved.updated_at > memory.updated_at
    assert moved.created_at == memory.created_at
    for path in ("/taken/x", "/taken", "/taken/x/y"):
        error = await refused(store.update(memory.id, path=path), kind=anthropic.ConflictError)
        assert error["type"] == "memory_path_conflict_error"
        assert error["conflicting_path"] == "/taken/x"
    # Not in its own way: a folder below where it was.
    assert (await store.update(memory.id, path="/b/c/d", content="both")).path == "/b/c/d"
    assert (await store.get(memory.id)).content == "both"


async def test_an_update_that_changes_nothing_leaves_no_version(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "x")
    for fields in (
        {},
        {"content": "x"},
        {"path": "/a"},
        {"content": None, "path": None},
        # What was asked for is there already, so it does not matter who wrote it.
        {"content": "x", "precondition": precondition("something else")},
    ):
        assert await store.update(memory.id, **fields) == memory
    assert len(await store.history(memory.id)) == 1


async def test_a_precondition_is_about_the_content_before_the_update(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "x")
    error = await refused(
        store.update(memory.id, content="y", precondition=precondition("y")),
        memory.id,
        sha("x"),
        kind=anthropic.ConflictError,
    )
    assert error["type"] == "memory_precondition_failed_error"
    await refused(
        store.update(memory.id, path="/b", precondition=precondition("y")), kind=anthropic.ConflictError
    )
    changed = await store.update(memory.id, path="/b", content="y", precondition=precondition("x"))
    assert (changed.path, changed.content_sha256) == ("/b", sha("y"))


async def test_patch_is_taken_for_an_update_too(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "x")
    response = await api.http.patch(
        f"/v1/memory_stores/{store.id}/memories/{memory.id}", json={"content": "y"}
    )
    assert response.json()["content_sha256"] == sha("y")


async def test_a_deletion_can_be_made_to_depend_on_the_content(api: Api) -> None:
    store = await Store.made(api)
    memory = await store.put("/a", "x")

    def delete(expected: str) -> Any:
        return store.memories.delete(memory.id, memory_store_id=store.id, expected_content_sha256=expected)

    error = await refused(delete(sha("y")), memory.id, kind=anthropic.ConflictError)
    assert error["type"] == "memory_precondition_failed_error"
    await refused(delete("x"), "expected_content_sha256: must be 64")
    assert (await delete(sha("x"))).to_dict() == {"id": memory.id, "type": "memory_deleted"}
    await refused(delete(sha("x")), memory.id, kind=anthropic.NotFoundError)
    await refused(store.update(memory.id, content="z"), memory.id, kind=anthropic.NotFoundError)
    assert (await store.put("/a", "again")).id != memory.id


async def test_a_memory_is_reached_through_its_own_store_only(api: Api) -> None:
    store, other = await Store.made(api), await Store.made(api)
    memory = await store.put("/a", "x")
    for request in (
        other.get(memory.id),
        other.update(memory.id, content="y"),
        other.memories.delete(memory.id, memory_store_id=other.id),
        other.versions.retrieve(memory.memory_version_id, memory_store_id=other.id),
        other.versions.redact(memory.memory_version_id, memory_store_id=other.id),
    ):
        await refused(request, "not found", kind=anthropic.NotFoundError)


async def test_the_list_is_in_the_order_of_the_paths_bytes(api: Api) -> None:
    paths = ["/Z", "/a", "/a-b", "/a.md", "/aa/x", "/b/c", "/é", "/日本", "/\U0001f600"]
    store = await Store.made(api, *reversed(paths))
    assert paths == sorted(paths, key=str.encode)
    assert await store.entries() == paths
    for limit in (1, 2, 4):
        assert await store.entries(limit=limit) == paths


async def test_a_prefix_matches_whole_segments(api: Api) -> None:
    store = await Store.made(
        api, "/notes/todo.md", "/notes/deep/x", "/notes-archive/todo.md", "/notes0", "/z"
    )
    assert await store.entries(path_prefix="/notes/") == ["/notes/deep/x", "/notes/todo.md"]
    assert await store.entries(path_prefix="/notes/", limit=1) == ["/notes/deep/x", "/notes/todo.md"]
    assert await store.entries(path_prefix="/notes/todo.md/") == []
    assert len(await store.entries(path_prefix="/")) == 5
    for prefix in ("/notes", "notes/", "//"):
        await refused(store.memories.list(store.id, path_prefix=prefix), "path_prefix:")


async def test_depth_1_rolls_up_what_lies_deeper_and_pages_across_it(api: Api) -> None:
    store = await Store.made(
        api, "/a-b", "/a/1", "/a/2/x", "/a/2/y", "/a/3", "/a0", "/b/c/d/e", "/b/f", "/c", "/é/x"
    )
    top = ["/a-b", "/a/", "/a0", "/b/", "/c", "/é/"]
    for limit in range(1, 8):
        assert await store.entries(depth=1, limit=limit) == top
    inside = ["/a/1", "/a/2/", "/a/3"]
    for limit in (1, 2, 3):
        assert await store.entries(depth=1, path_prefix="/a/", limit=limit) == inside
    assert await store.entries(depth=1, path_prefix="/é/") == ["/é/x"]
    listed = [entry async for entry in store.memories.list(store.id, depth=1, path_prefix="/b/", view="full")]
    assert listed[0].to_dict() == {"type": "memory_prefix", "path": "/b/c/"}
    assert (listed[1].type, listed[1].path) == ("memory", "/b/f")
    page = await store.memories.list(store.id, depth=1, limit=2)
    assert [entry.path for entry in page.data] == ["/a-b", "/a/"]
    assert len(await store.entries(depth=0)) == 10
    await refused(store.memories.list(store.id, depth=2), "depth: must be between 0 and 1")


async def test_pages_hold_under_changes_in_between(api: Api) -> None:
    store = await Store.made(api, "/b", "/d", "/f")
    page = await store.memories.list(store.id, limit=2)
    await store.put("/a")
    await store.put("/e")
    await store.memories.delete(page.data[1].to_dict()["id"], memory_store_id=store.id)  # type: ignore[arg-type]
    rest = await page.get_next_page()
    assert [entry.path for entry in rest.data] == ["/e", "/f"]


async def test_with_contents_a_page_holds_twenty(api: Api) -> None:
    store = await Store.made(api, *(f"/{n:02}" for n in range(25)))
    full = await store.memories.list(store.id, view="full", limit=100)
    assert (len(full.data), full.next_page is None) == (20, False)
    assert await store.contents(view="full") == [f"/{n:02}" for n in range(25)]
    assert len((await store.memories.list(store.id)).data) == 20
    assert len((await store.memories.list(store.id, limit=100)).data) == 25
    await refused(store.memories.list(store.id, limit=101), "limit: must be between")


async def test_a_cursor_belongs_to_its_store(api: Api) -> None:
    store, other = await Store.made(api, "/a", "/b"), await Store.made(api, "/a", "/b")
    page = await store.memories.list(store.id, limit=1)
    assert page.next_page is not None
    await refused(other.memories.list(other.id, page=page.next_page), "invalid page cursor")
    await refused(store.memories.list(store.id, page="x"), "invalid page cursor")


async def test_a_store_holds_two_thousand_memories(api: Api) -> None:
    store = await Store.made(api)
    await fill(api, store.id, count=1999, size=1)
    last = await store.put("/last")
    await refused(store.put("/more"), store.id, "2000 memories", "Delete")
    await store.update(last.id, path="/renamed", content="a full store can still be changed")
    await store.memories.delete(last.id, memory_store_id=store.id)
    await store.put("/more")


async def test_a_store_holds_a_hundred_megabytes(api: Api) -> None:
    store = await Store.made(api)
    await fill(api, store.id, count=1, size=100 * 1024 * 1024 - 10)
    memory = await store.put("/a", "12345")
    await refused(store.put("/b", "123456"), store.id, "104857600 bytes")
    await refused(store.update(memory.id, content="12345678901"), store.id, "104857600 bytes")
    assert (await store.update(memory.id, content="1234567890")).content_size_bytes == 10
    assert (await store.update(memory.id, content="1")).content_size_bytes == 1


async def fill(api: Api, store_id: str, *, count: int, size: int) -> None:
    """Memories of which only the size is true."""
    await api.database.execute(
        "with v as (insert into memory_versions (id, store_id, memory_id, operation, path, content)"
        " select 'memver_' || n, %(store)s, 'mem_' || n, 'created', '/filler/' || n, ''"
        " from generate_series(1, %(count)s) n returning id, memory_id, path)"
        " insert into memories (id, store_id, path, content_sha256, content_size_bytes, version_id,"
        " created_at, updated_at) select memory_id, %(store)s, path, '', %(size)s, id, now(), now() from v",
        {"store": store_id, "count": count, "size": size},
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"path": "a", "content": ""}, "path: must start with /"),
        ({"path": "/a\u0000", "content": ""}, "path: holds a NUL character"),
        ({"path": "/cafe\u0301", "content": ""}, "path: must be in Unicode Normalization Form C"),
        ({"path": "/a", "content": "x" * 102_401}, "content: must have at most 102400 bytes"),
        ({"path": "/a", "content": "a\u0000b"}, "content: holds a NUL character"),
        ({"path": "/a", "content": 1}, "content: Input should be a valid string"),
        ({"path": "/a"}, "content: Field required"),
        ({"path": "/a", "content": "", "view": "full"}, "view: Extra inputs"),
    ],
)
async def test_a_bad_memory_is_refused_with_the_path_of_the_field(
    api: Api, body: dict[str, Any], message: str
) -> None:
    store = await Store.made(api)
    response = await api.post(f"/v1/memory_stores/{store.id}/memories", body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert await store.entries() == []


async def test_the_largest_content_and_the_longest_path_are_taken(api: Api) -> None:
    store = await Store.made(api)
    path = "/" + "é" * 511 + "x"
    memory = await store.put(path, "é" * 51_200)
    assert memory.content_size_bytes == 102_400
    await store.put("/zzz")
    assert await store.entries(limit=1) == ["/zzz", path]
