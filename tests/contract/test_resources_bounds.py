"""What is attached to sessions and what is uploaded, at their bounds (contract sections 2.5, 9 and 18)."""

from typing import Any

from .conftest import Api
from .kinds import ok

ROOT = "/mnt/session/uploads"
REPOSITORY: dict[str, Any] = {"type": "github_repository", "url": "https://github.com/acme/api"}


async def upload(api: Api, name: str = "a.txt") -> str:
    return (await ok(api.http.post("/v1/files", files={"file": (name, b"x")})))["id"]


async def attach(api: Api, session_id: str, **resource: Any) -> Any:
    return await api.post(f"/v1/sessions/{session_id}/resources", resource)


async def refusal(api: Api, session_id: str, **resource: Any) -> str:
    response = await attach(api, session_id, **resource)
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


async def test_a_mount_path_has_components_of_255_bytes_and_4095_in_all(api: Api) -> None:
    session, file_id = (await api.session())["id"], await upload(api)
    longest = "/".join([*(["d" * 255] * 15), "d" * 234])
    assert len(f"{ROOT}/{longest}") == 4095
    for path in ("x" * 255, "\u00e9" * 127 + "x", longest):
        made = await ok(attach(api, session, type="file", file_id=file_id, mount_path=path))
        assert made["mount_path"] == f"{ROOT}/{path}"
    for path, said in (
        ("y" * 256, "no component may have more than 255 bytes"),
        ("\u00e9" * 128, "no component may have more than 255 bytes"),
        ("e" * 255 + "/" + longest[255:] + "f", "must have at most 4095 bytes"),
        ("z" * 4097, "must have at most 4096 characters"),
        ("", "must have at least 1 characters"),
    ):
        message = await refusal(api, session, type="file", file_id=file_id, mount_path=path)
        assert message.startswith("mount_path: ")
        assert message.endswith(said)


WRONG: list[tuple[Any, ...]] = [
    ({}, "type: Field required"),
    ({"type": "folder"}, 'type: "folder" is not a valid value'),
    ({"type": "file"}, "file_id: Field required"),
    ({"type": "file", "file_id": ""}, "file_id: must have at least 1 characters"),
    ({"type": "file", "file_id": "f" * 129}, "file_id: must have at most 128 characters"),
    ({"type": "file", "file_id": None}, "file_id: Input should be a valid string"),
    ({"type": "file", "file_id": "f", "url": "x"}, "url: Extra inputs are not permitted"),
    ({"type": "file", "file_id": "f", "access": "read_only"}, "access: Extra inputs are not permitted"),
    ({"type": "file", "file_id": "f", "mount_path": 1}, "mount_path: Input should be a valid string"),
    ({"type": "github_repository"}, "url: Field required"),
    ({**REPOSITORY, "file_id": "f"}, "file_id: Extra inputs are not permitted"),
    ({**REPOSITORY, "url": ""}, "url: must have at least 1 characters"),
    ({**REPOSITORY, "url": "u" * 2049}, "url: must have at most 2048 characters"),
    ({**REPOSITORY, "authorization_token": ""}, "authorization_token: must have 1 to 4096 characters"),
    ({**REPOSITORY, "authorization_token": "t" * 4097}, "authorization_token: must have 1 to 4096"),
    (
        {**REPOSITORY, "checkout": {"type": "tag", "name": "v1"}},
        'checkout.type: "tag" is not a valid value',
    ),
    ({**REPOSITORY, "checkout": {"type": "branch"}}, "checkout.name: Field required"),
    ({**REPOSITORY, "checkout": {"type": "branch", "name": ""}}, "checkout.name: must have at least 1"),
    (
        {**REPOSITORY, "checkout": {"type": "branch", "name": "b" * 256}},
        "checkout.name: must have at most 255",
    ),
    (
        {**REPOSITORY, "checkout": {"type": "commit", "sha": "a" * 6}},
        "checkout.sha: must have at least 7",
    ),
    (
        {**REPOSITORY, "checkout": {"type": "commit", "sha": "a" * 65}},
        "checkout.sha: must have at most 64",
    ),
    ({**REPOSITORY, "checkout": {"type": "commit", "name": "main"}}, "checkout.name: Extra inputs"),
]


