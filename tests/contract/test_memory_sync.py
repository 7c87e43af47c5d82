"""Corral's worker keeping a store and its folder in step: which side counts, what the agent is told."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.memory_client import MemoryApi
from corral.hands.worker.memory_folder import MemoryFolder
from corral.hands.worker.memory_sync import StoreSync
from corral.hands.worker.pace import STANDARD
from corral.wire.secret import Secret

from .conftest import Api


class Both:
    """A store, and its folder on this machine."""

    def __init__(self, api: Api, http: httpx.AsyncClient, store_id: str, folder: Path) -> None:
        self.id = store_id
        self.folder = folder / "store"
        self.record = folder / "record.json"
        self._api = api
        self._http = http
        self._memories = api.sdk.beta.memory_stores.memories
        self.sync = self.anew()

    def anew(self, *, read_only: bool = False) -> StoreSync:
        """What a worker has that was started again."""
        work = WorkApi(self._http, self._api.base_url, "worker", STANDARD)
        api = MemoryApi(work, self.id, Secret(self._api.api_key))
        self.sync = StoreSync(
            api, MemoryFolder(self.folder), self.record, "/mnt/memory/notes", read_only=read_only
        )
        return self.sync

    async def store_has(self, path: str, content: str) -> None:
        for memory in await self._listed():
            if memory.path == path:
                await self._memories.update(memory.id, memory_store_id=self.id, content=content)
                return
        await self._memories.create(self.id, path=path, content=content)

    async def store_loses(self, path: str) -> None:
        [memory] = [memory for memory in await self._listed() if memory.path == path]
        await self._memories.delete(memory.id, memory_store_id=self.id)

    def folder_has(self, path: str, content: str) -> None:
        (self.folder / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path[1:]).write_text(content)

    def folder_loses(self, path: str) -> None:
        (self.folder / path[1:]).unlink()

    async def store(self) -> dict[str, str | None]:
        return {memory.path: memory.content for memory in await self._listed()}

    def local(self) -> dict[str, str]:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {f"/{path.relative_to(self.folder)}": path.read_text() for path in files}

    async def versions(self) -> int:
        listed = self._api.sdk.beta.memory_stores.memory_versions.list(self.id)
        return len([version async for version in listed])

    async def _listed(self):  # type: ignore[no-untyped-def]
        listed = self._memories.list(self.id, view="full")
        return [entry async for entry in listed if entry.type == "memory"]


@pytest_asyncio.fixture
async def both(api: Api, tmp_path: Path) -> AsyncIterator[Both]:
    """A store with a few memories, brought to this machine."""
    async with httpx.AsyncClient() as http:
        store = await api.sdk.beta.memory_stores.create(name="Notes")
        made = Both(api, http, store.id, tmp_path)
        for path in ("/a", "/b", "/deep/c"):
            await made.store_has(path, "old")
        await made.sync.exchange()
        assert made.local() == await made.store() == {"/a": "old", "/b": "old", "/deep/c": "old"}
        yield made


async def test_what_was_changed_here_is_saved_there(both: Both) -> None:
    both.folder_has("/a", "new")
    both.folder_has("/new/file", "made")
    both.folder_loses("/deep/c")
    await both.sync.write_back()
    assert await both.store() == both.local() == {"/a": "new", "/b": "old", "/new/file": "made"}
    assert both.sync.notes() == []
    versions = await both.versions()
    await both.sync.write_back()
    await both.sync.exchange()
    assert await both.versions() == versions


async def test_what_was_changed_there_comes_here(both: Both) -> None:
    await both.store_has("/a", "new")
    await both.store_has("/new/file", "made")
    await both.store_loses("/deep/c")
    await both.sync.exchange()
    assert both.local() == {"/a": "new", "/b": "old", "/new/file": "made"}
    assert not (both.folder / "deep").exists()
    assert both.sync.notes() == []


@pytest.mark.parametrize("by", ["write_back", "exchange"])
async def test_where_both_sides_changed_the_store_wins_and_the_agent_is_told(both: Both, by: str) -> None:
    await both.store_has("/a", "theirs")
    await both.store_has("/b", "theirs")
    await both.store_has("/new", "theirs")
    both.folder_has("/a", "ours")
    both.folder_has("/new", "ours")
    both.folder_loses("/b")
    await getattr(both.sync, by)()
    assert both.local() == await both.store()
    assert {both.local()[path] for path in ("/a", "/b", "/new")} == {"theirs"}
    notes = both.sync.notes()
    assert len(notes) == 3
    assert "it is back" in "".join(note for note in notes if note.startswith("/mnt/memory/notes/b: "))
    assert both.sync.notes() == []


async def test_a_file_that_was_changed_here_and_deleted_there_is_the_only_copy_and_made_anew(
    both: Both,
) -> None:
    for path, by in (("/a", both.sync.write_back), ("/b", both.sync.exchange)):
        await both.store_loses(path)
        both.folder_has(path, "ours")
        await by()
        assert (await both.store())[path] == "ours"
    assert both.local() == await both.store()


async def test_the_same_change_on_both_sides_is_no_conflict(both: Both) -> None:
    await both.store_has("/a", "same")
    both.folder_has("/a", "same")
    await both.store_loses("/b")
    both.folder_loses("/b")
    await both.sync.write_back()
    await both.sync.exchange()
    assert both.local() == await both.store() == {"/a": "same", "/deep/c": "old"}
    assert both.sync.notes() == []


async def test_a_worker_that_starts_again_knows_which_side_has_changed(both: Both) -> None:
    both.folder_has("/a", "ours")
    both.folder_loses("/b")
    await both.store_has("/deep/c", "theirs")
    await both.anew().exchange()
    assert both.local() == await both.store() == {"/a": "ours", "/deep/c": "theirs"}


async def test_without_its_record_a_folder_is_brought_anew(both: Both) -> None:
    both.folder_has("/left", "by whom?")
    both.record.write_text("{")
    await both.anew().exchange()
    assert both.local() == await both.store() == {"/a": "old", "/b": "old", "/deep/c": "old"}


async def test_a_read_only_store_is_never_written(both: Both) -> None:
    both.anew(read_only=True)
    versions = await both.versions()
    both.folder_has("/a", "ours")
    both.folder_has("/new", "ours")
    await both.store_has("/b", "theirs")
    await both.sync.write_back()
    await both.sync.exchange()
    assert await both.versions() == versions + 1
    assert both.local()["/b"] == "theirs"


async def test_what_cannot_be_a_memory_stays_here_and_the_agent_is_told_once(both: Both) -> None:
    (both.folder / "binary").write_bytes(b"\xff\xfe")
    both.folder_has("/large", "x" * 102_401)
    both.folder_loses("/a")
    both.folder_has("/a/b", "a folder in a file's place is fine")
    (both.folder / "link").symlink_to("/etc/passwd")
    await both.sync.write_back()
    notes = "\n".join(both.sync.notes())
    for part in ("/binary: it is not UTF-8", "/large: it has 102401 bytes", "/link: it is a link"):
        assert part in notes
    assert (await both.store()).keys() == {"/a/b", "/b", "/deep/c"}
    await both.sync.write_back()
    assert both.sync.notes() == []
    (both.folder / "binary").write_text("text now")
    await both.sync.write_back()
    assert (await both.store())["/binary"] == "text now"


async def test_a_path_that_overlaps_with_one_in_the_store_is_refused_and_told(both: Both) -> None:
    await both.store_has("/x", "a file there")
    both.folder_has("/x/y", "a folder here")
    await both.sync.write_back()
    [note] = both.sync.notes()
    assert "/mnt/memory/notes/x/y: " in note
    assert "/x/y" not in await both.store()


async def test_an_archived_or_deleted_store_is_told_of_when_something_changes(api: Api, both: Both) -> None:
    await api.sdk.beta.memory_stores.archive(both.id)
    both.folder_has("/a", "new")
    await both.sync.write_back()
    [note] = both.sync.notes()
    assert "archived" in note
    await api.sdk.beta.memory_stores.delete(both.id)
    await both.sync.exchange()
    both.folder_has("/a", "newer")
    both.folder_loses("/b")
    await both.sync.write_back()
    [note] = both.sync.notes()
    assert "deleted" in note
    assert both.local()["/a"] == "newer"


async def test_a_store_that_cannot_be_reached_loses_nothing(api: Api, both: Both) -> None:
    both.folder_has("/a", "ours")
    async with httpx.AsyncClient() as http:
        unreachable = MemoryApi(WorkApi(http, "http://127.0.0.1:9", "w", STANDARD), both.id, Secret("key"))
        sync = StoreSync(unreachable, MemoryFolder(both.folder), both.record, "/mnt", read_only=False)
        await sync.write_back()
        [note] = sync.notes()
        assert "tried again" in note
        with pytest.raises(ApiFailure):
            await sync.exchange()
    await both.anew().write_back()
    assert (await both.store())["/a"] == "ours"
