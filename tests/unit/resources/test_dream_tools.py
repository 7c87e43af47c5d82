"""The tools of a dream's agent: carried out once, on what it has seen, and only while its dream runs."""

from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from corral.resources.dream_agent import TOOLS
from corral.resources.dream_tools import LISTED, Answer, carry_out
from corral.resources.memories import Memories
from corral.resources.memory_stores import MemoryStores
from corral.session.events import Event
from corral.store.database import Database
from corral.wire.memories import ApiActor, CreateMemory, UpdateMemory
from corral.wire.memory_stores import CreateMemoryStore

SOMEBODY = ApiActor("apikey_1")


class Desk:
    """A dream that runs, and its store."""

    def __init__(self, database: Database, store_id: str) -> None:
        self.database = database
        self.store_id = store_id
        self.memories = Memories(database)
        self.reading = 10**6
        self._count = 0

    async def call(self, name: str, **given: Any) -> Answer:
        """The answer to a fresh call."""
        self._count += 1
        answer = await self.carry_out(self.event(f"sevt_{self._count}", name, given))
        assert answer is not None
        return answer

    async def carry_out(self, call: Event) -> Answer | None:
        """The answer to this very call."""
        return await carry_out(self.database, "drm_1", call, reading=self.reading)

    async def does(self, name: str, **given: Any) -> str:
        """What a call that must not fail says."""
        answer = await self.call(name, **given)
        assert not answer.is_error, answer.content
        return answer.content

    async def fails(self, name: str, **given: Any) -> str:
        """What a call that must fail says."""
        answer = await self.call(name, **given)
        assert answer.is_error, answer.content
        return answer.content

    def event(self, call_id: str, name: str, given: dict[str, Any]) -> Event:
        """The tool use by which the agent makes a call."""
        body = {"id": call_id, "type": "agent.custom_tool_use", "name": name, "input": given}
        return Event(1, call_id, "agent.custom_tool_use", "sthr_1", body, datetime.now(UTC))

    async def put(self, path: str, content: str) -> str:
        """A memory that somebody else makes; its id."""
        return (
            await self.memories.create(self.store_id, CreateMemory(path=path, content=content), SOMEBODY)
        ).id

    async def contents(self) -> dict[str, str]:
        """The memories by path."""
        rows = await self.database.fetch(
            "select m.path, v.content from memories m join memory_versions v on v.id = m.version_id"
            " order by m.path"
        )
        return {row["path"]: row["content"] for row in rows}

    async def changes(self) -> list[tuple[str, str]]:
        """What the dream has changed, in order."""
        rows = await self.database.fetch(
            "select operation, path from memory_versions where session_id = 'sesn_1' order by created_at"
        )
        return [(row["operation"], row["path"]) for row in rows]


@pytest_asyncio.fixture
async def desk(database: Database) -> Desk:
    """A dream that runs, on an empty store, about a session that does not exist."""
    store = await MemoryStores(database).create(CreateMemoryStore(name="Notes"))
    await database.execute(
        "insert into dreams (id, status, input_store_id, session_ids, model, updates_input, output_store_id,"
        " session_id, usage, started_at) values"
        " ('drm_1', 'running', %(store)s, '{sesn_0}', '{}', true, %(store)s, 'sesn_1', '{}', now())",
        {"store": store.id},
    )
    return Desk(database, store.id)


async def test_memories_are_written_read_moved_and_deleted(desk: Desk) -> None:
    assert await desk.does("memory_write", path="/a.md", content="one") == "Created /a.md."
    assert await desk.does("memory_write", path="/a.md", content="two") == "Replaced /a.md."
    assert await desk.does("memory_move", path="/a.md", new_path="/b/c.md") == "Moved /a.md to /b/c.md."
    assert await desk.does("memory_read", path="/b/c.md") == "two"
    assert await desk.contents() == {"/b/c.md": "two"}
    assert await desk.does("memory_delete", path="/b/c.md") == "Deleted /b/c.md."
    assert await desk.changes() == [
        ("created", "/a.md"),
        ("modified", "/a.md"),
        ("modified", "/b/c.md"),
        ("deleted", "/b/c.md"),
    ]


async def test_a_call_that_is_tried_again_is_not_carried_out_again(desk: Desk) -> None:
    write = desk.event("sevt_x", "memory_write", {"path": "/a.md", "content": "one"})
    first = await desk.carry_out(write)
    await desk.does("memory_write", path="/a.md", content="two")
    assert await desk.carry_out(write) == first
    assert await desk.contents() == {"/a.md": "two"}


async def test_a_call_that_failed_fails_in_the_same_way_when_it_is_tried_again(desk: Desk) -> None:
    read = desk.event("sevt_x", "memory_read", {"path": "/a.md"})
    first = await desk.carry_out(read)
    await desk.put("/a.md", "there now")
    assert first is not None
    assert first.is_error
    assert await desk.carry_out(read) == first