async def test_a_resource_that_does_not_fit_is_refused_with_its_path(api: Api) -> None:
    for resource, said in WRONG:
        session = await api.session()
        assert (await refusal(api, session["id"], **resource)).startswith(said)
        if resource and resource["type"] != "folder":
            body = {"agent": session["agent"]["id"], "environment_id": session["environment_id"]}
            response = await api.post("/v1/sessions", {**body, "resources": [resource]})
            assert response.status_code == 400
            assert response.json()["error"]["message"].startswith(f"resources[0].{said}"), response.text


NO_REPOSITORIES: list[Any] = [
    *(
        "http://github.com/a/b",
        "https://github.com/a",
        "https://github.com/a/b.git",
        "git@github.com:a/b",
    ),
    *(
        "https://github.com/a/b/c",
        "https://github.com/a/b?x=1",
        "https://t@github.com/a/b",
        "ssh://github.com/a/b",
    ),
    *("https://gitlab.example/a/b", "https://github.com/a/../b", "https://github.com/a/b/"),
]


async def test_only_plain_addresses_of_repositories_are_taken(api: Api) -> None:
    for url in NO_REPOSITORIES:
        session = await api.session()
        assert (await refusal(api, session["id"], type="github_repository", url=url)).startswith("url: ")
        assert (await ok(api.get(f"/v1/sessions/{session['id']}/resources")))["data"] == []


async def test_a_repository_is_shown_with_its_checkout_and_without_its_token(api: Api) -> None:
    session = (await api.session())["id"]
    for number, checkout in enumerate(
        (
            {"type": "branch", "name": "b" * 255},
            {"type": "commit", "sha": "a" * 7},
            {"type": "commit", "sha": "0" * 64},
            None,
        )
    ):
        path = f"/workspace/r{number}"
        made = await ok(
            attach(
                api, session, **REPOSITORY, mount_path=path, checkout=checkout, authorization_token="t" * 4096
            )
        )
        shown = {key: value for key, value in made.items() if key not in ("id", "created_at", "updated_at")}
        assert shown == {**REPOSITORY, "mount_path": path, "checkout": checkout}
        assert await ok(api.get(f"/v1/sessions/{session}/resources/{made['id']}")) == made
    said = await refusal(api, session, **REPOSITORY, mount_path="/workspace/r0/x")
    assert said.startswith("mount_path: /workspace/r0/x overlaps with /workspace/r0")


async def test_only_a_repositorys_token_can_be_changed(api: Api) -> None:
    session = (await api.session())["id"]
    made = await ok(attach(api, session, **REPOSITORY))
    path = f"/v1/sessions/{session}/resources/{made['id']}"
    for body, said in (
        ({}, "authorization_token: Field required"),
        ({"authorization_token": None}, "authorization_token: Input should be a valid string"),
        ({"authorization_token": ""}, "authorization_token: must have 1 to 4096 characters"),
        (
            {"authorization_token": "t", "url": "https://github.com/a/b"},
            "url: Extra inputs are not permitted",
        ),
        ({"authorization_token": "t", "mount_path": "/x"}, "mount_path: Extra inputs are not permitted"),
    ):
        response = await api.post(path, body)
        assert (response.status_code, response.json()["error"]["message"].startswith(said)) == (400, True)
    assert await ok(api.get(path)) == made
    changed = await ok(api.post(path, {"authorization_token": "new"}))
    assert changed["updated_at"] > made["updated_at"]
    assert {**changed, "updated_at": made["updated_at"]} == made


async def test_a_memory_store_has_no_resource_of_its_own_to_change_or_delete(api: Api) -> None:
    store = (await ok(api.post("/v1/memory_stores", {"name": "S"})))["id"]
    session = await api.session(resources=[{"type": "memory_store", "memory_store_id": store}])
    assert not {"id", "created_at", "updated_at"} & session["resources"][0].keys()
    response = await api.http.delete(f"/v1/sessions/{session['id']}/resources/{store}")
    assert response.status_code == 404
    assert len((await ok(api.get(f"/v1/sessions/{session['id']}/resources")))["data"]) == 1


