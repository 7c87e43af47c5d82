"""Memory stores and memories at their bounds, and fields of the wrong kind (contract sections 2.5 and 16)."""

import hashlib
from typing import Any

from .conftest import Api
from .kinds import ok

STORES = "/v1/memory_stores"


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


async def store(api: Api, **fields: Any) -> str:
    """The path of a new store."""
    return f"{STORES}/{(await ok(api.post(STORES, {'name': 'S', **fields})))['id']}"


async def refusal(api: Api, path: str, body: dict[str, Any]) -> str:
    response = await api.post(path, body)
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


STORE_BOUNDS: list[tuple[Any, ...]] = [
    ({"name": "\U0001f408" * 255}, {"name": "n" * 256}, "name: must have at most 255 characters"),
    ({"name": "n"}, {"name": ""}, "name: must have at least 1 characters"),
    ({"name": "a b \u00a0 c"}, {"name": "a\tb"}, "name: holds a control character (U+0009 at 1)"),
    ({"name": "a\u200b"}, {"name": "\x7fa"}, "name: holds a control character (U+007F at 0)"),
    ({"description": "d" * 1024}, {"description": "d" * 1025}, "description: must have at most 1024"),
    ({"description": "a\nb"}, {"description": 1}, "description: Input should be a valid string"),
]


async def test_the_bounds_of_a_store(api: Api) -> None:
    for good, bad, said in STORE_BOUNDS:
        path = await store(api)
        before = await ok(api.get(path))
        for target in (STORES, path):
            assert (await refusal(api, target, {"name": "S", **bad})).startswith(said)
        assert await ok(api.get(path)) == before
        changed = await ok(api.post(path, good))
        assert {name: changed[name] for name in good} == good
        await store(api, **good)


async def test_a_stores_update_that_changes_nothing_leaves_updated_at(api: Api) -> None:
    path = await store(api, description="d")
    before = await ok(api.get(path))
    for fields in ({}, {"name": "S"}, {"name": None}, {"description": "d"}, {"metadata": None}):
        assert await ok(api.post(path, fields)) == before


PATHS: list[tuple[Any, ...]] = [
    ("/" + "/".join("s" * 20), None),
    ("/" + "/".join("s" * 21), "path: must have at most 20 segments"),
    ("/" + "x" * 1023, None),
    ("/" + "x" * 1024, "path: must have at most 1024 bytes"),
    ("/" + "\u00e9" * 512, "path: must have at most 1024 bytes"),
    ("", "path: must start with /"),
    ("a", "path: must start with /"),
    ("/", "path: must not have an empty segment"),
    ("/a/", "path: must not have an empty segment"),
    ("/a//b", "path: must not have an empty segment"),
    ("/a/./b", "path: must not have a segment . or .."),
    ("/../b", "path: must not have a segment . or .."),
    ("/a\nb", "path: holds a control or format character"),
    ("/a\u202eb", "path: holds a control or format character"),
    ("/a\u2028b", "path: holds a control or format character or a line separator (U+2028)"),
    ("/cafe\u0301", "path: must be in Unicode Normalization Form C"),
    ("/caf\u00e9", None),
]


async def test_paths_of_new_and_of_renamed_memories(api: Api) -> None:
    for path, said in PATHS:
        memories = f"{await store(api)}/memories"
        other = await ok(api.post(memories, {"path": "/other", "content": "x"}))
        if said is None:
            made = await ok(api.post(memories, {"path": path, "content": ""}))
            assert made["path"] == path
            await ok(api.http.delete(f"{memories}/{made['id']}"))
            assert (await ok(api.post(f"{memories}/{other['id']}", {"path": path})))["path"] == path
            continue
        assert (await refusal(api, memories, {"path": path, "content": ""})).startswith(said)
        assert (await refusal(api, f"{memories}/{other['id']}", {"path": path})).startswith(said)
        assert (await ok(api.get(memories)))["data"] == [other]


