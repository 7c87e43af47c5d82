"""Memory stores in sessions, and what the holder of a work item may do with them (contract 9, 12.1, 16.4)."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from .conftest import Api
from .refusals import refused, undocumented


def attached(store_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "memory_store", "memory_store_id": store_id, **fields}


async def made_store(api: Api, name: str = "Notes", **fields: Any) -> str:
    return (await api.sdk.beta.memory_stores.create(name=name, **fields)).id


@asynccontextmanager
async def work_token(api: Api, session: dict[str, Any]) -> AsyncGenerator[anthropic.AsyncAnthropic]:
    """The SDK with the token of a session's work item, as a worker has it."""
    key = await api.environment_key(session["environment_id"])
    await api.services.work.ensure(session["id"], session["environment_id"])
    response = await api.get(
        f"/v1/environments/{session['environment_id']}/work/poll", headers={"x-api-key": key}
    )
    secret: str = response.json()["secret"]
    decoded = json.loads(base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))
    async with api.client(decoded["sessions_token"]) as client:
        yield client


@pytest.mark.parametrize("kind", ["cloud", "self_hosted"])
async def test_a_store_is_attached_as_it_was_when_the_session_was_made(api: Api, kind: str) -> None:
    store_id = await made_store(api, "User  Preferences (EU)!", description="Per-user.")
    environment = await api.environment(config={"type": kind})
    session = await api.session(
        environment_id=environment["id"],
        resources=[attached(store_id, access="read_only", instructions="Check first.")],
    )
    resource = {
        "type": "memory_store",
        "memory_store_id": store_id,
        "access": "read_only",
        "instructions": "Check first.",
        "name": "User  Preferences (EU)!",
        "description": "Per-user.",
        "mount_path": "/mnt/memory/user-preferences-eu-",
    }
    assert session["resources"] == [resource]
    await api.sdk.beta.memory_stores.update(store_id, name="Other", description="")
    await api.sdk.beta.memory_stores.archive(store_id)
    await api.sdk.beta.memory_stores.delete(store_id)
    read = await api.sdk.beta.sessions.retrieve(session["id"])
    assert [entry.to_dict() for entry in read.resources] == [resource]
    assert undocumented(read) == []
    listed = [entry.to_dict() async for entry in api.sdk.beta.sessions.resources.list(session["id"])]
    assert listed == [resource]


async def test_access_is_read_write_unless_said_otherwise(api: Api) -> None:
    session = await api.session(resources=[attached(await made_store(api), access=None, instructions=None)])
    [resource] = session["resources"]
    assert (resource["access"], resource["instructions"]) == ("read_write", None)


async def test_stores_of_one_name_get_folders_of_their_own(api: Api) -> None:
    names = ["Notes", "notes", "NOTES!", "notes-2", "日本語"]
    ids = [await made_store(api, name) for name in names]
    session = await api.session(resources=[attached(store_id) for store_id in ids])
    assert [resource["mount_path"] for resource in session["resources"]] == [
        "/mnt/memory/notes",
        "/mnt/memory/notes-2",
        "/mnt/memory/notes-",
        "/mnt/memory/notes-2-2",
        "/mnt/memory/-",
    ]


async def test_a_session_takes_eight_stores_each_once(api: Api) -> None:
    ids = [await made_store(api, f"S{n}") for n in range(9)]
    assert len((await api.session(resources=[attached(i) for i in ids[:8]]))["resources"]) == 8
    agent, environment = (await api.agent())["id"], (await api.environment())["id"]
    archived = await made_store(api)
    await api.sdk.beta.memory_stores.archive(archived)
    for resources, status, message in (
        ([attached(i) for i in ids], 400, "resources: at most 8 memory stores"),
        ([attached(ids[0]), attached(ids[0])], 400, "resources[1].memory_store_id"),
        ([attached(ids[0]), attached("memstore_none")], 404, "resources[1].memory_store_id"),
        ([attached(archived)], 400, "archived"),
        ([attached(ids[0], access="write")], 400, "resources[0].access"),
        ([attached(ids[0], instructions="i" * 4097)], 400, "resources[0].instructions"),
        ([attached(ids[0], mount_path="/x")], 400, "resources[0].mount_path"),
    ):
        response = await api.post(
            "/v1/sessions", {"agent": agent, "environment_id": environment, "resources": resources}
        )
        assert (response.status_code, message in response.text) == (status, True), response.text
    assert len([s async for s in api.sdk.beta.sessions.list()]) == 1


async def test_a_store_cannot_be_attached_later(api: Api) -> None:
    store_id, session = await made_store(api), await api.session()
    response = await api.post(f"/v1/sessions/{session['id']}/resources", attached(store_id))
    assert response.status_code == 400


async def test_sessions_are_listed_by_their_store(api: Api) -> None:
    first, second = await made_store(api), await made_store(api)
    both = await api.session(resources=[attached(first), attached(second)])
    one = await api.session(resources=[attached(first)])
    await api.session()

    async def found(store_id: str) -> list[str]:
        return [session.id async for session in api.sdk.beta.sessions.list(memory_store_id=store_id, limit=1)]

    assert await found(first) == [one["id"], both["id"]]
    assert await found(second) == [both["id"]]
    assert await found("memstore_unknown") == []


async def test_what_a_work_token_writes_is_the_sessions(api: Api) -> None:
    store_id = await made_store(api)
    session = await api.session(resources=[attached(store_id)])
    async with work_token(api, session) as worker:
        stores = worker.beta.memory_stores
        assert (await stores.retrieve(store_id)).id == store_id
        memory = await stores.memories.create(store_id, path="/a", content="1")
        await stores.memories.update(memory.id, memory_store_id=store_id, content="2")
        assert [m.path async for m in stores.memories.list(store_id)] == ["/a"]
        await stores.memories.delete(memory.id, memory_store_id=store_id)
    versions = api.sdk.beta.memory_stores.memory_versions
    by_session = [v async for v in versions.list(store_id, session_id=session["id"])]
    assert [v.operation for v in by_session] == ["deleted", "modified", "created"]
    for version in by_session:
        assert version.created_by is not None
        assert version.created_by.to_dict() == {"type": "session_actor", "session_id": session["id"]}


async def test_a_work_token_reaches_no_store_but_its_sessions(api: Api) -> None:
    foreign, own, read_only = await made_store(api), await made_store(api), await made_store(api)
    memory = await api.sdk.beta.memory_stores.memories.create(read_only, path="/a", content="x")
    session = await api.session(resources=[attached(own), attached(read_only, access="read_only")])
    async with work_token(api, session) as worker:
        memories = worker.beta.memory_stores.memories
        for request in (
            worker.beta.memory_stores.retrieve(foreign),
            memories.list(foreign),
            memories.create(foreign, path="/a", content=""),
        ):
            await refused(request, foreign, kind=anthropic.NotFoundError)
        assert [m.path async for m in memories.list(read_only)] == ["/a"]
        for request in (
            memories.create(read_only, path="/b", content=""),
            memories.update(memory.id, memory_store_id=read_only, content="y"),
            memories.delete(memory.id, memory_store_id=read_only),
        ):
            await refused(request, "read_only", kind=anthropic.PermissionDeniedError)
        for request in (
            worker.beta.memory_stores.list(),
            worker.beta.memory_stores.update(own, name="x"),
            worker.beta.memory_stores.archive(own),
            worker.beta.memory_stores.delete(own),
            worker.beta.memory_stores.memory_versions.list(own),
            worker.beta.memory_stores.memory_versions.redact("memver_1", memory_store_id=own),
        ):
            await refused(request, kind=anthropic.PermissionDeniedError)