async def test_500_resources_are_counted_over_all_kinds(api: Api) -> None:
    session = await api.session()
    body = {"agent": session["agent"]["id"], "environment_id": session["environment_id"]}
    store = (await ok(api.post("/v1/memory_stores", {"name": "S"})))["id"]
    file_id = await upload(api)
    files = [{"type": "file", "file_id": file_id, "mount_path": str(n)} for n in range(499)]
    whole = [*files, {"type": "memory_store", "memory_store_id": store}]
    response = await api.post("/v1/sessions", {**body, "resources": [*whole, REPOSITORY]})
    assert (response.status_code, "at most 500" in response.text) == (400, True)
    made = await ok(api.post("/v1/sessions", {**body, "resources": whole}))
    path = f"/v1/sessions/{made['id']}/resources"
    assert len((await ok(api.get(path)))["data"]) == 500
    assert "at most 500" in (await api.post(path, REPOSITORY)).json()["error"]["message"]
    assert (await api.get(f"{path}?limit=1001")).status_code == 400
    assert len((await ok(api.get(f"{path}?limit=1000")))["data"]) == 500
    await ok(api.http.delete(f"{path}/{made['resources'][0]['id']}"))
    await ok(api.post(path, REPOSITORY))


async def test_resources_keep_their_order_while_others_come_and_go(api: Api) -> None:
    file_id, session = await upload(api), (await api.session())["id"]
    path = f"/v1/sessions/{session}/resources"
    ids = [
        (await ok(attach(api, session, type="file", file_id=file_id, mount_path=str(n))))["id"]
        for n in range(5)
    ]
    first = await ok(api.get(f"{path}?limit=2"))
    await ok(api.http.delete(f"{path}/{ids[1]}"))
    await ok(api.http.delete(f"{path}/{ids[3]}"))
    late = await ok(attach(api, session, type="file", file_id=file_id, mount_path="late"))
    rest = await ok(api.get(path, params={"limit": 2, "page": first["next_page"]}))
    assert [one["id"] for one in rest["data"]] == [ids[2], ids[4]]
    last = await ok(api.get(path, params={"limit": 2, "page": rest["next_page"]}))
    assert ([one["id"] for one in last["data"]], last["next_page"]) == ([late["id"]], None)


async def test_a_filename_has_255_characters_and_no_control_characters(api: Api) -> None:
    for name in ("n" * 255, "\U0001f408" * 60 + ".txt"):
        made = await ok(api.http.post("/v1/files", files={"file": (name, b"x")}))
        assert made["filename"] == name
    response = await api.http.post("/v1/files", files={"file": ("n" * 256, b"x")})
    assert response.json()["error"]["message"] == "file: the filename must have at most 255 characters"


async def test_a_hundred_files_are_picked_by_id_and_narrowed_by_their_session(api: Api) -> None:
    file_id = await upload(api)
    session = await api.session(resources=[{"type": "file", "file_id": file_id}])
    copy = session["resources"][0]["file_id"]
    ids = [file_id, copy, *(f"file_{n}" for n in range(98))]
    assert [one["id"] for one in (await ok(api.get("/v1/files", params={"ids[]": ids})))["data"]] == [
        copy,
        file_id,
    ]
    query = {"ids[]": ids, "scope_id": session["id"]}
    assert [one["id"] for one in (await ok(api.get("/v1/files", params=query)))["data"]] == [copy]
    for query, said in (
        ({"ids[]": [*ids, "file_more"]}, "ids: at most 100 values"),
        ({"ids[]": ids, "limit": 1}, "ids: cannot be combined with page or limit"),
        ({"ids[]": ids, "page": "page_x"}, "ids: cannot be combined with page or limit"),
        ({"ids[]": [""]}, "ids: each must be a string of 1 to 128 characters"),
    ):
        response = await api.get("/v1/files", params=query)
        assert (response.status_code, response.json()["error"]["message"]) == (400, said)
    assert (await ok(api.get("/v1/files?scope_id=sesn_unknown")))["data"] == []


async def test_a_deleted_upload_leaves_the_copies_that_sessions_have(api: Api) -> None:
    file_id = await upload(api)
    session = await api.session(resources=[{"type": "file", "file_id": file_id, "mount_path": "a"}])
    await ok(api.http.delete(f"/v1/files/{file_id}"))
    assert (await api.http.delete(f"/v1/files/{file_id}")).status_code == 404
    copy = session["resources"][0]["file_id"]
    assert (await ok(api.get(f"/v1/files/{copy}")))["size_bytes"] == 1
    response = await attach(api, session["id"], type="file", file_id=file_id, mount_path="b")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == f"file_id: file {file_id} not found"