async def test_content_is_measured_in_bytes_whether_new_or_changed(api: Api) -> None:
    memories = f"{await store(api)}/memories"
    full = "\u00e9" * 51_200
    made = await ok(api.post(memories, {"path": "/a", "content": full}))
    one = f"{memories}/{made['id']}"
    for target, body in ((memories, {"path": "/b"}), (one, {})):
        said = await refusal(api, target, {**body, "content": full + "x"})
        assert said == "content: must have at most 102400 bytes, got 102401"
    assert await ok(api.get(one)) == {**made, "content": full}
    assert (await ok(api.post(one, {"content": "x" * 102_400})))["content_size_bytes"] == 102_400


WRONG: list[tuple[Any, ...]] = [
    ({"path": 1}, "path: Input should be a valid string"),
    ({"content": ["x"]}, "content: Input should be a valid string"),
    ({"precondition": {"type": "etag"}}, 'precondition.type: "etag" is not a valid value'),
    ({"precondition": {"type": "content_sha256"}}, "precondition.content_sha256: Field required"),
    (
        {"precondition": {"type": "content_sha256", "content_sha256": "A" * 64}},
        "precondition.content_sha256: must be 64 lowercase hexadecimal characters",
    ),
    (
        {"precondition": {"type": "content_sha256", "content_sha256": "a" * 63}},
        "precondition.content_sha256: must be 64 lowercase hexadecimal characters",
    ),
    ({"precondition": "a" * 64}, "precondition: Input should be a valid object"),
    ({"id": "mem_1"}, "id: Extra inputs are not permitted"),
]


async def test_a_change_of_the_wrong_form_is_refused_with_its_path(api: Api) -> None:
    for body, said in WRONG:
        memories = f"{await store(api)}/memories"
        made = await ok(api.post(memories, {"path": "/a", "content": "x"}))
        assert (await refusal(api, f"{memories}/{made['id']}", body)).startswith(said)
        assert await ok(api.get(f"{memories}/{made['id']}?view=basic")) == made


async def test_a_conflict_carries_what_is_in_the_way_and_changes_nothing(api: Api) -> None:
    memories = f"{await store(api)}/memories"
    first = await ok(api.post(memories, {"path": "/a", "content": "x"}))
    second = await ok(api.post(memories, {"path": "/b", "content": "y"}))
    expected = {"content": "new", "precondition": {"type": "content_sha256", "content_sha256": sha("no")}}
    for target, body, kind in (
        (memories, {"path": "/a", "content": "z"}, "memory_path_conflict_error"),
        (f"{memories}/{second['id']}", {"path": "/a"}, "memory_path_conflict_error"),
        (f"{memories}/{second['id']}", expected, "memory_precondition_failed_error"),
    ):
        response = await api.post(target, body)
        assert (response.status_code, response.json()["error"]["type"]) == (409, kind)
        assert response.headers["x-should-retry"] == "false"
    assert (await ok(api.get(memories)))["data"] == [first, second]
    versions = await ok(api.get(memories.replace("/memories", "/memory_versions")))
    assert len(versions["data"]) == 2


async def test_a_text_keeps_its_bytes_unnormalised_and_its_hash_is_theirs(api: Api) -> None:
    memories = f"{await store(api)}/memories"
    for number, content in enumerate(
        ("cafe\u0301", "caf\u00e9", "a\r\nb", "\ufeffx", "\u202e", "\U0010ffff")
    ):
        made = await ok(api.post(memories, {"path": f"/{number}", "content": content}))
        assert made["content_sha256"] == sha(content)
        assert (await ok(api.get(f"{memories}/{made['id']}")))["content"] == content


NO_LISTS: list[tuple[Any, ...]] = [
    ({"depth": "2"}, "depth: must be between 0 and 1"),
    ({"depth": "-1"}, "depth: must be between 0 and 1"),
    ({"depth": "x"}, "depth: Input should be a valid integer"),
    ({"path_prefix": "/a"}, "path_prefix: must start and end with /"),
    ({"path_prefix": "a/"}, "path_prefix: must start and end with /"),
    ({"path_prefix": "/../"}, "path_prefix: must not have a segment . or .."),
    ({"path_prefix": "//"}, "path_prefix: must not have an empty segment"),
    ({"view": "whole"}, 'view: "whole" is not a valid value'),
    ({"limit": "101"}, "limit: must be between 0 and 100"),
]