@pytest.mark.parametrize("status", ["completed", "canceled", "failed"])
async def test_nothing_is_carried_out_once_the_dream_has_ended(desk: Desk, status: str) -> None:
    error = ("internal_error", "x") if status == "failed" else (None, None)
    await desk.database.execute(
        "update dreams set status = %s, error_type = %s, error_message = %s, ended_at = now()",
        (status, *error),
    )
    call = desk.event("sevt_x", "memory_write", {"path": "/a.md", "content": "late"})
    assert await desk.carry_out(call) is None
    assert await desk.contents() == {}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("memory_write", {"path": "/a.md", "content": "mine"}),
        ("memory_move", {"path": "/a.md", "new_path": "/b.md"}),
        ("memory_delete", {"path": "/a.md"}),
    ],
)
async def test_a_memory_is_changed_only_as_it_was_last_seen(
    desk: Desk, name: str, given: dict[str, Any]
) -> None:
    memory_id = await desk.put("/a.md", "theirs")
    assert "which you have not read yet" in await desk.fails(name, **given)
    await desk.does("memory_read", path="/a.md")
    await desk.memories.update(desk.store_id, memory_id, UpdateMemory(content="newer"), SOMEBODY)
    assert "was changed by somebody else" in await desk.fails(name, **given)
    assert await desk.contents() == {"/a.md": "newer"}
    await desk.does("memory_read", path="/a.md")
    await desk.does(name, **given)
    assert await desk.contents() != {"/a.md": "newer"}


async def test_what_was_moved_is_seen_at_its_new_path_alone(desk: Desk) -> None:
    await desk.does("memory_write", path="/a.md", content="one")
    await desk.does("memory_move", path="/a.md", new_path="/b.md")
    await desk.put("/a.md", "theirs")
    assert "not read yet" in await desk.fails("memory_write", path="/a.md", content="mine")
    await desk.does("memory_write", path="/b.md", content="two")


async def test_a_memory_cannot_be_moved_onto_another(desk: Desk) -> None:
    await desk.does("memory_write", path="/a.md", content="one")
    await desk.put("/b.md", "theirs")
    assert "/b.md is the path of memory" in await desk.fails("memory_move", path="/a.md", new_path="/b.md")
    assert await desk.contents() == {"/a.md": "one", "/b.md": "theirs"}


@pytest.mark.parametrize(
    ("name", "given", "part"),
    [
        ("memory_write", {"path": "a", "content": ""}, "path: must start with /"),
        ("memory_write", {"path": "/a"}, "content: Field required"),
        ("memory_write", {"path": "/a", "content": "\0"}, "content: holds a NUL"),
        ("memory_write", {"path": "/a", "content": "x" * 102_401}, "content: must have at most 102400 bytes"),
        ("memory_write", {"path": "/a", "content": 7}, "content: Input should be a valid string"),
        ("memory_read", {"path": "/none"}, "There is no memory at /none"),
        ("memory_read", {"path": "/no\0ne"}, "path: holds a NUL"),
        ("memory_move", {"path": "/none", "new_path": "b"}, "new_path: must start with /"),
        ("memory_delete", {"path": "/none"}, "There is no memory at /none"),
        ("memory_list", {"folder": "/a"}, "path_prefix: must start and end with /"),
        ("session_read", {"session_id": "sesn_9"}, "none of the sessions"),
        ("session_read", {"session_id": "sesn_0", "after": -1}, "must be 0 or more"),
        ("session_read", {"session_id": "sesn_0", "after": 2**80}, ""),
        ("session_read", {"session_id": "sesn_0", "event": 3}, "no entry with the number 3"),
    ],
)
async def test_a_call_that_makes_no_sense_is_told_so(
    desk: Desk, name: str, given: dict[str, Any], part: str
) -> None:
    assert part in await desk.fails(name, **given)
    assert await desk.contents() == {}


async def test_a_long_list_comes_in_parts(desk: Desk) -> None:
    assert await desk.does("memory_list") == "(there are no memories below /)"
    for n in range(LISTED + 2):
        await desk.database.execute(
            "with v as (insert into memory_versions (id, store_id, memory_id, operation, path, content)"
            " values (%(v)s, %(s)s, %(m)s, 'created', %(p)s, '') returning id)"
            " insert into memories select %(m)s, %(s)s, %(p)s, '', 0, id, now(), now() from v",
            {"v": f"memver_{n}", "m": f"mem_{n}", "s": desk.store_id, "p": f"/in/{n:04}"},
        )
    first = (await desk.does("memory_list", folder="/in/")).splitlines()
    assert len(first) == LISTED + 1
    assert first[-1] == f"(there are more: go on with after=/in/{LISTED - 1:04})"
    rest = (await desk.does("memory_list", folder="/in/", after=f"/in/{LISTED - 1:04}")).splitlines()
    assert [line.split(",")[0] for line in rest] == [f"/in/{LISTED:04}", f"/in/{LISTED + 1:04}"]


async def test_what_an_agent_is_given_to_read_has_a_limit_but_it_can_still_write(desk: Desk) -> None:
    desk.reading = 100
    await desk.put("/a.md", "x" * 100)
    await desk.does("memory_read", path="/a.md")
    assert "as much to read as fits" in await desk.fails("session_read", session_id="sesn_0")
    assert "as much to read as fits" in await desk.fails("memory_read", path="/a.md")
    await desk.does("memory_write", path="/a.md", content="what matters")
    desk.reading = 1000
    await desk.does("memory_read", path="/a.md")


async def test_memories_can_be_read_a_little_longer_than_transcripts(desk: Desk) -> None:
    desk.reading = 100
    await desk.put("/a.md", "x" * 101)
    await desk.does("memory_read", path="/a.md")
    await desk.does("memory_read", path="/a.md")
    assert "as much to read as fits" in await desk.fails("session_read", session_id="sesn_0")


async def test_every_tool_that_the_agent_is_told_of_can_be_called(desk: Desk) -> None:
    for tool in TOOLS:
        await desk.call(tool.name)
