"""Metadata, alike for every kind of resource that has it: bounds at both edges, the patch (contract 2.4)."""

import asyncio
from typing import Any

import pytest

from .kinds import KINDS, Ground, ground, ok

__all__ = ["ground"]
NAMES = [name for name, kind in KINDS.items() if kind.metadata is not None]
KEEPING = [name for name in NAMES if KINDS[name].metadata == "keeps"]
FULL = {f"{n:02}" + "k" * 62: "v" * 512 for n in range(16)}


async def made(ground: Ground, name: str) -> str:
    """The path of a new resource of a kind."""
    one = await KINDS[name].make(ground, 1)
    return f"{KINDS[name].at(ground)}/{one['id']}"


async def patch(ground: Ground, path: str, metadata: Any) -> dict[str, Any]:
    return await ok(ground.api.post(path, {"metadata": metadata}))


async def refusal(ground: Ground, path: str, metadata: Any) -> str:
    response = await ground.api.post(path, {"metadata": metadata})
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


@pytest.mark.parametrize("name", NAMES)
async def test_sixteen_pairs_of_the_greatest_length_are_taken_and_come_back(
    ground: Ground, name: str
) -> None:
    path = await made(ground, name)
    assert (await ok(ground.api.get(path)))["metadata"] == {}
    assert (await patch(ground, path, FULL))["metadata"] == FULL
    assert (await ok(ground.api.get(path)))["metadata"] == FULL
    # Characters are counted, not bytes.
    wide = {"日" * 64: "\U0001f600" * 512}
    last: dict[str, Any] = dict.fromkeys(FULL, None if KINDS[name].metadata == "keeps" else "")
    assert (await patch(ground, path, {**last, **wide}))["metadata"] == wide


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_out_of_bounds_is_refused_by_its_key_and_changes_nothing(
    ground: Ground, name: str
) -> None:
    path = await made(ground, name)
    before = await patch(ground, path, FULL)
    cases: tuple[tuple[Any, str], ...] = (
        ({"more": "x"}, "metadata: at most 16 pairs"),
        ({"": "x"}, "metadata: key '' must have 1 to 64 characters"),
        ({"k" * 65: "x"}, "must have 1 to 64 characters"),
        ({"k": "v" * 513}, "metadata.k: must have at most 512 characters"),
        ({"k": 1}, "metadata.k: Input should be a valid string"),
        ({"k": ["v"]}, "metadata.k: Input should be a valid string"),
        ({"k": {"a": "b"}}, "metadata.k: Input should be a valid string"),
        ({"k": True}, "metadata.k: Input should be a valid string"),
        ([], "metadata: Input should be a valid object"),
        ("k=v", "metadata: Input should be a valid object"),
        ({"k": "a\x00"}, "metadata.k: holds a NUL"),
    )
    for metadata, said in cases:
        assert said in await refusal(ground, path, metadata), metadata
    assert await ok(ground.api.get(path)) == before


@pytest.mark.parametrize("name", NAMES)
async def test_a_patch_of_metadata_upserts_and_keeps_what_it_does_not_name(ground: Ground, name: str) -> None:
    path = await made(ground, name)
    first = await patch(ground, path, {"a": "1", "b": "2"})
    second = await patch(ground, path, {"b": "3", "c": "4"})
    assert second["metadata"] == {"a": "1", "b": "3", "c": "4"}
    assert second["updated_at"] > first["updated_at"]
    assert await patch(ground, path, {}) == second
    assert await patch(ground, path, None) == second
    assert await patch(ground, path, {"a": "1"}) == second


@pytest.mark.parametrize("name", [name for name in NAMES if name != "user_profiles"])
async def test_null_deletes_a_pair_and_so_makes_room_for_another(ground: Ground, name: str) -> None:
    path = await made(ground, name)
    await patch(ground, path, FULL)
    key, *others = FULL
    changed = await patch(ground, path, {key: None, "new": "x"})
    assert set(changed["metadata"]) == {*others, "new"}
    assert await patch(ground, path, {"unknown": None}) == changed, "nothing changed, so nothing is written"


@pytest.mark.parametrize("name", NAMES)
async def test_an_empty_value_is_kept_or_deletes_as_documented_for_the_kind(
    ground: Ground, name: str
) -> None:
    path = await made(ground, name)
    await patch(ground, path, {"a": "1"})
    left = (await patch(ground, path, {"a": ""}))["metadata"]
    assert left == ({"a": ""} if name in KEEPING else {})


@pytest.mark.parametrize("name", [*NAMES, "sessions"])
async def test_metadata_of_a_new_resource_has_no_nulls(ground: Ground, name: str) -> None:
    path = "/v1/sessions" if name == "sessions" else KINDS[name].at(ground)
    body: dict[str, Any] = {
        "agents": {"name": "A", "model": "m"},
        "environments": {"name": "E"},
        "vaults": {"display_name": "V"},
        "credentials": {
            "auth": {"type": "static_bearer", "token": "t", "mcp_server_url": "https://m.example"}
        },
        "memory_stores": {"name": "S"},
        "deployments": {
            "name": "D",
            "agent": ground.agent,
            "environment_id": ground.environment,
            "initial_events": [{"type": "user.message", "content": [{"type": "text", "text": "x"}]}],
        },
        "user_profiles": {},
        "sessions": {"agent": ground.agent, "environment_id": ground.environment},
    }[name]
    said = "metadata.k: Input should be a valid string"
    response = await ground.api.post(path, {**body, "metadata": {"k": None}})
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]
    taken = await ok(ground.api.post(path, {**body, "metadata": FULL}))
    assert taken["metadata"] == FULL
    if name == "credentials":  # its key is taken now
        await ok(ground.api.post(f"{path}/{taken['id']}/archive"))
    assert (await ok(ground.api.post(path, {**body, "metadata": None})))["metadata"] == {}


@pytest.mark.parametrize("name", NAMES)
async def test_patches_at_the_same_moment_are_all_kept(ground: Ground, name: str) -> None:
    path = await made(ground, name)
    await asyncio.gather(*(patch(ground, path, {f"k{number}": "x"}) for number in range(8)))
    assert set((await ok(ground.api.get(path)))["metadata"]) == {f"k{number}" for number in range(8)}