async def test_a_list_that_cannot_be_is_refused_by_its_parameter(api: Api) -> None:
    for query, said in NO_LISTS:
        response = await api.get(f"{await store(api)}/memories", params=query)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said)


async def test_an_archived_store_says_so_to_every_change_and_takes_no_new_session(api: Api) -> None:
    path = await store(api)
    memory = await ok(api.post(f"{path}/memories", {"path": "/a", "content": "x"}))
    archived = await ok(api.post(f"{path}/archive"))
    for target, body in (
        (path, {}),
        (path, {"metadata": {"a": "b"}}),
        (f"{path}/memories", {"path": "/a", "content": "x"}),
        (f"{path}/memories/{memory['id']}", {}),
    ):
        assert "is archived" in await refusal(api, target, body), (target, body)
    assert await ok(api.get(path)) == archived
    attached = {"type": "memory_store", "memory_store_id": archived["id"]}
    body = {"agent": (await api.agent())["id"], "environment_id": (await api.environment())["id"]}
    assert "archived" in await refusal(api, "/v1/sessions", {**body, "resources": [attached]})


async def test_a_memory_that_is_deleted_leaves_its_history_and_a_free_path(api: Api) -> None:
    path = await store(api)
    first = await ok(api.post(f"{path}/memories", {"path": "/a", "content": "x"}))
    await ok(api.http.delete(f"{path}/memories/{first['id']}"))
    for verb in ("GET", "POST", "DELETE"):
        response = await api.http.request(
            verb, f"{path}/memories/{first['id']}", json={} if verb == "POST" else None
        )
        assert response.status_code == 404
    second = await ok(api.post(f"{path}/memories", {"path": "/a", "content": "y"}))
    history = (await ok(api.get(f"{path}/memory_versions?view=full")))["data"]
    assert [(one["operation"], one["memory_id"], one["path"], one["content"]) for one in history] == [
        ("created", second["id"], "/a", "y"),
        ("deleted", first["id"], "/a", None),
        ("created", first["id"], "/a", "x"),
    ]


async def test_versions_page_newest_first_while_more_are_made(api: Api) -> None:
    path = await store(api)
    memory = await ok(api.post(f"{path}/memories", {"path": "/a", "content": "0"}))
    for number in range(1, 5):
        await ok(api.post(f"{path}/memories/{memory['id']}", {"content": str(number)}))
    first = await ok(api.get(f"{path}/memory_versions?view=full&limit=2"))
    await ok(api.post(f"{path}/memories/{memory['id']}", {"content": "5"}))
    query = {"view": "full", "page": first["next_page"]}
    rest = await ok(api.get(f"{path}/memory_versions", params=query))
    assert [one["content"] for one in first["data"] + rest["data"]] == ["4", "3", "2", "1", "0"]
    other = await store(api)
    stolen = await api.get(f"{other}/memory_versions", params={"page": first["next_page"]})
    assert (stolen.status_code, stolen.json()["error"]["message"]) == (400, "invalid page cursor")


async def test_instructions_of_an_attachment_have_at_most_4096_characters(api: Api) -> None:
    store_id = (await store(api)).rpartition("/")[2]
    body: dict[str, Any] = {
        "agent": (await api.agent())["id"],
        "environment_id": (await api.environment())["id"],
    }
    for instructions in ("\U0001f408" * 4096, "", None):
        resource = {"type": "memory_store", "memory_store_id": store_id, "instructions": instructions}
        made = await ok(api.post("/v1/sessions", {**body, "resources": [resource]}))
        assert made["resources"][0]["instructions"] == instructions
    resource = {"type": "memory_store", "memory_store_id": store_id, "instructions": "i" * 4097}
    said = await refusal(api, "/v1/sessions", {**body, "resources": [resource]})
    assert said.startswith("resources[0].instructions: must have at most 4096 characters")
