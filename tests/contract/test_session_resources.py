"""Files attached to sessions: mount paths, copies, limits, what a deletion takes along (contract 9)."""

import asyncio
from typing import Any

import pytest
from anthropic import NotFoundError, PermissionDeniedError

from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented

ROOT = "/mnt/session/uploads"


async def upload(api: Api, content: bytes = b"hello", name: str = "a.txt", **fields: Any) -> str:
    return (await api.sdk.beta.files.upload(file=(name, content), **fields)).id


def resource(file_id: str, mount_path: str | None = None) -> Any:
    path = {} if mount_path is None else {"mount_path": mount_path}
    return {"type": "file", "file_id": file_id, **path}


async def create(api: Api, *resources: Any, **fields: Any) -> Any:
    return await api.sdk.beta.sessions.create(
        agent=(await api.agent())["id"],
        environment_id=(await api.environment(**fields))["id"],
        resources=list(resources),
    )


async def paths(api: Api, session_id: str) -> list[str]:
    return [
        one["mount_path"] for one in (await api.get(f"/v1/sessions/{session_id}/resources")).json()["data"]
    ]


async def test_a_session_gets_a_copy_of_its_own_under_an_id_of_its_own(api: Api) -> None:
    file_id = await upload(api)
    session = await create(api, resource(file_id, "/data.csv"))
    assert undocumented(session) == []
    [mounted] = session.resources
    assert (mounted.type, mounted.mount_path) == ("file", f"{ROOT}/data.csv")
    assert mounted.id.startswith("sesrsc_01")
    assert mounted.file_id != file_id
    copy = await api.sdk.beta.files.retrieve_metadata(mounted.file_id)
    assert copy.scope is not None
    assert (copy.scope.type, copy.scope.id) == ("session", session.id)
    assert (copy.filename, copy.size_bytes, copy.downloadable) == ("a.txt", 5, False)
    assert (await api.sdk.beta.files.retrieve_metadata(file_id)).scope is None


async def test_resources_are_the_same_wherever_they_are_shown(api: Api) -> None:
    files = [await upload(api) for _ in range(3)]
    session = await create(api, *(resource(file_id, f"{n}") for n, file_id in enumerate(files)))
    resources = api.sdk.beta.sessions.resources
    listed = [one async for one in resources.list(session.id)]
    assert listed == session.resources == (await api.sdk.beta.sessions.retrieve(session.id)).resources
    assert listed == [await resources.retrieve(one.id, session_id=session.id) for one in session.resources]
    [in_list] = (await api.sdk.beta.sessions.list()).data
    assert in_list.resources == listed


@pytest.mark.parametrize(
    ("given", "mounted"),
    [
        ("data.csv", "data.csv"),
        ("/data.csv", "data.csv"),
        ("a/b/c.txt", "a/b/c.txt"),
        ("//a//./b", "a/b"),
        (f"{ROOT}/x.txt", "x.txt"),
        ("/workspace/x.txt", "workspace/x.txt"),
        ("mnt/session/uploads/x", "mnt/session/uploads/x"),
        ("..hidden/x..", "..hidden/x.."),
        ("한글 파일.txt", "한글 파일.txt"),
    ],
)
async def test_a_mount_path_is_rooted_below_uploads(api: Api, given: str, mounted: str) -> None:
    session = await create(api, resource(await upload(api), given))
    assert session.resources[0].mount_path == f"{ROOT}/{mounted}"


async def test_without_a_mount_path_the_file_lies_under_its_id(api: Api) -> None:
    file_id = await upload(api)
    session = await create(api, resource(file_id))
    assert session.resources[0].mount_path == f"{ROOT}/{file_id}"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x", "escapes /uploads/"),
        ("a/../../x", "escapes /uploads/"),
        (f"{ROOT}/../x", "escapes /uploads/"),
        ("..", "escapes /uploads/"),
        ("a/..", "escapes /uploads/"),
        ("/", "names no file"),
        (".", "names no file"),
        (ROOT, "names no file"),
        ("folder/", "names no file"),
        ("a\nb", "control characters"),
        ("x" * 256, "255 bytes"),
        ("a/" * 2100 + "b", "mount_path"),
        ("", "mount_path"),
    ],
)
async def test_a_mount_path_that_names_no_file_below_uploads_is_refused(
    api: Api, path: str, reason: str
) -> None:
    file_id = await upload(api)
    await refused(create(api, resource(file_id, path)), "resources[0].mount_path", reason)
    assert (await api.sdk.beta.sessions.list()).data == []
    assert len((await api.sdk.beta.files.list()).data) == 1


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "/a"), ("a", "a/b"), ("a/b/c", "a/b")])
async def test_mount_paths_must_not_overlap(api: Api, first: str, second: str) -> None:
    files = [await upload(api), await upload(api)]
    both = [resource(file_id, path) for file_id, path in zip(files, (first, second), strict=True)]
    await refused(create(api, *both), "resources[1].mount_path", "overlaps")
    session = await create(api, both[0])
    await refused(api.sdk.beta.sessions.resources.add(session.id, **both[1]), "mount_path", "overlaps")


