"""What the official worker mounts memory stores with, unmodified, against this server (contract 12.4)."""

import logging
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools._memories import SessionMemoryStores

from .conftest import Api
from .test_memory_sessions import attached, made_store, work_token


class Mounted:
    """The stores of a session as the official worker keeps them on disk."""

    def __init__(self, stores: SessionMemoryStores, root: Path) -> None:
        self.stores = stores
        self.root = root

    @staticmethod
    async def at(root: Path, api: Api, worker: Any, session_id: str) -> "Mounted":
        session = await worker.beta.sessions.retrieve(session_id)
        # Below a directory of the test's own instead of the machine's /mnt/memory.
        for resource in session.resources:
            resource.mount_path = str(root / Path(resource.mount_path).name)
        stores = SessionMemoryStores(worker, workdir=root)
        await stores.download(session)
        return Mounted(stores, root)


async def contents(api: Api, store_id: str) -> dict[str, str | None]:
    listed = api.sdk.beta.memory_stores.memories.list(store_id, view="full")
    return {entry.path: entry.content async for entry in listed if entry.type == "memory"}


async def test_stores_come_down_and_changes_go_back_as_the_sessions(
    api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    notes, rules = await made_store(api, "Notes"), await made_store(api, "Rules")
    memories = api.sdk.beta.memory_stores.memories
    for n in range(45):  # more than two pages
        await memories.create(notes, path=f"/deep/{n:02}.md", content=f"é{n}")
    await memories.create(rules, path="/rule", content="fixed")
    session = await api.session(resources=[attached(notes), attached(rules, access="read_only")])
    async with work_token(api, session) as worker:
        mounted = await Mounted.at(tmp_path, api, worker, session["id"])
        folder = tmp_path / "notes"
        assert (folder / "deep/44.md").read_text() == "é44"
        assert (tmp_path / "rules/rule").read_text() == "fixed"
        (folder / "deep/00.md").write_text("changed")
        (folder / "new").mkdir()
        (folder / "new/file.md").write_text("made")
        (folder / "deep/01.md").unlink()
        (tmp_path / "rules/rule").write_text("broken")
        await mounted.stores.finish()
        await mounted.stores.dispose()
    assert not folder.exists()
    kept = await contents(api, notes)
    assert (kept["/deep/00.md"], kept["/new/file.md"], len(kept)) == ("changed", "made", 45)
    assert "/deep/01.md" not in kept
    assert await contents(api, rules) == {"/rule": "fixed"}
    versions = api.sdk.beta.memory_stores.memory_versions.list(notes, session_id=session["id"])
    assert sorted([version.operation async for version in versions]) == ["created", "deleted", "modified"]
    assert not [record for record in caplog.records if "failed" in record.getMessage()]


async def test_where_both_sides_changed_the_store_wins(api: Api, tmp_path: Path) -> None:
    store_id = await made_store(api, "Notes")
    memories = api.sdk.beta.memory_stores.memories
    made = {path: await memories.create(store_id, path=path, content="old") for path in ("/both", "/there")}
    session = await api.session(resources=[attached(store_id)])
    async with work_token(api, session) as worker:
        mounted = await Mounted.at(tmp_path, api, worker, session["id"])
        folder = tmp_path / "notes"
        for memory in made.values():
            await memories.update(memory.id, memory_store_id=store_id, content="theirs")
        (folder / "both").write_text("ours")
        (folder / "both-not").write_text("new")
        await mounted.stores.finish()
        assert (folder / "both").read_text() == (folder / "there").read_text() == "theirs"
        await mounted.stores.dispose()
    assert await contents(api, store_id) == {"/both": "theirs", "/there": "theirs", "/both-not": "new"}
