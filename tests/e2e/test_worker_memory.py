"""Memory stores in the sandboxes of `corral worker` (contract section 16.4)."""

from pathlib import Path
from typing import Any

from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, for_environment, pool


async def store(corral: Corral, name: str, **memories: str) -> str:
    made = await corral.client.beta.memory_stores.create(name=name, description=f"about {name}")
    for path, content in memories.items():
        await corral.client.beta.memory_stores.memories.create(made.id, path=f"/{path}", content=content)
    return made.id


def attached(store_id: str, access: str = "read_write") -> dict[str, Any]:
    return {"type": "memory_store", "memory_store_id": store_id, "access": access}


async def contents(corral: Corral, store_id: str) -> dict[str, str | None]:
    listed = corral.client.beta.memory_stores.memories.list(store_id, view="full")
    return {entry.path: entry.content async for entry in listed if entry.type == "memory"}


def ends_turn(idle: Any) -> bool:
    return idle.stop_reason.type == "end_turn"


def says_more(result: Any) -> bool:
    return "more" in result.content[0].text


async def results(session: SessionUnderTest) -> list[str]:
    kinds = ("agent.tool_result", "user.tool_result")
    found = [event for event in await session.events() if event.type in kinds]
    return ["\n".join(block.text for block in event.content) for event in found]


async def test_an_agent_reads_and_changes_its_memory_as_files(corral: Corral, open_folder: Path) -> None:
    notes = await store(corral, "Team Notes", greeting="hello", old="x")
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await corral.session(TOOLSET, resources=[attached(notes)])
        steps = [
            bash("cd /mnt/memory/team-notes && cat greeting && echo bye > greeting && rm old"),
            {
                "tools": [
                    {"name": "write", "input": {"file_path": "/mnt/memory/team-notes/d/n", "content": "é"}}
                ]
            },
            bash("cat /mnt/memory/team-notes/d/n"),
            {"text": "done"},
        ]
        await session.says("go", script=steps)
        await session.idle()
        # Saved while the session lives, not at its end.
        assert await contents(corral, notes) == {"/greeting": "bye\n", "/d/n": "é"}
    said = await results(session)
    assert said[0] == "hello"
    assert said[2] == "é"
    versions = corral.client.beta.memory_stores.memory_versions.list(notes, session_id=session.id)
    assert sorted([version.operation async for version in versions]) == ["created", "deleted", "modified"]


async def test_the_model_is_told_where_its_memory_is(corral: Corral, open_folder: Path) -> None:
    notes = await store(corral, "Team Notes")
    session = await corral.session(TOOLSET, resources=[{**attached(notes), "instructions": "Look first."}])
    await session.says("go", script=[{"text": "done"}])
    await session.idle()
    body: Any = corral.model.requests()[-1]
    system = "\n".join(block["text"] for block in body["system"])
    for part in ("/mnt/memory/team-notes", "about Team Notes", "Look first."):
        assert part in system


async def test_a_read_only_store_and_the_space_beside_the_stores_cannot_be_written(
    corral: Corral, open_folder: Path
) -> None:
    rules = await store(corral, "Rules", rule="fixed")
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await corral.session(TOOLSET, resources=[attached(rules, "read_only")])
        steps = [
            bash("cat /mnt/memory/rules/rule; echo x > /mnt/memory/rules/rule; echo x > /mnt/memory/other"),
            {"tools": [{"name": "write", "input": {"file_path": "/mnt/memory/rules/new", "content": "x"}}]},
            {"tools": [{"name": "write", "input": {"file_path": "/mnt/memory/new/x", "content": "x"}}]},
            bash("chmod u+w /mnt/memory/rules/rule; rm -f /mnt/memory/rules/rule; ls /mnt/memory/rules"),
            {"text": "done"},
        ]
        await session.says("go", script=steps)
        await session.idle()
    said = await results(session)
    assert said[0].startswith("fixed")
    assert said[0].count("Read-only file system") == 2
    assert "read-only directory" in said[1]
    assert "outside" in said[2]
    assert said[3].strip().endswith("rule")
    assert await contents(corral, rules) == {"/rule": "fixed"}


async def test_what_another_session_has_written_is_there_in_the_next(
    corral: Corral, open_folder: Path
) -> None:
    notes = await store(corral, "Notes")
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        for command, expected in (("echo 1 > /mnt/memory/notes/n", ""), ("cat /mnt/memory/notes/n", "1")):
            session = await corral.session(TOOLSET, resources=[attached(notes)])
            await session.says("go", script=[bash(command), {"text": "done"}])
            await session.idle()
            assert (await results(session))[0].strip() in (expected, "(no output)")
    assert await contents(corral, notes) == {"/n": "1\n"}


async def test_the_agent_is_told_what_could_not_be_saved(corral: Corral, open_folder: Path) -> None:
    notes = await store(corral, "Notes")
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await corral.session(TOOLSET, resources=[attached(notes)])
        command = "cd /mnt/memory/notes; head -c 200000 /dev/zero > big; ln -s /etc/passwd link; echo ok > ok"
        await session.says("go", script=[bash(command), {"text": "done"}])
        await session.idle()
    [said] = await results(session)
    assert "/mnt/memory/notes/big: it has 200000 bytes" in said
    assert "/mnt/memory/notes/link: it is a link" in said
    assert await contents(corral, notes) == {"/ok": "ok\n"}


async def test_a_self_hosted_environment_mounts_stores_too(corral: Corral, open_folder: Path) -> None:
    notes = await store(corral, "Notes", a="1")
    session = await corral.session(TOOLSET, kind="self_hosted", resources=[attached(notes)])
    environment_id = (await session.retrieve()).environment_id
    async with at_work(await for_environment(corral, environment_id, open_folder, sandbox="bubblewrap")):
        await session.says("go", script=[bash("cd /mnt/memory/notes; cat a; echo 2 > a"), {"text": "done"}])
        await session.until("session.status_idle", where=ends_turn)
    assert (await results(session))[0] == "1"
    assert await contents(corral, notes) == {"/a": "2\n"}


async def test_a_deleted_session_leaves_no_memory_on_the_machine(corral: Corral, open_folder: Path) -> None:
    notes = await store(corral, "Notes", a="1")
    settings = await pool(corral, open_folder, sandbox="bubblewrap")
    gone, kept = [await corral.session(TOOLSET, resources=[attached(notes)]) for _ in range(2)]
    shares = open_folder / "workspaces" / ".shares"
    async with at_work(settings):
        for session in (gone, kept):
            await session.says("go", script=[bash("cat /mnt/memory/notes/a"), {"text": "done"}])
            await session.idle()
        assert (shares / gone.id / f"memory-{notes}" / "a").read_text() == "1"
    await corral.client.beta.sessions.delete(gone.id)
    async with at_work(settings):
        # Served only while the worker runs; by then the sweep, which comes first, has had its turn.
        await kept.says("more", script=[bash("echo more"), {"text": "done"}])
        await kept.until("agent.tool_result", where=says_more)
    assert not (shares / gone.id).exists()
    assert (shares / kept.id / f"memory-{notes}" / "a").exists()
    assert await contents(corral, notes) == {"/a": "1"}