async def test_paths_that_only_look_alike_do_not_overlap(api: Api) -> None:
    file_id = await upload(api)
    session = await create(api, resource(file_id, "a"), resource(file_id, "ab"), resource(file_id, "a.txt"))
    assert len(session.resources) == 3


async def test_one_missing_file_and_no_session_is_made(api: Api) -> None:
    request = create(api, resource(await upload(api), "a"), resource("file_01unknown", "b"))
    await refused(request, "resources[1].file_id: file file_01unknown not found", kind=NotFoundError)
    assert (await api.sdk.beta.sessions.list()).data == []
    assert len((await api.sdk.beta.files.list()).data) == 1


async def test_an_expired_file_cannot_be_attached(api: Api) -> None:
    file_id = await upload(api, expires_in_seconds=3600)
    await api.database.execute("update files set expires_at = now() - interval '1 second'")
    error = await refused(create(api, resource(file_id)), "resources[0].file_id", kind=NotFoundError)
    assert error["details"]["error_code"] == "file_expired"


async def test_a_copy_expires_with_its_original(api: Api) -> None:
    file_id = await upload(api, expires_in_seconds=3600)
    session = await create(api, resource(file_id))
    original = await api.sdk.beta.files.retrieve_metadata(file_id)
    copy = await api.sdk.beta.files.retrieve_metadata(session.resources[0].file_id)
    assert copy.expires_at == original.expires_at


async def test_files_can_be_added_and_taken_away(api: Api) -> None:
    file_id = await upload(api)
    session = await create(api)
    added = await api.sdk.beta.sessions.resources.add(
        session.id, type="file", file_id=file_id, mount_path="b"
    )
    assert undocumented(added) == []
    assert await paths(api, session.id) == [f"{ROOT}/b"]
    deleted = await api.sdk.beta.sessions.resources.delete(added.id, session_id=session.id)
    assert (deleted.id, deleted.type) == (added.id, "session_resource_deleted")
    assert await paths(api, session.id) == []
    await refused(api.sdk.beta.files.retrieve_metadata(added.file_id), kind=NotFoundError)
    assert (await api.sdk.beta.files.retrieve_metadata(file_id)).id == file_id
    request = api.sdk.beta.sessions.resources.delete(added.id, session_id=session.id)
    await refused(request, added.id, kind=NotFoundError)


async def test_resources_are_listed_whole_or_in_pages(api: Api) -> None:
    file_id = await upload(api)
    session = await create(api, *(resource(file_id, str(number)) for number in range(30)))
    whole = (await api.get(f"/v1/sessions/{session.id}/resources")).json()
    assert (len(whole["data"]), whole["next_page"]) == (30, None)
    listing: Any = api.sdk.beta.sessions.resources.list(session.id, limit=7)
    paged = [one.id async for one in listing]
    assert paged == [one["id"] for one in whole["data"]]
    other = await create(api)
    page = (await api.get(f"/v1/sessions/{session.id}/resources", params={"limit": 1})).json()["next_page"]
    stolen = await api.get(f"/v1/sessions/{other.id}/resources", params={"limit": 1, "page": page})
    assert stolen.status_code == 400


async def test_a_session_has_at_most_500_resources(api: Api) -> None:
    file_id = await upload(api)
    many = [resource(file_id, str(number)) for number in range(501)]
    await refused(create(api, *many), "at most 500")
    session = await create(api, *many[:500])
    assert len(session.resources) == 500
    await refused(api.sdk.beta.sessions.resources.add(session.id, **many[500]), "at most 500")


async def test_a_self_hosted_environment_takes_no_files(api: Api) -> None:
    file_id = await upload(api)
    config = {"type": "self_hosted"}
    text = "`resources` are not supported with self-hosted environments."
    await refused(create(api, resource(file_id), config=config), "is a self-hosted environment", text)
    session = await create(api, config=config)
    request = api.sdk.beta.sessions.resources.add(session.id, type="file", file_id=file_id)
    await refused(request, text)


@pytest.mark.parametrize(
    ("params", "message", "kind"),
    [
        (
            {"type": "memory_store", "memory_store_id": "memstore_01x"},
            "memory store memstore_01x not found",
            404,
        ),
        ({"type": "github_repository", "url": "http://github.com/a/b"}, "resources[0].url", 400),
        ({"type": "github_repository", "url": "https://git.example/a/b"}, "gateway.git_hosts", 400),
        ({"type": "folder"}, '"folder" is not a valid value', 400),
        ({"type": "file"}, "resources[0].file_id: Field required", 400),
        ({"type": "file", "file_id": "file_1", "mode": "rw"}, "resources[0].mode: Extra inputs", 400),
    ],
)
async def test_what_cannot_be_attached_is_refused_by_name(
    api: Api, params: Any, message: str, kind: int
) -> None:
    agent, environment = (await api.agent())["id"], (await api.environment())["id"]
    body = {"agent": agent, "environment_id": environment, "resources": [params]}
    response = await api.post("/v1/sessions", body)
    assert (response.status_code, message in response.json()["error"]["message"]) == (kind, True), (
        response.text
    )


async def test_a_memory_store_cannot_be_added_to_a_session_that_exists(api: Api) -> None:
    session = await create(api)
    body = {"type": "memory_store", "memory_store_id": "memstore_01x"}
    assert (await api.post(f"/v1/sessions/{session.id}/resources", body)).status_code == 400


async def test_a_repository_is_attached_with_a_token_that_is_never_shown(api: Api) -> None:
    session = await create(api)
    body = {"type": "github_repository", "url": "https://github.com/a/b", "authorization_token": "ghs_x"}
    made = await api.post(f"/v1/sessions/{session.id}/resources", body)
    assert (made.status_code, made.json()["mount_path"]) == (200, "/workspace/b")
    path = f"/v1/sessions/{session.id}/resources/{made.json()['id']}"
    changed = await api.post(path, {"authorization_token": "ghs_y"})
    assert (changed.status_code, "ghs_" in changed.text + made.text) == (200, False)


async def test_a_file_has_no_token_to_rotate(api: Api) -> None:
    session = await create(api, resource(await upload(api)))
    update = api.sdk.beta.sessions.resources.update
    request = update(session.resources[0].id, session_id=session.id, authorization_token="t")
    await refused(request, "authorization_token")
    request = update("sesrsc_01unknown", session_id=session.id, authorization_token="t")
    await refused(request, kind=NotFoundError)


async def test_an_archived_session_keeps_its_resources_as_they_are(api: Api) -> None:
    session = await create(api, resource(await upload(api)))
    await api.sdk.beta.sessions.archive(session.id)
    add = api.sdk.beta.sessions.resources.add(session.id, type="file", file_id=await upload(api))
    await refused(add, "archived")
    delete = api.sdk.beta.sessions.resources.delete(session.resources[0].id, session_id=session.id)
    await refused(delete, "archived")


async def test_a_deleted_session_takes_its_files_along_and_leaves_the_uploads(api: Api) -> None:
    file_id = await upload(api)
    session = await create(api, resource(file_id))
    copy_id = session.resources[0].file_id
    await api.sdk.beta.sessions.delete(session.id)
    assert [file.id for file in (await api.sdk.beta.files.list()).data] == [file_id]
    await refused(api.sdk.beta.files.retrieve_metadata(copy_id), kind=NotFoundError)
    page = await api.sdk.beta.files.list(scope_id=session.id)
    assert page.data == []


async def test_a_mounted_copy_cannot_be_deleted_from_under_its_session(api: Api) -> None:
    session = await create(api, resource(await upload(api)))
    [mounted] = session.resources
    await refused(api.sdk.beta.files.delete(mounted.file_id), session.id, mounted.id)


async def test_the_files_of_a_session_are_listed_by_its_scope(api: Api) -> None:
    file_id = await upload(api)
    first, second = await create(api, resource(file_id)), await create(api, resource(file_id))
    page = await api.sdk.beta.files.list(scope_id=first.id)
    assert [file.id for file in page.data] == [first.resources[0].file_id]
    assert (await api.sdk.beta.files.list(scope_id=second.id)).data[0].id == second.resources[0].file_id


async def test_files_added_at_the_same_time_cannot_take_one_place(api: Api) -> None:
    session, file_id = await create(api), await upload(api)
    body = resource(file_id, "one")
    answers = await asyncio.gather(
        *(api.post(f"/v1/sessions/{session.id}/resources", body) for _ in range(6))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400, 400, 400, 400]


async def test_no_worker_attaches_or_detaches(api: Api) -> None:
    environment = await api.environment()
    session = await api.session(environment_id=environment["id"])
    async with api.client(await api.environment_key(environment["id"])) as worker:
        request = worker.beta.sessions.resources.add(session["id"], type="file", file_id="file_1")
        await refused(request, kind=PermissionDeniedError)
        assert (await worker.beta.sessions.resources.list(session["id"])).data == []
    foreign = await api.environment()
    async with api.client(await api.environment_key(foreign["id"])) as worker:
        await refused(_first_page(worker, session["id"]), kind=NotFoundError)


async def _first_page(client: Any, session_id: str) -> Any:
    return await client.beta.sessions.resources.list(session_id)


async def test_resources_of_an_unknown_session_are_not_found(api: Api) -> None:
    await refused(_first_page(api.sdk, "sesn_01unknown"), "sesn_01unknown", kind=NotFoundError)
